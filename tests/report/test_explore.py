"""The page to explore: what it is made of, and that nothing in it is lost or run."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest

from rcray.aggregate.collect import collect
from rcray.aggregate.command import Request, run_report
from rcray.aggregate.explore.cells import table_of
from rcray.aggregate.explore.command import watch_experiments
from rcray.aggregate.explore.curves import curves_of, pack
from rcray.aggregate.exported import export_ledger
from rcray.aggregate.frame import ACCURACY, DRIFT_L, DRIFT_W, MARGIN
from rcray.aggregate.groups import difference
from rcray.aggregate.report import build_report
from rcray.aggregate.summary import judged_intervals
from rcray.config import Experiment
from rcray.config.search import SearchConfig
from rcray.records.displaced import read_displaced
from rcray.records.items import Items, write_items
from rcray.store import Store
from tests.report import runs
from tests.report.explored import HOSTILE, KEY, SEEDS, experiment, made_records, payload, unpacked, write_explored

SPACE = {"train.learning_rate": {"low": 1e-6, "high": 1e-3}}


def test_it_stands_beside_the_report_and_loads_nothing(swept):
    store, _, built = swept
    page = built.explore.read_text()
    assert built.explore == built.html.with_name("explore.html") and 'href="explore.html"' in built.html.read_text()
    assert "https://" not in page and page.count("http://") == page.count('"http://www.w3.org/2000/svg"') == 1
    assert str(store.root) not in page


def test_no_text_of_a_store_is_markup(swept):
    """Prompts, tokens, answers: a page that is opened from a disk has no other wall than this."""
    page = swept[2].explore.read_text()
    assert HOSTILE in payload(page)["details"]["texts"][0]["prompt"], "it is there"
    assert page.count("</script>") == 2 and "<img" not in page and 'onerror=\\"' in page
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page).group(1)
    script = page[page.rindex("<script>") + len("<script>") : page.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#39;sha256-{digest}&#39;;" in policy and "unsafe" not in policy and "connect-src" not in policy
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", script)


def test_equal_stores_give_equal_pages(own):
    store, cells = own
    written = [build_report(store, experiment(), cells, figures=False).explore.read_bytes() for _ in range(2)]
    assert written[0] == written[1]


def test_what_a_page_does_not_hold_is_left_to_the_server(own, monkeypatch):
    store, cells = own
    for cell in cells:
        runs.add_benchmarks(store.run(cell.run_id), {"arc_challenge/acc_norm": 0.25})

    def held(most):
        monkeypatch.setattr("rcray.aggregate.explore.cells._DIFFERENCES", most)
        return payload(build_report(store, experiment(), cells, figures=False).explore.read_text())["differences"]

    metrics = held(10**6)["metrics"]
    assert metrics[-1] == "arc_challenge/acc_norm" and held(15 * len(metrics))["note"] == ""  # 15 pairs of six settings
    fewer = held(15 * len(metrics) - 1)
    assert fewer["metrics"] == metrics[:-1] and unpacked(fewer["values"]).size == 15 * (len(metrics) - 1) * 3
    assert (
        fewer["note"]
        == "Differences of benchmarks between 6 settings are more than a file holds; rcray watch has them."
    )
    none = held(15)
    assert none["metrics"] == [] and unpacked(none["values"]).size == 0 and none["note"].startswith("Differences betw")
    monkeypatch.setattr("rcray.aggregate.explore.page.MOST_RUNS", 11)
    page = build_report(store, experiment(), cells, figures=False).explore.read_text()
    assert "12 runs are more than a page holds (11): rcray watch serves them" in page and "<script" not in page


def test_settings_are_objective_by_calibration_with_their_seeds(swept):
    head = payload(swept[2].explore.read_text())["head"]
    groups = head["groups"]
    assert [(group["objective"], group["calibration"]) for group in groups[:2]] == [
        ("DPO", "none"),
        ("DPO", "published"),
    ]
    assert len(groups) == 6 and all(len(group["runs"]) == len(SEEDS) for group in groups)
    assert [field["path"] for field in head["fields"]] == ["objective", "calibration"]
    accuracy = [number["key"] for number in head["numbers"]].index(ACCURACY)
    value, spread, half = groups[0]["numbers"][accuracy]
    assert 0 < value <= 1 and spread >= 0 and half >= 0


def test_only_fields_that_vary_by_themselves_are_axes(tmp_path):
    """An objective's own constants say nothing that its name does not; a rate that is swept does."""
    cells = runs.cells_of(
        Experiment(
            name="x",
            grid={"objective": ["dpo", "simpo"], "train.learning_rate": [1e-5, 1e-3], "train.seed": [1, 2]},
        )
    )
    table = table_of(collect(Store.open(tmp_path), cells), "nats")
    assert [field["path"] for field in table["fields"]] == ["objective", "train.learning_rate"]
    assert [field["log"] for field in table["fields"]] == [False, True]
    assert table["groups"][0]["label"] == "DPO · no RC · learning_rate=1e-05"
    assert {tuple(group["values"]) for group in table["groups"]} == {
        (name, rate) for name in ("DPO", "SimPO") for rate in (1e-5, 1e-3)
    }


def test_curves_keep_means_and_extremes(swept):
    cell = swept[1][0]
    records = made_records(cell, 200)
    fine, coarse = (curves_of(records, 200, 10, points) for points in (240, 20))
    assert np.allclose(unpacked(fine["y"]["log_r"][1]), records["log_r"]) and len(fine["y"]["log_r"]) == 2
    kind, means, least, greatest = coarse["y"]["loss"]
    assert coarse["width"] == 10 and list(unpacked(coarse["x"][kind])) == list(range(10, 201, 10))
    windows = records["loss"].reshape(20, 10)
    assert np.allclose(unpacked(means), windows.mean(axis=1)), "a mean of its bucket"
    assert np.allclose(unpacked(least), windows.min(axis=1)) and unpacked(greatest).max() == 9.0, "no spike is lost"
    probes = np.flatnonzero(~np.isnan(records["probe_z_w"]))
    assert np.allclose(unpacked(fine["y"]["probe_z_w"][1]), records["probe_z_w"][probes] - records["probe_z_w"][0])
    assert np.isinf(unpacked(fine["y"]["true_band_upper"][1])).sum() == 1, "an open edge stays open"


def test_a_foreseen_move_is_the_one_that_tables_count(swept):
    records = made_records(swept[1][0], 200)
    shown = unpacked(curves_of(records, 200, 10)["i"]).reshape(-1, 8)
    judged = judged_intervals(records, 10, finished=True)
    assert len(shown) == len(judged) == 19
    start, end, *_ = shown[3]
    by_hand = [records[f"probe_z_{side}"][int(end) - 1] - records[f"probe_z_{side}"][int(start) - 1] for side in "wl"]
    assert np.allclose(shown[3, 4:6], by_hand)
    assert np.allclose(shown[3, 2:4], judged[3].move)


def test_numbers_pass_whole():
    assert list(unpacked(pack([1.5, -np.inf, 1e300]))) == [1.5, -np.inf, np.float32(3e38)] and pack([]) == ""
    assert np.isnan(unpacked(pack([np.nan])))[0]


def test_every_difference_is_the_reports(swept):
    """Pinned to any setting, the page shows what aggregate/groups.py says, to the sign."""
    store, cells, built = swept
    said = payload(built.explore.read_text())
    metrics, groups = said["differences"]["metrics"], said["head"]["groups"]
    values = unpacked(said["differences"]["values"]).reshape(-1, len(metrics), 3)
    assert len(values) == 15
    watch = watch_experiments(store, [([], experiment(), cells)])
    served = (watch.state(), watch.differences(groups[1]["key"]))[1]
    from rcray.aggregate.explore.cells import rows_of

    settings = {row.key: row.setting for row in rows_of(collect(store, cells))}
    for (first, second), row in zip(((0, 1), (1, 3)), (0, 5 + 1), strict=True):
        before, after = settings[groups[first]["key"]], settings[groups[second]["key"]]
        for m, metric in enumerate(metrics):
            expected = difference(before, after, metric)
            found = values[row, m]
            if expected is None:
                assert np.isnan(found[0])
                continue
            assert found[:2] == pytest.approx([expected.value, expected.half_width], rel=1e-5, nan_ok=True), metric
            assert bool(found[2]) == expected.paired
    at = metrics.index(DRIFT_W)
    assert values[0, at, 2] == 1.0, "item by item"
    assert served["of"][groups[0]["key"]][at][0] == pytest.approx(-values[0, at, 0], rel=1e-5)


def test_the_worst_pairs_are_there_token_by_token(swept, tmp_path):
    store, cells, built = swept
    said = payload(built.explore.read_text())
    detail = said["details"]["runs"][cells[0].run_id]
    text, start, trained, *_ = detail["displaced"][0]
    row = said["details"]["texts"][text]["row"]
    names, drift_w, _ = detail["pairs"]
    drifts = unpacked(drift_w)
    assert said["details"]["names"][names][int(drifts.argmin())] == row, "the worst comes first"
    assert (unpacked(trained) - unpacked(start)).sum() == pytest.approx(drifts.min(), abs=1e-3)
    assert len(said["details"]["names"]) == 1, "names that runs share are written once"
    assert detail["samples"][0]["trained"][1]["flags"] == ["loop"]
    ledger = export_ledger(tmp_path / "ledger", [(experiment(), cells)], collect(store, cells))
    assert len(read_displaced(Store.at(ledger).run(cells[0].run_id).displaced(KEY))) == 6


def test_a_damaged_file_is_said_and_spares_the_others(own):
    store, cells = own
    store.run(cells[0].run_id).displaced(KEY).write_bytes(b"PAR1 no")
    said = payload(build_report(store, experiment(), cells, figures=False).explore.read_text())["details"]["runs"]
    assert "damaged" in said[cells[0].run_id]["problem"] and said[cells[1].run_id]["displaced"]


def test_fifty_settings_have_their_differences_of_benchmarks(tmp_path):
    """A pinned baseline has them however many settings a usual grid has."""
    store = Store.open(tmp_path / "store")
    grid = {"calibration.enabled": [False, True], "train.learning_rate": [i * 1e-6 for i in range(1, 26)]}
    made = Experiment(name="x", grid=grid)
    cells = runs.cells_of(made)
    documents = tuple(f"task/{i}" for i in range(40))
    for i, cell in enumerate(cells):
        run = runs.write_ok(store, cell, steps=20)
        right = np.random.default_rng(i).random(40) < 0.5
        runs.add_benchmarks(run, {"arc_challenge/acc_norm": float(right.mean())})
        evaluation = json.loads(run.evaluation.read_text())
        run.evaluation.write_text(json.dumps({**evaluation, "keys": {"arc_challenge": "k"}}))
        write_items(run.items("k"), Items(documents, ("task",) * 40, {"acc_norm": right.astype(float)}))
    said = payload(build_report(store, made, cells, figures=False).explore.read_text())
    assert len(said["head"]["groups"]) == 50 and said["differences"]["note"] == ""
    at = said["differences"]["metrics"].index("arc_challenge/acc_norm")
    values = unpacked(said["differences"]["values"]).reshape(50 * 49 // 2, -1, 3)[:, at]
    assert np.isfinite(values).all() and (values[:, 2] == 1).all(), "document by document"


def test_no_sum_is_held_against_a_mean(tmp_path):
    """Sums of log-probabilities are in nats, means in nats/token: an experiment may have both."""
    store = Store.open(tmp_path / "store")
    made = experiment(likelihood=["sum", "mean"])
    cells = runs.cells_of(made, objective="dpo")
    for cell in cells:
        write_explored(store, cell)
    said = payload(build_report(store, made, cells, figures=False).explore.read_text())
    head, metrics = said["head"], said["differences"]["metrics"]
    assert head["unit"] == "nats or nats/token"
    assert {number["unit"] for number in head["numbers"] if number["likelihood"]} == {head["unit"]}
    assert any("no difference of Δz_w" in note for note in head["notes"])
    units = [said["runs"][group["runs"][0]]["unit"] for group in head["groups"]]
    assert sorted(units) == ["nats", "nats", "nats/token", "nats/token"]
    values = iter(unpacked(said["differences"]["values"]).reshape(6, len(metrics), 3))
    for i, one in enumerate(units):
        for other in units[i + 1 :]:
            found = dict(zip(metrics, next(values), strict=True))
            assert np.isfinite(found[ACCURACY][0]), "a share is a share"
            for metric in (DRIFT_W, DRIFT_L, MARGIN):
                assert np.isfinite(found[metric][0]) == (one == other), metric


def test_what_a_table_or_a_file_leaves_out_is_said(own, monkeypatch):
    store, cells = own
    for cell in cells:
        runs.add_benchmarks(store.run(cell.run_id), {f"task_{i}/acc": 0.5 for i in range(11)})
    monkeypatch.setattr("rcray.aggregate.explore.details._MANY_RUNS", 11)
    said = payload(build_report(store, experiment(), cells, figures=False).explore.read_text())
    assert "3 of 11 benchmarks have no column here; the report has all of them." in said["head"]["notes"]
    assert said["details"]["most"] == 4 == len(said["details"]["runs"][cells[0].run_id]["displaced"])


def test_a_page_says_why_it_offers_no_command(swept, tmp_path):
    store, cells, built = swept
    assert payload(built.explore.read_text())["head"]["no_command"] == ""
    ledger = export_ledger(tmp_path / "ledger", [(experiment(), cells)], collect(store, cells))
    page = run_report(Request(ledger=ledger, figures=False)).explore
    assert "An exported ledger has results" in payload(page.read_text())["head"]["no_command"]


def test_a_search_takes_no_choice_of_cells(own):
    store, cells = own
    searching = experiment().model_copy(update={"search": SearchConfig(method="optuna", samples=2, space=SPACE)})
    page = build_report(store, searching, cells, figures=False, command=["rcray", "sweep", "x.yaml"]).explore
    assert payload(page.read_text())["head"]["commands"][0]["searches"]
