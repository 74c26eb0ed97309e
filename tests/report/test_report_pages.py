import csv
import dataclasses
import math
import os
import re
import subprocess
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import runs

from rcray.aggregate.collect import collect
from rcray.aggregate.exported import export_ledger, exported_experiments
from rcray.aggregate.figures import draw_all
from rcray.aggregate.findings import check_claims, overall
from rcray.aggregate.groups import compare
from rcray.aggregate.report import build_report
from rcray.aggregate.tables import to_markdown
from rcray.config.objectives import Cpo
from rcray.config.objectives.base import Formula
from rcray.files import write_json
from rcray.records.ledger import write_stopped
from rcray.store import Store

HERE = Path(__file__).parent
SUFFIXES = ("png", "svg", "pdf")
HOSTILE = '<script>alert("x")</script> & 50%_of $\\alpha^2$ {~#}'


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    store = Store.open(tmp_path_factory.mktemp("finished"))
    experiment = runs.quickstart()
    cells = runs.cells_of(experiment)
    runs.write_runs(store, cells)
    return store, experiment, cells, build_report(store, experiment, cells)


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen, self.open, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def _parse(page: str) -> _Tags:
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    return tags


def test_everything_is_written(finished):
    store, _, _, report = finished
    folder = store.experiment("quickstart")
    assert report.html == folder / "report.html"
    tables = [
        "results",
        "runtime",
        "pathways",
        "pathway-agreement",
        "pathway-confusion",
        "coefficients",
        "regimes",
    ]
    assert [path.name for path in report.tables] == [f"{name}.{s}" for name in tables for s in ("md", "tex", "csv")]
    names = ["overview", "pathway-plane", "pathways-and-band-tiny-neox", "cosine-tiny-neox"]
    names += ["likelihoods-tiny-neox", "likelihoods-batch-tiny-neox"]
    names += [f"dynamics-tiny-neox-{name}" for name in ("dpo", "cpo", "dil-bce")]
    assert [path.name for path in report.figures] == [
        f"{name}.{suffix}" for name in names for suffix in ("png", "svg", "pdf")
    ]
    for path in (report.html, *report.tables, *report.figures):
        assert path.stat().st_size > (100 if path.parent.name == "tables" else 500)
    assert not list(folder.rglob(".*"))  # no temporary file is left
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in report.figures if path.suffix == ".png")


def test_the_frame_is_written_whole(store):
    """One row per run and metric, under the keys that evaluation.json and a search use; nothing of what broke."""
    experiment = runs.quickstart()
    cells = runs.cells_of(experiment)[:2]
    runs.add_benchmarks(runs.write_ok(store, cells[0]), {"arc/acc_norm": 0.25, "own/perplexity": 12.0, "own/acc": None})
    runs.write_evaluation(runs.make(store, cells[1], "failed", error="it broke", steps=30), cells[1])
    build_report(store, experiment, cells, figures=False)
    lines = (store.experiment(experiment.name) / "measurements.csv").read_text().splitlines()
    frame = {row["metric"]: row for row in csv.DictReader(lines)}
    assert {row["run"] for row in frame.values()} == {cells[0].run_id}
    assert store.run(cells[0].run_id).scores().keys() <= frame.keys()
    kept = {key: (frame[key]["value"], frame[key]["n"], frame[key]["unit"], frame[key]["status"]) for key in frame}
    assert kept["preference/accuracy"] == ("0.8125", "256", "share", "ok")
    assert kept["arc/acc_norm"] == ("0.25", "1172", "share", "ok")
    assert kept["own/perplexity"] == ("12.0", "1172", "", "ok")
    assert kept["own/acc"] == ("", "1172", "share", "degenerate")
    assert kept["dynamics/in_band"] == ("0.15", "200", "share", "ok")
    assert kept["preference/drift_w"][2] == "nats"


def test_equal_runs_give_equal_bytes(finished, tmp_path):
    """Tables, page and every format of every figure, in a process of its own: hash seeds and dates must not show."""
    store, _, _, report = finished
    paths = (report.html, *report.tables, *report.figures)
    before = [path.read_bytes() for path in paths]
    script = (
        "import runs; from rcray.aggregate.report import build_report; from rcray.store import Store\n"
        f"experiment = runs.quickstart(); cells = runs.cells_of(experiment)\n"
        f"build_report(Store.open({str(store.root)!r}), experiment, cells)"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]), "PYTHONHASHSEED": "7"},
        cwd=tmp_path,
    )
    assert [path.name for path in paths if path.read_bytes() != before[paths.index(path)]] == []
    assert b"<dc:date>" not in b"".join(before)
    assert b"CreationDate" not in b"".join(before)


def test_the_page_loads_nothing(finished):
    report = finished[3]
    page = report.html.read_text()
    assert "http://" not in page
    assert "https://" not in page
    tags = _parse(page)
    assert not {"link", "iframe", "object", "embed"} & set(tags.seen)
    for link in tags.links:
        beside = ("tables/", "figures/", "../../runs/", "explore.html")
        assert link.startswith(("#", "data:image/svg+xml;base64,", *beside)), link[:80]


def test_relative_links_exist(finished):
    report = finished[3]
    for link in _parse(report.html.read_text()).links:
        if not link.startswith(("#", "data:")):
            assert (report.html.parent / link).exists(), link
        elif link.startswith("#"):
            assert f'id="{link[1:]}"' in report.html.read_text()


def test_the_page_names_no_path_of_this_machine(finished):
    store, _, _, report = finished
    assert str(store.root) not in report.html.read_text()


def test_hostile_text_is_shown_not_run(store):
    experiment = runs.quickstart().model_copy(update={"title": HOSTILE, "description": HOSTILE})
    cells = runs.cells_of(experiment)[:2]
    runs.write_runs(store, cells)
    runs.make(store, cells[1], "failed", error=HOSTILE, steps=30)
    report = build_report(store, experiment, cells, figures=False)
    page = report.html.read_text()
    assert '<script>alert("x")' not in page
    assert page.count("<script>") == 1
    assert page.count("&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt; &amp; 50%_of") >= 4
    _parse(page)
    latex = report.tables[1].read_text()
    assert r'\caption{\textless{}script\textgreater{}alert("x")' in latex
    assert r"\& 50\%\_of \$\textbackslash{}alpha\textasciicircum{}2\$ \{\textasciitilde{}\#\}." in latex
    assert "<script>" not in report.tables[0].read_text().replace("\\<", "")


@pytest.mark.parametrize("status", ["failed", "oom", "degenerate", "running"])
def test_a_cell_without_a_result_is_a_word_everywhere(store, status):
    experiment = runs.quickstart()
    cells = runs.cells_of(experiment)[:2]
    runs.write_ok(store, cells[0])
    runs.make(store, cells[1], status, error="it broke", steps=30)
    # Even metrics that were written before it broke are not shown.
    runs.write_evaluation(store.run(cells[1].run_id), cells[1])
    report = build_report(store, experiment, cells, figures=False)
    row = report.tables[0].read_text().splitlines()[5]
    assert row == "| DPO | w/ | " + " | ".join([status] * 10) + " |"
    fields = report.tables[2].read_text().splitlines()[2].split(",")
    assert fields[:3] == ["tiny-neox", "DPO", "w/"]
    assert fields[3:5] == [status, "0 of 1"]
    assert set(fields[5:]) == {status}
    page = report.html.read_text()
    assert f'<span class="chip {status}">1 {status}</span>' in page
    assert f"No comparison: the cell with RC is {status}." in page
    assert "it broke" in page


def test_an_objective_that_rcray_does_not_know_breaks_no_report(store, monkeypatch):
    """A user's own by import path, whose module is not even here, and one of the zoo with symbols of its own."""
    strange = dataclasses.replace(Cpo.traits, d_w=Formula("?! ξ(", r"\xi"), d_l=None)
    monkeypatch.setattr(Cpo, "traits", strange)
    own = {"name": "nowhere.to_be_found:squared_hinge", "params": {"ξ": 2.0}}
    experiment = runs.quickstart().model_copy(
        update={"grid": {"objective": [own, "cpo"], "calibration.enabled": [False, True]}}
    )
    cells = runs.cells_of(experiment)
    for cell in cells:
        runs.add_benchmarks(runs.write_ok(store, cell), {"arc/acc_norm": 0.5})
    report = build_report(store, experiment, cells, figures=False)
    assert {result.status for result in report.results} == {"ok"}
    tables = {path.name: path.read_text() for path in report.tables}
    for name in ("results.md", "benchmarks.tex", "runtime.csv", "coefficients.md", "pathways.md"):
        assert "squared" in tables[name], name
    assert "squared_hinge" in report.html.read_text()


def test_what_a_search_stopped_is_said_to_be_stopped(store):
    """In its own experiment; to another one that has the same run, it is unfinished."""
    experiment = runs.quickstart()
    cells = runs.cells_of(experiment)
    for cell in cells[1:]:
        runs.write_ok(store, cell)
    runs.make(store, cells[0], "pending", steps=20)
    write_stopped(store.experiment(experiment.name), cells[0].run_id, "ASHA stopped it at step 20")
    report = build_report(store, experiment, cells, figures=False)
    assert [result.status for result in report.results] == ["stopped", *["ok"] * 5]
    assert "stopped" in (store.experiment(experiment.name) / "tables" / "results.md").read_text()
    assert "ASHA stopped it at step 20" in report.html.read_text()
    other = build_report(store, experiment.model_copy(update={"name": "other"}), cells, figures=False)
    assert other.results[0].status == "pending"


def test_a_run_that_was_adjusted_has_a_footnote(store, tmp_path):
    """Also in a ledger that was exported."""
    experiment, note = runs.quickstart(), "micro-batch 8 -> 4 after running out of memory"
    cells = runs.cells_of(experiment)
    runs.write_runs(store, cells)
    write_json(store.run(cells[1].run_id).adjusted, {"asked": 8, "used": 4, "note": note})
    report = build_report(store, experiment, cells, figures=False)
    _, row, *_ = [line for line in to_markdown(report.table).splitlines() if line.startswith("| DPO")]
    assert row.startswith("| DPO \\[a\\] | w/ |"), row
    assert [line for line in report.table.notes if line.startswith("[a]")] == [f"[a] {note}."]

    export_ledger(tmp_path / "ledger", [(experiment, cells)], report.results)
    ledger = Store.at(tmp_path / "ledger")
    ((_, exported),) = exported_experiments(ledger)
    assert [result.note for result in collect(ledger, exported)] == ["", note, "", "", "", ""]


def test_nothing_started_yet(store):
    experiment = runs.quickstart()
    report = build_report(store, experiment, runs.cells_of(experiment))
    page = report.html.read_text()
    assert report.figures == ()
    assert "6 pending" in page
    assert "No cell has step records yet." in page
    assert report.tables[0].read_text().count("| pending |") >= 6
    _parse(page)


def test_files_of_cells_no_longer_there_are_removed(store):
    experiment = runs.quickstart()
    cells = runs.cells_of(experiment)[:2]
    runs.write_runs(store, cells)
    folder = store.experiment("quickstart")
    stale = [folder / "figures" / "dynamics-tiny-neox-cpo.svg", folder / "tables" / "main.tex"]
    for path in stale:
        path.parent.mkdir(parents=True)
        path.write_text("of an earlier report")
    report = build_report(store, experiment, cells, figures=False)
    assert not any(path.exists() for path in stale)
    assert sorted(report.tables) == sorted((folder / "tables").iterdir())


@pytest.mark.parametrize(("steps", "value"), [(1, math.nan), (40, math.inf)])
def test_figures_of_strange_records(store, monkeypatch, steps, value):
    """No finite ratio or cosine, an unbounded band throughout, no probe, a single step."""
    plain = runs.dynamics

    def strange(cell, count):
        columns = plain(cell, count)
        empty = np.full(count, np.nan)
        edges = {"band_lower": np.full(count, -value), "band_upper": np.full(count, value)}
        ratios = {name: empty for name in ("log_r", "log_r_base", "log_r_star", "rho")} if math.isnan(value) else {}
        return columns | edges | ratios | {"probe_z_w": empty, "probe_z_l": empty, "pathway_realised": [""] * count}

    monkeypatch.setattr(runs, "dynamics", strange)
    experiment = runs.quickstart()
    cells = runs.cells_of(experiment)[:2]
    for cell in cells:
        runs.write_ok(store, cell, steps)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plots = list(draw_all(compare(collect(store, cells)), [], "nats"))
    names = ["overview", "cosine-tiny-neox", "likelihoods-tiny-neox", "likelihoods-batch-tiny-neox"]
    names += ["dynamics-tiny-neox-dpo"]
    if math.isinf(value):  # ratios and cosines are there: the schematic can be drawn
        names.insert(1, "pathways-and-band-tiny-neox")
    assert [plot.name for plot in plots] == names


def test_findings_say_what_held_and_what_did_not(store):
    cells = runs.cells_of(runs.quickstart())
    runs.write_runs(store, cells)
    results = collect(store, cells)
    dpo, cpo, dil = check_claims(compare(results))
    assert [check.verdict for check in cpo.checks] == ["held", "held", "held", "held"]
    assert [check.text for check in cpo.checks] == [
        "4% of steps without RC, 100% with it",
        "z_w +6.3 nats without RC, +1.9 with it",
        "z_l +4.1 nats without RC, −2.0 with it",
        "70.3% without RC, 79.3% with it (+9.0 points)",
    ]
    assert [check.without for check in dpo.checks[:3]] == ["not held", "not held", "held"]
    assert dil.checks[0].text == "100% of steps without RC, 100% with it; so it was without RC"
    assert dil.checks[3].verdict == "unclear"
    lines = overall([dpo, cpo, dil], results)
    assert lines[:3] == [
        "With RC at least 90% of updates lay inside the band at the head in 3 of 3 comparisons (without RC: 1).",
        "With RC the winner was preserved in 3 of 3 comparisons (without RC: 2), and the loser suppressed in 3 of 3 "
        "comparisons (without RC: 2).",
        "RC raised held-out accuracy in 1 of 3, lowered it in 0, and made no clear difference in 2.",
    ]
    assert re.fullmatch(r"The pathway predicted .* in \d+% of 114 intervals between its measurements\.", lines[3])


def test_findings_admit_where_rc_did_harm(store, monkeypatch):
    swapped = {(name, not rc): outcome for (name, rc), outcome in runs.OUTCOMES.items()}
    monkeypatch.setattr(runs, "OUTCOMES", swapped)
    cells = runs.cells_of(runs.quickstart())
    runs.write_runs(store, cells)
    cpo = check_claims(compare(collect(store, cells)))[1]
    assert [check.verdict for check in cpo.checks[2:]] == ["not held", "not held"]
    assert cpo.checks[2].text == "z_l −2.0 nats without RC, +4.1 with it: better without RC"
    assert cpo.checks[3].text == "79.3% without RC, 70.3% with it (−9.0 points): lower with RC"
