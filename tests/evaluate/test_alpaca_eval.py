"""AlpacaEval from runs to win rates: answers written, files paired, a sweep judged, commands and their output."""

import json

import pytest
import torch

from rcray.config import run_id
from rcray.config.alpaca_eval import AlpacaEvalConfig, GenerationConfig
from rcray.config.evaluation import EvaluationConfig
from rcray.errors import ConfigError, DataError, DegenerateRunError, RcrayError
from rcray.evaluate.alpaca_eval import command
from rcray.evaluate.alpaca_eval.command import answers_of, compare_sweep, pairings
from rcray.evaluate.alpaca_eval.generate import generate_answers
from rcray.evaluate.alpaca_eval.outputs import Output, match, read_instructions, read_outputs, write_outputs
from rcray.sweep.grid import Cell
from tests.evaluate.judge_server import JudgeServer
from tests.evaluate.test_degenerate import constant_model, nan_model

PHRASES = ["render filu tilu tilu rilu mema bema nema pilu", "render kano dema pema kema pema rema bano milu"]
SHORT = GenerationConfig(max_new_tokens=24, batch_size=2)


@pytest.fixture
def instructions(tmp_path):
    path = tmp_path / "instructions.json"
    path.write_text(json.dumps([{"instruction": text} for text in PHRASES]))
    return path


# -- generating


def test_answers_go_through_the_chat_template_and_end_there(tiny):
    outputs = generate_answers(tiny.model, tiny.tokenizer, PHRASES, SHORT, generator="tiny")
    assert [output.instruction for output in outputs] == PHRASES
    for output in outputs:
        words = output.output.split()
        assert len(words) == 8 and "<|" not in output.output  # warmed up on eight words and an end
        assert output.generator == "tiny"


def test_greedy_answers_do_not_depend_on_the_batch(tiny):
    texts = [*PHRASES, "render filu", "render kano dema pema"]
    alone = [generate_answers(tiny.model, tiny.tokenizer, [text], SHORT, generator="")[0] for text in texts]
    together = generate_answers(tiny.model, tiny.tokenizer, texts, GenerationConfig(max_new_tokens=24), generator="")
    assert together == alone


def test_sampled_answers_are_seeded_and_leave_the_generator_alone(tiny):
    def draw(seed):
        settings = GenerationConfig(max_new_tokens=24, temperature=1.0, seed=seed)
        return generate_answers(tiny.model, tiny.tokenizer, PHRASES, settings, generator="")

    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    first = draw(1)
    assert torch.equal(torch.rand(1), expected)
    assert draw(1) == first != draw(2)


def test_models_with_nothing_to_say(tiny):
    with pytest.raises(DegenerateRunError, match="non-finite logits"):
        generate_answers(nan_model(tiny), tiny.tokenizer, PHRASES, SHORT, generator="x")
    with pytest.raises(DegenerateRunError, match="the same logits"):
        generate_answers(constant_model(tiny), tiny.tokenizer, PHRASES, SHORT, generator="x")


def test_an_instruction_beyond_the_context(tiny):
    with pytest.raises(DataError, match=r"instruction 2 has \d+ tokens, and the model's context is 256"):
        generate_answers(tiny.model, tiny.tokenizer, [PHRASES[0], "word " * 400], SHORT, generator="")


def test_a_runs_answers_are_written_once(trained, instructions):
    settings = AlpacaEvalConfig(instructions=str(instructions), generation=SHORT)
    path = answers_of(trained.plain, trained.store, settings)
    stamp = path.stat().st_mtime_ns
    greedy_in_other_batches = settings.model_copy(update={"generation": GenerationConfig(max_new_tokens=24)})
    assert answers_of(trained.plain, trained.store, greedy_in_other_batches) == path
    assert path.stat().st_mtime_ns == stamp
    assert answers_of(trained.calibrated, trained.store, settings) != path
    assert run_id(trained.plain) in read_outputs(path)[0].generator


# -- files


def test_files(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"instruction": "do"}\n\n{"instruction": "sum", "input": "1 2"}\n')
    assert read_instructions(tmp_path / "a.jsonl") == ["do", "sum\n\n1 2"]
    assert read_instructions(tmp_path / "a.jsonl", 1) == ["do"]
    write_outputs(tmp_path / "o.json", [Output("do", "done", "me")])
    assert read_outputs(tmp_path / "o.json") == [Output("do", "done", "me")]
    for text, message in (
        ("{", "not valid JSON"),
        ("{}", "expected a list"),
        ("[]", "holds no"),
        ('[{"x": 1}]', "row 1"),
    ):
        (tmp_path / "bad.json").write_text(text)
        for read in (read_instructions, read_outputs):
            with pytest.raises(DataError, match=message):
                read(tmp_path / "bad.json")
    with pytest.raises(DataError, match="cannot be read"):
        read_outputs(tmp_path / "none.json")


def test_answers_are_paired_by_instruction():
    pairs = match([Output("a", "1"), Output("b", "2")], [Output("b", "3"), Output("a", "4")])
    assert [(pair.candidate, pair.reference) for pair in pairs] == [("1", "4"), ("2", "3")]
    with pytest.raises(DataError, match="1 of 2 instructions have no reference answer"):
        match([Output("a", "1"), Output("b", "2")], [Output("a", "3")])
    with pytest.raises(DataError, match="answered twice"):
        match([Output("a", "1"), Output("a", "2")], [Output("a", "3")])


# -- a sweep


def cells(trained):
    return [Cell(run_id(config), config, ()) for config in (trained.plain, trained.calibrated)]


def test_with_rc_is_compared_to_the_same_without(trained, instructions):
    settings = AlpacaEvalConfig(instructions=str(instructions))
    assert trained.calibrated.without_rc == trained.plain
    (pairing,) = pairings(cells(trained), trained.store, settings)
    assert (pairing.cell.config, pairing.opponent) == (trained.calibrated, trained.plain)
    with pytest.raises(ConfigError, match="no cell has calibration"):
        pairings(cells(trained)[:1], trained.store, settings)
    against_file = settings.model_copy(update={"reference": "outputs.json"})
    assert [pairing.opponent for pairing in pairings(cells(trained), trained.store, against_file)] == [None, None]
    trained.run(trained.plain).status.write_text('{"status": "running"}')
    with pytest.raises(RcrayError, match="not finished"):
        pairings(cells(trained), trained.store, settings)


def test_a_sweep_from_answers_to_rows(trained, tmp_path, instructions, monkeypatch):
    """The judge is scripted and so are the answers' last words; everything between is real."""

    def inside(configs, store, settings, on_done, work):
        for config in configs:
            path = work(config, store, settings)
            better = 1 if config.calibration.enabled else 0
            outputs = [Output(o.instruction, f"{o.output} answer {better}") for o in read_outputs(path)]
            write_outputs(tmp_path / f"{better}.json", outputs)
            on_done(config, tmp_path / f"{better}.json")

    monkeypatch.setattr("rcray.evaluate.remote.evaluate_many", inside)  # without starting Ray
    said = []
    with JudgeServer() as server:
        judge = {"base_url": server.url, "model": "judge-1", "key_env": None}
        alpaca = {"instructions": str(instructions), "generation": SHORT, "judge": judge}
        settings = EvaluationConfig(alpaca_eval=alpaca)
        compare_sweep(cells(trained), trained.store, settings, said.append, only_estimate=True)
        assert not server.calls and "4 calls" in said[-1]
        compare_sweep(cells(trained), trained.store, settings, said.append, only_estimate=False)
        assert sum(server.calls.values()) == 4
    content = json.loads(trained.run(trained.calibrated).evaluation.read_text())
    rows = {row["metric"]: row for row in content["rows"]}
    assert rows["win_rate"]["value"] == pytest.approx(1 / (1 + 2.718281828**-3), abs=1e-6)
    assert rows["lc_win_rate"]["n"] == 2 and "no RC" in rows["lc_win_rate"]["note"]
    assert not trained.run(trained.plain).evaluation.exists()
    assert any("95% interval" in line for line in said)


def test_a_sweep_without_the_section(trained):
    with pytest.raises(ConfigError, match=r"evaluation.alpaca_eval: is missing"):
        compare_sweep(cells(trained), trained.store, EvaluationConfig(), print, only_estimate=True)


# -- the commands


def test_judge_and_winrate(rcray, tmp_path):
    for name, number in (("mine", 1), ("theirs", 0)):
        rows = [{"instruction": f"task {i}", "output": f"answer {number}"} for i in range(12)]
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    with JudgeServer() as server:
        options = ["mine.json", "theirs.json", "--base-url", server.url, "--judge-model", "j"]
        code, out, _ = rcray("alpaca-eval", "judge", *options, "--key-env", "", "--estimate")
        assert code == 0 and out.startswith("24 calls (0 more are cached)") and not server.calls
        code, _, err = rcray("alpaca-eval", "winrate", *options)
        assert code == 2 and "24 judgements are missing" in err
        code, out, err = rcray("alpaca-eval", "judge", *options, "--key-env", "")
        assert code == 0, err
        assert "24/24 judged" in out and "alpaca_eval/win_rate 0.9526" in out and "alpaca_eval/lc_win_rate 0.95" in out
    code, again, err = rcray("alpaca-eval", "winrate", *options)  # the server is gone
    assert code == 0, err
    assert again.splitlines()[-4:] == out.splitlines()[-4:]
    (result,) = tmp_path.glob("mine.*.judged.json")
    assert len(json.loads(result.read_text())["judgements"]) == 24


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["judge", "a.json", "b.json", "--base-url", "nowhere"], ["base_url", "http(s)://"]),
        (["judge", "a.json", "b.json", "--max-cost", "1"], ["max_cost needs price_in"]),
        (["judge", "a.json", "b.json"], ["a.json", "cannot be read"]),
        (["generate", "--run", "x", "--instructions", "a.json", "--out", "o.json"], ["a.json", "cannot be read"]),
    ],
    ids=lambda value: " ".join(value[:3]),
)
def test_refusals(rcray, arguments, expected):
    code, out, err = rcray("alpaca-eval", *arguments)
    assert code == 2 and out == "" and "Traceback" not in err
    assert all(part in err for part in expected)


def test_generate(rcray, trained, instructions, tmp_path):
    options = ["--instructions", instructions, "--out", tmp_path / "o.json", "--store", trained.store.root]
    code, out, err = rcray("alpaca-eval", "generate", "--run", run_id(trained.plain), *options, "--max-new-tokens", 8)
    assert code == 0, err
    assert out.startswith("2 answers of tiny-neox · dpo · no RC in")
    assert len(read_outputs(tmp_path / "o.json")) == 2
    code, _, err = rcray("alpaca-eval", "generate", "--run", trained.store.root, *options)
    assert code == 2 and "holds 2 runs" in err


def test_difficulties_are_read_by_instruction(tmp_path):
    (tmp_path / "d.json").write_text('{"a": 1, "b": 0.5}')
    assert command.read_difficulty(tmp_path / "d.json", ["b", "a"]) == [0.5, 1.0]
    with pytest.raises(DataError, match="no difficulty for 1 instructions, the first: 'c'"):
        command.read_difficulty(tmp_path / "d.json", ["a", "c"])
