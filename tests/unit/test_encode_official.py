"""Text pairs to token ids as the authors' code renders and cuts them."""

import pytest

from rcray.config.data import DataConfig
from rcray.data.encode import truncated
from rcray.data.encoded import EncodedPair
from rcray.data.pairs import Pair, Turn
from tests.unit.test_encode import ALTERNATING, LONG, encode_one, lengths, pair

OFFICIAL = DataConfig(add_bos=True, empty_system=True, score_header=True, answer_room="fixed")
#: Zephyr's kind of template: no BOS, system turns like any other.
TAGGED = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WITH_BOS = "{{ bos_token }}" + TAGGED


@pytest.mark.parametrize("template", [TAGGED, WITH_BOS], ids=["template without BOS", "template with BOS"])
def test_official_prompts_start_with_one_bos_and_an_empty_system_turn(make_tokenizer, template):
    tokenizer = make_tokenizer(template)
    tokenizer.bos_token = "<|end|>"  # as Pythia's: BOS is EOS
    ids, report = encode_one(tokenizer, pair("yes", "no"), OFFICIAL)
    assert tokenizer.decode(ids.prompt) == "<|end|><|system|><|end|><|user|>what is it<|end|>"
    assert tokenizer.decode(ids.chosen) == "<|assistant|>yes<|end|>", "the header is scored"
    assert tokenizer.decode(ids.rejected) == "<|assistant|>no<|end|>"
    assert report.rows("realigned") == []
    ours, _ = encode_one(tokenizer, pair("yes", "no"))
    assert tokenizer.decode(ours.chosen) == "yes<|end|>"
    assert tokenizer.decode(ours.prompt).startswith("<|user|>" if template == TAGGED else "<|end|><|user|>")


def test_official_leaves_out_what_the_tokenizer_does_not_have(make_tokenizer):
    """No BOS token; roles that must alternate, so that a system turn would drop every row; no header."""
    tokenizer = make_tokenizer(ALTERNATING)
    ids, report = encode_one(tokenizer, pair("yes", "no"), OFFICIAL)
    assert (ids, report.kept) == (encode_one(tokenizer, pair("yes", "no"))[0], 1)


def test_a_system_turn_of_the_row_stays_the_only_one(make_tokenizer):
    text = Pair("a", (Turn("system", "be brief"), Turn("user", "what is it")), "yes", "no")
    ids, _ = encode_one(make_tokenizer(), text, OFFICIAL)
    assert make_tokenizer().decode(ids.prompt) == "<|system|>be brief<|end|><|user|>what is it<|end|>"


@pytest.mark.parametrize(
    ("prompt", "chosen", "rejected", "fixed", "rest"),
    [
        (100, 1000, 30, (100, 512, 30), (100, 924, 30)),  # theirs keeps 512 of the answer, whatever the prompt leaves
        (100, 900, 30, (100, 900, 30), (100, 900, 30)),  # what fits is left alone
        (700, 400, 30, (512, 400, 30), (512, 400, 30)),  # a cut prompt leaves room enough
        (700, 600, 513, (512, 512, 512), (512, 512, 512)),
    ],
)
def test_how_much_of_a_long_answer_is_kept(prompt, chosen, rejected, fixed, rest):
    whole = EncodedPair("a", tuple(range(prompt)), tuple(range(chosen)), tuple(range(rejected)))
    assert lengths(truncated(whole, OFFICIAL)) == fixed
    assert lengths(truncated(whole, LONG)) == rest
    assert truncated(whole, OFFICIAL).prompt == whole.prompt[-fixed[0] :]
