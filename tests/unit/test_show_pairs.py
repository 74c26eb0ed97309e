"""`rcray show-pairs`: what is prompt, what is scored, what was cut, under both presets, from a tokenizer alone."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rcray.cli import app

MAIN = Path(__file__).parents[2] / "experiments" / "main.yaml"
TAGGED = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
USERS_ONLY = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system turns') }}{% endif %}"
    "[{{ m['content'] }}]{% endfor %}"
)


@pytest.fixture
def show(make_tokenizer, tmp_path):
    """The main table's file with a tokenizer saved alone, no weights beside it, and pairs with a long answer."""

    def run(template, bos=None, *more):
        tokenizer = make_tokenizer(template)
        tokenizer.bos_token = bos
        tokenizer.save_pretrained(tmp_path / "tokenizer")
        rows = [{"prompt": f"é{letter}", "chosen": "c" * 60, "rejected": "no"} for letter in "abcdefghijklmnopqrst"]
        data = tmp_path / "pairs.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings = {
            "model": tmp_path / "tokenizer", "data.name": data, "data.max_length": 40, "data.max_prompt_length": 20
        }  # fmt: skip
        options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        done = CliRunner().invoke(app, ["show-pairs", str(MAIN), *options, "--store", str(tmp_path / "store"), *more])
        assert done.exit_code == 0, done.output
        return done.output

    return run


def test_both_presets_side_by_side(show):
    official, paper = show(TAGGED, "<|end|>", "-n", "1").split("paper:")
    assert "official (this file): add_bos, empty_system, score_header" in official
    assert re.search("⟦<.end.>⟧⟦<.system.>⟧⟦<.end.>⟧⏎⟦<.user.>⟧é[a-t]⟦<.end.>⟧", official)
    assert "chosen, scored, 20 of 63 tokens: ⟦<|assistant|>⟧ccc" in official
    assert "✂ 43" in official
    assert re.search("prompt, 7 tokens: ⟦<.user.>⟧é[a-t]⟦<.end.>⟧⏎⟦<.assistant.>⟧", paper)
    assert "chosen, scored, 33 of 62 tokens: ccc" in paper
    assert "✂ 29" in paper


def test_what_a_tokenizer_lacks_is_said(show):
    text = show(USERS_ONLY)
    assert "add_bos (this tokenizer has none), empty_system (this template refuses it), score_header" in text
    assert text.count("--- ") == 3
    assert re.search(r"prompt, 5 tokens: \[é[a-t]\]", text), "a character of several tokens is one character"
    assert text.count("=== ") == 1, "28 cells read the same rows"
