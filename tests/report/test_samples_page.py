"""Samples in the report: side by side, flagged, escaped, and copied with a ledger."""

import json

from rcray.aggregate.collect import collect
from rcray.aggregate.exported import export_ledger
from rcray.aggregate.report import build_report
from rcray.records.samples import Answer, Sample, read_samples, write_samples
from tests.report import runs


def with_samples(store, cell):
    """A finished run whose trained model turns in circles where the start model answered."""
    run = runs.write_ok(store, cell)
    fine, loop = Answer("<b>ork</b> eth", 2, True, 0.0), Answer("ork ork ork", 128, False, 0.97, ("loop",))
    write_samples(run.samples, (Sample("r", "render <script>", "ork", (fine, fine), (fine, loop)),))
    content = json.loads(run.evaluation.read_text())
    for side, flagged in (("start", 0.0), ("trained", 0.5)):
        for name, value in (("tokens", 65.0), ("repetition", 0.25), ("flagged", flagged)):
            row = {"benchmark": "samples", "metric": f"{name}_{side}", "value": value, "stderr": 0.125, "n": 2}
            content["rows"].append(row)
    run.evaluation.write_text(json.dumps(content))
    return run


def test_texts_stand_side_by_side(store, tmp_path):
    experiment = runs.quickstart()
    cells = runs.cells_of(experiment)[:2]
    run = with_samples(store, cells[0])
    runs.write_ok(store, cells[1])
    report = build_report(store, experiment, cells, figures=False)
    page = report.html.read_text()
    assert page.count('<section id="samples">') == 1
    assert "1 flagged" in page
    assert "&lt;b&gt;ork&lt;/b&gt; eth" in page
    assert "render &lt;script&gt;" in page
    assert "ork ork ork …" in page
    assert '<span class="chip degenerate">loop</span>' in page
    table = next(path for path in report.tables if path.name == "samples.md").read_text()
    assert "| DPO | w/o | 65.0 ± 0.1 | 65.0 ± 0.1 | 25.0 ± 12.5 | 25.0 ± 12.5 | 0.0 ± 12.5 | 50.0 ± 12.5 |" in table
    assert "not evaluated" in table  # the other run was not asked for samples
    assert not any("benchmarks" in path.name for path in report.tables)  # samples are no benchmark

    ledger = export_ledger(tmp_path / "ledger", [(experiment, cells)], collect(store, cells))
    copied = ledger / "runs" / cells[0].run_id / "samples.json"
    assert read_samples(copied) == read_samples(run.samples)


def test_a_report_without_samples_does_not_speak_of_them(store):
    cells = runs.cells_of(runs.quickstart())[:1]
    runs.write_runs(store, cells)
    report = build_report(store, runs.quickstart(), cells, figures=False)
    assert 'id="samples"' not in report.html.read_text()
    assert not any(path.name.startswith(("samples", "movement", "frontier")) for path in report.tables)
