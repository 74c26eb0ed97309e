"""Cells that Optuna chooses as it goes: the file names its first batch, its ledger the others."""

import shlex

import pytest
import yaml

from rcray.aggregate.command import Request, run_report
from rcray.aggregate.explore.command import watch_experiments
from rcray.cli.shared import cells_of, sweep_command
from rcray.records.ledger import Ledger, LedgerEntry, write_ledger
from rcray.store import Store
from rcray.sweep.grid import expand
from tests.report import runs
from tests.report.explored import payload

PATH = "train.learning_rate"


def entries(cells):
    return tuple(LedgerEntry(cell.run_id, cell.label, varied=cell.varied) for cell in cells)


@pytest.fixture
def search(tmp_path):
    """A store, the file, its own cells, those of later batches, and one of the same search under other settings."""
    content = runs.quickstart().model_dump(mode="json", include={"name", "title", "run"})
    content |= {"grid": {}, "search": {
        "method": "optuna", "samples": 6, "batch": 2, "space": {PATH: {"low": 1e-6, "high": 1e-3, "scale": "log"}},
    }}  # fmt: skip
    file = tmp_path / "search.yaml"
    file.write_text(yaml.safe_dump(content))
    experiment, cells = cells_of(file, None)
    later = expand(experiment, points=[{PATH: 1.25e-5}, {PATH: 3.5e-4}])
    other = expand(experiment, {"train.seed": 7}, points=[{PATH: 1.25e-5}])
    store = Store.open(tmp_path / "store")
    assert len(cells) == 2 and len(later) == 2
    return store, file, experiment, cells, later, other


def test_a_cell_that_the_file_does_not_name_appears_when_it_is_chosen(search):
    store, file, experiment, cells, later, other = search
    watch = watch_experiments(store, [(sweep_command(file, None), experiment, cells)])
    before = watch.state()
    assert set(before["runs"]) == {cell.run_id for cell in cells}
    write_ledger(store.experiment(experiment.name), Ledger(entries([*cells, *later, *other])))
    watch._looked = 0.0
    after = watch.state(before["version"])
    wanted = [cell.run_id for cell in (*cells, *later)]
    assert set(after["runs"]) == set(wanted) - set(before["runs"]), "and none of other settings"
    (command,) = after["head"]["commands"]
    assert command == {"text": shlex.join(["rcray", "sweep", str(file)]), "runs": wanted, "searches": True}
    runs.write_ok(store, later[0])
    watch._looked = 0.0
    assert watch.state(after["version"])["runs"][later[0].run_id]["state"] == "ok"


def test_a_report_has_every_batch(search, tmp_path):
    store, file, experiment, cells, later, _ = search
    runs.write_runs(store, [*cells, *later[:1]])
    write_ledger(store.experiment(experiment.name), Ledger(entries([*cells, *later])))
    request = Request([(experiment, cells)], store.root, figures=False, export=tmp_path / "ledger",
                      commands=[sweep_command(file, None)])  # fmt: skip
    report = run_report(request)
    assert [result.status for result in report.results] == [*["ok"] * 3, "pending"]
    head = payload(report.explore.read_text())["head"]
    assert head["commands"][0]["runs"] == [cell.run_id for cell in (*cells, *later)]
    again = run_report(Request(ledger=tmp_path / "ledger", out=tmp_path / "out", figures=False))
    assert len(again.results) == 4


def test_other_experiments_have_the_cells_of_their_file(search):
    store, _, experiment, cells, later, _ = search
    write_ledger(store.experiment(experiment.name), Ledger(entries([*cells, *later])))
    drawn = experiment.model_copy(update={"search": experiment.search.model_copy(update={"method": "random"})})
    assert len(watch_experiments(store, [([], drawn, cells)]).state()["runs"]) == 2
