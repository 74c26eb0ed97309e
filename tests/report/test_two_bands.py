"""The paper's band at the head beside what the updates did: ledger, findings, page, tables and figures tell them apart.

A run that lost its winner is said to have in the same places.
"""

import json
import math

import numpy as np
import pytest
import runs
from matplotlib.axes import Axes

from rcray.aggregate.collect import collect
from rcray.aggregate.dynamics_tables import pathways_table
from rcray.aggregate.figures.dynamics import draw_dynamics
from rcray.aggregate.figures.panels import band_limits, read
from rcray.aggregate.findings import check_claims, overall
from rcray.aggregate.groups import compare
from rcray.aggregate.html_cells import dynamics_sentence
from rcray.aggregate.report import build_report
from rcray.aggregate.summary import AGREEMENT, LOOKS_III, judged_intervals
from rcray.aggregate.tables import to_markdown
from rcray.config import Experiment
from rcray.records.status import WINNER_LOST, RunStatus, disagreement, parse_status, winner_lost
from rcray.store import Store
from rcray.sweep.ledger import build_ledger, ledger_table

LORA = {"model": {"name": "tiny-neox", "method": "lora"}}


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def say(run, **fields):
    """Adds fields to a run's status."""
    run.status.write_text(json.dumps({**json.loads(run.status.read_text()), **fields}))


def records_of(monkeypatch, change):
    """Has the runs that are written from now on hold these columns instead."""
    plain = runs.dynamics
    monkeypatch.setattr(runs, "dynamics", lambda cell, count: plain(cell, count) | change(cell, count))


def looks(count, lower, upper):
    """A true band at every tenth step."""
    looked = np.arange(count) % 10 == 0
    return {"true_band_lower": np.where(looked, lower, np.nan), "true_band_upper": np.where(looked, upper, np.nan)}


def falling(cell, count):
    """DPO without RC: inside the head's band all along, while its updates bring both sides down."""
    wrong = cell.config.objective.name == "dpo" and not cell.config.calibration.enabled
    return {"in_band": np.ones(count, bool), "pathway_head": np.full(count, "iii", object)} if wrong else {}


@pytest.mark.parametrize(
    ("in_band", "looks_iii", "said"),
    [
        (1.0, 0.0, "head: 100% inside; update: iii in 0% of looks"),
        (0.1, 0.7, "head: 10% inside; update: iii in 70% of looks"),
        (1.0, 0.6, ""),
        (1.0, None, ""),
        (None, 0.0, ""),
        (1.0, math.nan, ""),
    ],
)
def test_two_accounts_disagree_where_half_of_the_run_lies_between_them(in_band, looks_iii, said):
    assert disagreement(in_band, looks_iii) == said


def test_a_status_from_before_looks_were_counted_is_read():
    assert parse_status(b'{"status": "ok", "in_band": 1.0}').looks_iii is None


def test_the_ledger_says_where_they_disagree_and_what_its_column_is(store):
    cells = [*runs.cells_of(runs.quickstart())[:2], *runs.cells_of(Experiment(name="x", run=LORA))]
    runs.write_runs(store, cells)
    for cell in cells:
        say(store.run(cell.run_id), in_band=1.0, looks_iii=0.0 if cell is not cells[1] else 0.9)
    ledger = build_ledger(cells, store, stopped={})
    assert [entry.note.partition(":")[0] for entry in ledger.cells] == ["head", "", "adapters"]
    assert ledger.notes()[0] == f"* {cells[0].label}: head: 100% inside; update: iii in 0% of looks"
    table = ledger_table(ledger, "x")
    assert "head band" in [column.header for column in table.columns]


def test_a_run_under_way_is_not_judged_yet(store):
    cell = runs.cells_of(runs.quickstart())[0]
    runs.make(store, cell, "running", steps=5)
    say(store.run(cell.run_id), in_band=1.0, looks_iii=0.0)
    assert build_ledger([cell], store, stopped={}).cells[0].note == ""


def test_many_notes_leave_room_for_the_table(store):
    experiment = runs.several_seeds(runs.quickstart(), tuple(range(5)))
    cells = runs.cells_of(experiment)
    for cell in cells:
        runs.make(store, cell, "ok")
        say(store.run(cell.run_id), in_band=1.0, looks_iii=0.0)
    notes = build_ledger(cells, store, stopped={}).notes()
    assert len(notes) == 21 and notes[-1] == "* and 10 more with a note, in ledger.json"


def test_findings_and_page_name_the_runs_that_disagree(store, monkeypatch):
    records_of(monkeypatch, falling)
    experiment = runs.quickstart()
    cells = runs.cells_of(experiment)
    runs.write_runs(store, cells)
    results = collect(store, cells)
    assert results[0].value(LOOKS_III) == 0.0
    assert results[0].bands_disagree == "head: 100% inside; update: iii in 0% of looks"
    named = overall(check_claims(compare(results)), results)[-1]
    assert named.startswith("The band at the head and the updates made tell ")
    assert "tiny-neox · dpo · no RC (head: 100% inside; update: iii in 0% of looks)" in named
    assert "The band at the head and the updates made disagree (head: 100%" in dynamics_sentence(results[0])
    assert "disagree" not in dynamics_sentence(results[1])
    page = build_report(store, experiment, cells, figures=False).html.read_text()
    assert page.count("and the updates made disagree (head: 100% inside; update: iii in 0% of looks)") == 1


def test_inside_is_judged_by_the_updates_where_looks_saw_them(store, monkeypatch):
    """The head has everything outside; the band of the update, which looks saw, has it inside with RC."""
    records_of(
        monkeypatch,
        lambda cell, count: {
            "in_band": np.zeros(count, bool),
            **looks(count, -9.0 if cell.config.calibration.enabled else 9.0, math.inf),
        },
    )
    cells = runs.cells_of(runs.quickstart())[:2]
    runs.write_runs(store, cells)
    (dpo,) = check_claims(compare(collect(store, cells)))
    inside = dpo.checks[0]
    assert (inside.claim, inside.verdict, inside.without) == ("inside the band of the update", "held", "not held")
    assert inside.text == "0% of steps without RC, 100% with it (at the head 0% and 0%)"


def test_adapters_are_called_adapters(store):
    experiment = Experiment(
        name="x", run={**runs.quickstart().run, **LORA}, grid={"calibration.enabled": [False, True]}
    )
    cells = runs.cells_of(experiment)
    runs.write_runs(store, cells)
    report = build_report(store, experiment, cells, figures=False)
    assert "In band, adapters (%)" in to_markdown(report.table)
    comparisons = compare(report.results)
    assert "at the adapters" in pathways_table(comparisons).title
    assert "Blue: the paper's band at the adapters" in draw_dynamics(comparisons[0], None).caption


def test_calibration_by_the_update_leaves_no_step_alone_because_of_the_head(store, monkeypatch):
    records_of(monkeypatch, lambda cell, count: {"skipped": ["inactive"] * count})
    grid = {"calibration": [{"enabled": True, "kind": kind} for kind in ("published", "update")]}
    cells = runs.cells_of(Experiment(name="x", run=runs.quickstart().run, grid=grid))
    runs.write_runs(store, cells)
    results = collect(store, cells)
    assert ["left 100% of steps alone" in dynamics_sentence(result) for result in results] == [True, False]
    table = pathways_table(compare(results))
    column = [column.key for column in table.columns].index("skipped_percent")
    assert [(row.entries[column].value, row.entries[column].words) for row in table.rows] == [(1.0, ""), (None, "–")]


def test_a_stretch_that_no_look_foresaw_is_no_interval():
    """Step 11 looks after a resumption without the last look: what moved until there is unknown, not nothing."""
    nan, steps = math.nan, 31
    at = np.arange(steps)
    looked = at % 10 == 0
    records = {
        "pathway_head": np.full(steps, "iii", object),
        "pathway_realised": np.where(looked & (at > 0), "iii", "").astype(object),
        "predicted_dz_w": np.where(looked & (at > 0), 1.0, nan),
        "predicted_dz_l": np.where(looked & (at > 0), -1.0, nan),
        "probe_z_w": np.where(looked, at, nan),
        "probe_z_l": np.where(looked, -at, nan),
        "fresh_drift_w": np.where(looked, 0.0, nan),
    }
    assert [interval.rows for interval in judged_intervals(records, 10, finished=False)] == [
        (0, 10),
        (10, 20),
        (20, 30),
    ]
    records["predicted_dz_w"][10] = records["predicted_dz_l"][10] = nan
    assert [interval.rows for interval in judged_intervals(records, 10, finished=False)] == [(20, 30)]


def drawn_band(store, monkeypatch, lower, upper):
    """What a panel writes, and where it fills in green."""
    records_of(monkeypatch, lambda cell, count: looks(count, lower, upper))
    cells = runs.cells_of(runs.quickstart())[:1]
    runs.write_runs(store, cells)
    said, filled = [], []
    text, fill = Axes.text, Axes.fill_between

    def note(axis, x, y, words, **settings):
        said.append(words)
        return text(axis, x, y, words, **settings)

    def shade(axis, *edges, **settings):
        filled.append((settings.get("label"), settings.get("where")))
        return fill(axis, *edges, **settings)

    monkeypatch.setattr(Axes, "text", note)
    monkeypatch.setattr(Axes, "fill_between", shade)
    (comparison,) = compare(collect(store, cells))
    assert draw_dynamics(comparison, None) is not None
    green = [(label, where) for label, where in filled if label and "update" in label]
    return said, green, band_limits(read(comparison.without.drawn()))


def test_an_empty_band_is_not_drawn_as_one(store, monkeypatch):
    said, green, _ = drawn_band(store, monkeypatch, 0.5, -0.5)
    assert green == [] and "band of the update: empty" in said


def test_a_band_far_away_is_said_to_be(store, monkeypatch):
    said, green, _ = drawn_band(store, monkeypatch, 90.0, math.inf)
    assert green == [] and "band of the update: off this axis" in said


def test_the_axis_has_room_for_a_band_that_is_near(store, monkeypatch):
    _, plain, (low, high) = drawn_band(store, monkeypatch, math.nan, math.nan)
    assert plain == []
    edge = high + 0.2 * (high - low)
    said, ((label, where),), (_, wider) = drawn_band(store, monkeypatch, low, edge)
    assert label.startswith("band of the update (") and where.all() and wider > edge and said == ["no records"]


def test_a_run_that_lost_its_winner_says_so_everywhere(store):
    experiment = runs.quickstart()
    cells = runs.cells_of(experiment)
    runs.write_runs(store, cells)
    for cell, drift in zip(cells, (WINNER_LOST - 0.2, WINNER_LOST, 3.0), strict=False):
        say(store.run(cell.run_id), winner_drift=drift)
    lost = "winner lost: the chosen answers of the probe set fell by 1.2 nats per token"
    assert winner_lost(RunStatus()) == winner_lost(RunStatus(winner_drift=WINNER_LOST)) == ""
    assert build_ledger(cells, store, stopped={}).cells[0].note == lost
    report = build_report(store, experiment, cells, figures=False)
    assert [result.note for result in report.results] == [lost, *[""] * 5]
    assert f"[a] {lost}." in report.table.notes and "| DPO \\[a\\] | w/o |" in to_markdown(report.table)
    findings = overall(check_claims(compare(report.results)), report.results)
    assert "1 of 6 runs lost their winner: the chosen answers are gone, whatever the margin." in findings
    block = report.html.read_text().partition(f'id="run-{cells[0].run_id}"')[2].partition("</details>")[0]
    assert f"<p>{lost}.</p>" in block
    assert AGREEMENT in report.results[0].metrics  # it is a result all the same
