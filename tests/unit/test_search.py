"""Search: its points, what is refused, and that Optuna asks for the same points when told the same."""

import statistics
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rcray.config import Experiment
from rcray.config.search import SearchConfig
from rcray.errors import ConfigError
from rcray.files import write_json
from rcray.records.ledger import read_stopped, write_stopped
from rcray.store import Store
from rcray.sweep.grid import expand
from rcray.sweep.ledger import build_ledger
from rcray.sweep.runner import SweepOptions, unfinished
from rcray.sweep.search import best_of_search, choose_with_optuna, scheduler

SPACE = {
    "train.learning_rate": {"low": 1e-6, "high": 1e-3, "scale": "log"},
    "objective.beta": {"low": 0.05, "high": 0.5},
}


def experiment(method="random", **more):
    search = {"method": method, "space": SPACE, "samples": 6, **more.pop("search", {})}
    return Experiment.model_validate({"name": "x", "search": search, **more})


def test_points_are_ordinary_cells_within_their_ranges():
    cells = expand(experiment(grid={"calibration.enabled": [False, True]}))
    assert len(cells) == 12, "random points are crossed with the grid: off and on are compared at the same points"
    for cell in cells:
        assert 1e-6 <= cell.config.train.learning_rate <= 1e-3
        assert 0.05 <= cell.config.objective.beta <= 0.5
    assert len({cell.config.train.learning_rate for cell in cells}) == 6
    small = sum(cell.config.train.learning_rate < 3e-5 for cell in cells)
    assert 2 <= small <= 10, "drawn on the scale that was asked for"


def test_points_depend_on_the_seed_alone():
    def ids(**search):
        return [cell.run_id for cell in expand(experiment(search=search))]

    assert ids() == ids()
    assert ids(samples=3) == ids()[:3], "asking for more does not change those already run"
    assert not set(ids(seed=1)) & set(ids())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"search": {"method": "random", "space": {"train.seed": {"low": 2, "high": 1}}}}, "not below"),
        ({"search": {"method": "random", "space": {"x.y": {"low": 0, "high": 1, "scale": "log"}}}}, "no logarithm"),
        ({"search": {"method": "random", "space": {}}}, "at least 1 item"),
        ({"search": {"method": "grid", "space": SPACE}}, "'random', 'asha' or 'optuna'"),
        ({"search": {"method": "asha", "space": SPACE}, "grid": {"objective": ["dpo", "cpo"]}}, "not comparable"),
        ({"search": {"method": "random", "space": SPACE}, "grid": {"objective.beta": [1]}}, "given by `grid`"),
    ],
)
def test_refused(content, expected):
    with pytest.raises(ValueError, match=expected):
        Experiment.model_validate({"name": "x", **content})


def test_a_point_outside_of_a_fields_own_limits_is_refused():
    space = {"objective.beta": {"low": -1.0, "high": -0.5}}
    with pytest.raises(ConfigError, match=r"objective\.beta"):
        expand(experiment(search={"space": space}))


def test_asha_refuses_what_it_could_never_compare():
    short = experiment("asha", run={"data": {"train_pairs": 64}, "train": {"batch_size": 8}})
    with pytest.raises(ConfigError, match="the runs have 8 steps"):
        scheduler(short.search, expand(short))
    groups = experiment("asha", run={"execution": {"workers": 2}})
    with pytest.raises(ConfigError, match="worker group"):
        scheduler(groups.search, expand(groups))


def searched(store, search, target, stop_after=99):
    """Runs a search whose score is the closeness to a target rate; returns the points in their order."""
    spec = Experiment.model_validate({"name": "x", "search": search})
    asked = []

    def cell_at(point):
        asked.append(point["train.learning_rate"])
        return expand(spec, {}, [point])[0]

    def run(cells, tried):
        for cell in cells:
            away = abs(cell.config.train.learning_rate - target) / target
            row = {"benchmark": "preference", "metric": "accuracy", "value": -away}
            write_json(store.run(cell.run_id).evaluation, {"rows": [row]})
            write_json(store.run(cell.run_id).status, {"status": "ok"})
        return SimpleNamespace(ledger=SimpleNamespace(interrupted=len(cells) >= stop_after), cells=cells)

    outcome = choose_with_optuna(spec.search, cell_at, store, run)
    return spec, asked, outcome


def test_optuna_learns_and_asks_the_same_again(tmp_path):
    store = Store.open(tmp_path)
    search = {
        "method": "optuna",
        "samples": 24,
        "batch": 4,
        "space": {"train.learning_rate": SPACE["train.learning_rate"]},
    }
    spec, asked, outcome = searched(store, search, target=1e-4)
    assert len(asked) == len(outcome.cells) == 24
    assert asked[:4] == [point["train.learning_rate"] for point in SearchConfig.model_validate(search).points()]
    _, elsewhere, _ = searched(Store.open(tmp_path / "other"), search, target=2e-6)
    assert elsewhere[:4] == asked[:4]
    assert statistics.geometric_mean(elsewhere[4:]) < statistics.geometric_mean(asked[4:]), "it goes where scores are"

    _, interrupted, _ = searched(store, search, target=1e-4, stop_after=8)
    assert interrupted == asked[:8]
    _, again, _ = searched(store, search, target=1e-4)
    assert again == asked, "a continued search is the same search"
    assert best_of_search(spec, outcome.cells, store).startswith("best preference/accuracy: -0.")


def test_a_point_that_failed_is_not_tried_again_by_the_same_command(tmp_path):
    """Optuna was told that it failed: with another answer the same command would ask for other points."""
    store = Store.open(tmp_path)
    space = {"train.learning_rate": SPACE["train.learning_rate"]}
    search = {"method": "optuna", "samples": 6, "batch": 2, "space": space}
    spec = Experiment.model_validate({"name": "x", "search": search})
    options = SweepOptions(search=spec.search)
    trained = []

    def run(cells, tried):
        todo = unfinished(cells, store, store.experiment("x"), replace(options, tried=tried))
        for cell in todo:
            write_json(store.run(cell.run_id).status, {"status": "failed"})
        trained.append([cell.run_id for cell in todo])
        return SimpleNamespace(ledger=SimpleNamespace(interrupted=False))

    choose_with_optuna(spec.search, lambda point: expand(spec, {}, [point])[0], store, run)
    assert [len(batch) for batch in trained] == [2, 2, 2]
    assert len({key for batch in trained for key in batch}) == 6


def test_a_stopped_run_is_stopped_for_its_search_only(tmp_path):
    store = Store.open(tmp_path / "store")
    cells = expand(experiment("asha"))
    write_json(store.run(cells[0].run_id).status, {"status": "pending", "step": 20})
    write_stopped(store.experiment("x"), cells[0].run_id, "ASHA stopped it at step 20")
    entry = build_ledger(cells, store, stopped=read_stopped(store.experiment("x"))).cells[0]
    assert (entry.status, entry.note) == ("stopped", "ASHA stopped it at step 20")
    other = build_ledger(cells, store, stopped=read_stopped(store.experiment("y")))
    assert other.cells[0].status == "pending"


@pytest.mark.parametrize(
    ("status", "row"),
    [
        ("degenerate", {"value": None, "status": "degenerate"}),
        ("degenerate", {"value": 0.99}),  # held-out pairs were sound, the logits of a text were not
        ("ok", {"value": None, "status": "undefined"}),
        ("failed", {"value": 0.99}),
    ],
)
def test_a_point_without_a_score_is_never_the_best(tmp_path, status, row):
    store, spec = Store.open(tmp_path), experiment()
    bad, good = expand(spec)[:2]
    for cell, state, measured in ((bad, status, row), (good, "ok", {"value": 0.5})):
        write_json(store.run(cell.run_id).status, {"status": state})
        rows = [{"benchmark": "preference", "metric": "accuracy", **measured}]
        write_json(store.run(cell.run_id).evaluation, {"rows": rows})
    assert f"(run {good.run_id})" in best_of_search(spec, [bad, good], store)
    assert best_of_search(spec, [bad], store) == ""
