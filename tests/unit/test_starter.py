"""`rcray init`: the file it writes plans, names the user's model and data, and never replaces another."""

import json

import pytest
import yaml

from rcray.config import load_experiment
from rcray.errors import ConfigError, RcrayError
from rcray.starter import Wanted, write_starter
from rcray.sweep.grid import expand
from rcray.sweep.planning import make_plan


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pairs(path, count, **names):
    row = {names.get(key, key): f"some {key}" for key in ("prompt", "chosen", "rejected")}
    path.write_text("".join(json.dumps(row) + "\n" for _ in range(count)))
    return str(path.name)


@pytest.mark.parametrize("model", ["./nowhere", "../nowhere", "/nowhere"])
def test_a_directory_that_is_not_there_is_refused(folder, model):
    with pytest.raises(ConfigError, match=r"model\.name: .*no such directory"):
        write_starter(folder / "mine.yaml", Wanted(model, "synthetic", None))
    assert not (folder / "mine.yaml").exists()


@pytest.mark.parametrize("model", ["tiny-neox", "pythia-410m", "mistral-7b", "some/model", "./here"])
@pytest.mark.parametrize("data", ["synthetic", "ultrafeedback", "hh", "some/pairs", "./pairs"])
@pytest.mark.parametrize("method", [None, "full", "lora", "qlora"])
def test_what_is_written_plans(folder, model, data, method):
    path = folder / "mine.yaml"
    (folder / "here").mkdir()
    _, count = write_starter(path, Wanted(model, data, method))
    experiment = load_experiment(path)
    cells = expand(experiment)
    assert len(cells) == count == 6
    assert len(make_plan([(path, experiment, cells)], folder / "store", None).rows()) == 6
    for cell in cells:
        assert (cell.config.model.name, cell.config.data.name) == (model, data)
        assert method is None or cell.config.model.method == method
    assert all(len(line) <= 120 for line in path.read_text().splitlines())
    assert path.read_text().count("#") > 20, "it explains itself"


def test_a_preset_keeps_its_rate_and_another_method_gets_its_own(folder):
    write_starter(folder / "a.yaml", Wanted("mistral-7b", "ultrafeedback"))
    write_starter(folder / "b.yaml", Wanted("pythia-410m", "ultrafeedback", "lora"))
    rates = [expand(load_experiment(folder / name))[0].config.train.learning_rate for name in ("a.yaml", "b.yaml")]
    assert rates == [3e-7, 1e-4]


@pytest.mark.parametrize(("rows", "batch", "held_out"), [(4, 1, 2), (40, 8, 4), (100, 16, 10), (5000, 32, 128)])
def test_a_small_file_gets_small_batches_and_its_columns(folder, rows, batch, held_out):
    name = pairs(folder / "p.jsonl", rows, prompt="question", chosen="good", rejected="bad")
    columns = {"prompt": "question", "chosen": "good", "rejected": "bad"}
    write_starter(folder / "mine.yaml", Wanted("tiny-neox", name, None, columns))
    config = expand(load_experiment(folder / "mine.yaml"))[0].config
    assert (config.train.batch_size, config.data.eval_pairs) == (batch, held_out)
    assert config.data.columns.model_dump(include=set(columns)) == columns


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (Wanted("tiny-neo", "synthetic"), ["model.name", "did you mean 'tiny-neox'"]),
        (Wanted("tiny-neox", "synthetc"), ["data.name", "did you mean 'synthetic'"]),
        (Wanted("tiny-neox", "gone.jsonl"), ["data.name", "gone.jsonl", "no such file"]),
        (Wanted("tiny-neox", "other.jsonl"), ["no column 'chosen'", "choosen", "--chosen"]),
        (Wanted("tiny-neox", "few.jsonl"), ["few.jsonl", "3 rows"]),
    ],
    ids=["model", "data", "file", "column", "rows"],
)
def test_what_could_not_run_is_not_written(folder, wanted, said):
    pairs(folder / "other.jsonl", 9, chosen="choosen")
    pairs(folder / "few.jsonl", 3)
    with pytest.raises(RcrayError) as caught:
        write_starter(folder / "mine.yaml", wanted)
    assert caught.value.exit_code == 2
    assert all(part in str(caught.value) for part in said)
    assert not (folder / "mine.yaml").exists()


def test_nothing_is_overwritten(folder):
    mine = folder / "mine.yaml"
    mine.write_text("mine")
    (folder / "dangling.yaml").symlink_to(folder / "nowhere")
    for path in (mine, folder / "dangling.yaml"):
        with pytest.raises(ConfigError, match="is there already"):
            write_starter(path, Wanted("tiny-neox", "synthetic"))
    assert mine.read_text() == "mine"
    assert not (folder / "nowhere").exists()


@pytest.mark.parametrize("path", ["mine.txt", "mine", "gone/mine.yaml"])
def test_a_place_that_will_not_do(folder, path):
    with pytest.raises(ConfigError, match="mine"):
        write_starter(folder / path, Wanted("tiny-neox", "synthetic"))
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["./a\nrun: {model: evil/x}", "./a: b # c", "./{a}", "./'a' \"b\"", "./!!python/x"])
def test_a_name_stays_a_name(folder, name):
    """Names with YAML in them are quoted: nothing of them becomes a field or ends a comment."""
    (folder / name).mkdir(parents=True)
    write_starter(folder / "mine.yaml", Wanted(name, "synthetic"))
    content = yaml.safe_load((folder / "mine.yaml").read_text())
    assert content["run"]["model"] == {"name": name}
    assert set(content) == {"name", "title", "run", "grid", "evaluation"}


def test_a_directory_without_a_slash_is_still_one(folder):
    (folder / "my-model").mkdir()
    write_starter(folder / "mine.yaml", Wanted("my-model", "synthetic"))
    assert yaml.safe_load((folder / "mine.yaml").read_text())["run"]["model"]["name"] == "./my-model"


@pytest.mark.parametrize(
    ("file", "name"), [("we ird#$.yaml", "we-ird"), ("--.yaml", "experiment"), ("ä.yaml", "experiment")]
)
def test_the_experiment_is_named_after_its_file(folder, file, name):
    write_starter(folder / file, Wanted("tiny-neox", "synthetic"))
    assert load_experiment(folder / file).name == name


def test_it_looks_at_model_rows_and_devices(folder, monkeypatch, quick_cache):
    """Sizes fit what is given, the plan then counts, and nothing has to be edited."""
    monkeypatch.setattr("rcray.starter.gpus_here", lambda: 0)
    rows = [{"prompt": "one two", "chosen": "red " * 150, "rejected": "blue " * 40} for _ in range(200)]
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "models").mkdir()
    (folder / "models" / "my-model").symlink_to(quick_cache / "tiny-mistral")
    path = folder / "mine.yaml"
    experiment, _ = write_starter(path, Wanted("./models/my-model", "mine.jsonl", "lora"))
    cells = expand(load_experiment(path))
    config = cells[0].config
    assert config.execution.gpus_per_worker == 0 and "no GPU was seen here" in path.read_text()
    assert config.data.eval_pairs == 20, "what will be taken"
    assert 128 <= config.data.max_length < 1024, "rows of some two hundred tokens"
    assert experiment.title == "my-model on mine.jsonl"
    assert cells[0].label == "my-model (lora) · dpo · no RC"
    (planned,) = make_plan([(path, experiment, cells[:1])], folder / "store", None).rows()
    assert planned["pairs"] == 180 and planned["steps"] == 180 // config.train.batch_size
    assert planned["hours"] and planned["memory_bytes"] < 2e9
