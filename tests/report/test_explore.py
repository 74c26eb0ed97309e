"""The page to explore: what it is made of, that nothing in it is lost or run, and the server that feeds it."""

import base64
import hashlib
import http.client
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import psutil
import pytest
import yaml

from rcray.aggregate.collect import collect
from rcray.aggregate.explore.cells import table_of
from rcray.aggregate.explore.command import watch_experiments, watch_store
from rcray.aggregate.explore.curves import curves_of, pack, step_records
from rcray.aggregate.explore.server import PageServer
from rcray.aggregate.exported import export_ledger
from rcray.aggregate.frame import ACCURACY, DRIFT_W
from rcray.aggregate.groups import difference
from rcray.aggregate.report import build_report
from rcray.aggregate.summary import judged_intervals
from rcray.config import Experiment
from rcray.errors import StoreError
from rcray.files import write_json
from rcray.records.displaced import read_displaced
from rcray.records.ledger import Ledger, LedgerEntry, write_ledger
from rcray.records.live import FILE as LIVE
from rcray.store import Store
from tests.report import runs
from tests.report.explored import HOSTILE, KEY, made_records, write_explored

SEEDS = (42, 43)


def experiment(**grid) -> Experiment:
    made = runs.several_seeds(runs.quickstart(), SEEDS)
    return made.model_copy(update={"grid": {**made.grid, **grid}})


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Twelve finished runs: three objectives, RC off and on, two seeds."""
    store = Store.open(tmp_path_factory.mktemp("explored"))
    cells = runs.cells_of(experiment())
    for cell in cells:
        write_explored(store, cell)
    built = build_report(store, experiment(), cells, figures=False, command=["rcray", "sweep", "my grid.yaml"])
    return store, cells, built


@pytest.fixture
def own(swept, tmp_path):
    """A copy that a test may change."""
    store, cells, _ = swept
    shutil.copytree(store.root, tmp_path / "store")
    return Store.open(tmp_path / "store"), cells


def payload(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL).group(1))


def unpacked(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f4")


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
    monkeypatch.setattr("rcray.aggregate.explore.cells._PAIRS", 14)  # of six settings there are 15
    differences = payload(build_report(store, experiment(), cells, figures=False).explore.read_text())["differences"]
    assert differences["metrics"] == [] and unpacked(differences["values"]).size == 0
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


def note_progress(run, pid=None, done=37, total=200):
    process = psutil.Process(pid or os.getpid())
    write_json(
        run.path / ".progress.json",
        {"phase": "training", "done": done, "total": total, "host": platform.node(), "pid": process.pid,
         "born": process.create_time(), "updated": time.time()},
    )  # fmt: skip


def test_rows_of_a_running_cell_are_read_as_they_come(own):
    """Parts hold what a checkpoint vouches for; the rest is in the live rows, and a torn line is none."""
    store, cells = own
    run = runs.make(store, cells[0], "running", steps=30)
    runs.write_dynamics(run, cells[0], 30, 1, columns={k: v[:30] for k, v in made_records(cells[0], 200).items()})
    for part in run.dynamics.glob("*00000200.parquet"):
        part.unlink()
    (run.path / ".progress.json").unlink(missing_ok=True)
    watch = watch_experiments(store, [([], experiment(), cells)])
    before = watch.state()
    assert before["runs"][cells[0].run_id]["state"] == "pending", "nobody is at it"
    assert before["runs"][cells[0].run_id]["interrupted"]
    note_progress(run)
    rows = [{"step": step, "loss": step / 10, "log_r": 0.5} for step in (30, 31, 32)]
    (run.path / LIVE).write_text("\n".join(map(json.dumps, rows)) + '\n{"step": 33, "lo')
    watch._looked = 0.0
    after = watch.state(before["version"])
    assert list(after["runs"]) == [cells[0].run_id], "only what changed"
    now = after["runs"][cells[0].run_id]
    assert (now["state"], now["step"], now["doing"]) == ("running", 32, "training 37/200")
    assert list(unpacked(now["curves"]["x"]["d"]))[-3:] == [30, 31, 32]
    assert unpacked(now["curves"]["y"]["loss"][1])[-1] == pytest.approx(3.2)
    assert len(step_records(run)["step"]) == 30, "a report has what is vouched for"
    watch._looked = 0.0
    assert watch.state(after["version"])["runs"] == {}


def test_a_killed_cell_is_not_running_and_a_failed_one_says_why(own):
    store, cells = own
    killed = runs.make(store, cells[0], "running", steps=30)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    note_progress(killed, child.pid)
    runs.make(store, cells[1], "failed", error=f"out of luck {HOSTILE}", steps=30)
    watch = watch_experiments(store, [([], experiment(), cells)])
    assert watch.state()["runs"][cells[0].run_id]["state"] == "running"
    child.kill()
    child.wait()
    watch._looked = 0.0
    state = watch.state()
    assert state["runs"][cells[0].run_id]["state"] == "pending"
    assert state["runs"][cells[1].run_id]["state"] == "failed"
    assert state["runs"][cells[1].run_id]["error"].startswith("out of luck")
    words = next(group["numbers"][0] for group in state["head"]["groups"] if cells[0].run_id in group["runs"])
    assert words == "pending/failed", "a word, never a number"


@contextmanager
def serving(watch):
    server = PageServer(watch, 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def get(server, path, host=None, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{server.server_port}"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_the_server_answers_its_own_page_and_nobody_else(swept):
    store, cells, _ = swept
    before = sorted(store.root.rglob("*"))
    with serving(watch_experiments(store, [(["rcray", "sweep", "x.yaml"], experiment(), cells)])) as server:
        assert server.server_address[0] == "127.0.0.1"
        status, page = get(server, "/")
        assert status == 200 and b"connect-src &#39;self&#39;" in page and b'data-live="yes"' in page
        state = json.loads(get(server, "/state")[1])
        assert len(state["runs"]) == 12 and state["head"]["commands"][0]["text"] == "rcray sweep x.yaml"
        assert json.loads(get(server, f"/state?after={state['version']}")[1])["runs"] == {}
        run = cells[0].run_id
        assert json.loads(get(server, f"/details/{run}")[1])["runs"][run]["displaced"]
        assert len(unpacked(json.loads(get(server, f"/records/{run}")[1])["y"]["loss"][1])) == 200
        assert get(server, "/state", host="evil.example:80")[0] == 403, "a name that somebody else rebound"
        for path in (
            "/details/../../x",
            "/details/%2e%2e%2f",
            "/runs",
            "/records/none",
            "/differences/none",
            "/state/x",
        ):
            assert get(server, path)[0] == 404, path
        assert get(server, "/state", method="POST")[0] == 501
    assert sorted(store.root.rglob("*")) == before, "it only reads"


def test_a_store_alone_is_enough(own):
    store, cells = own
    folder = store.experiment("quickstart")
    write_ledger(folder, Ledger(tuple(LedgerEntry(cell.run_id, cell.label) for cell in cells)))
    for cell in cells[:3]:
        store.run(cell.run_id).config.write_text(yaml.safe_dump(cell.config.model_dump(mode="json")))
    state = watch_store(store).state()
    assert set(state["runs"]) == {cell.run_id for cell in cells[:3]}
    assert state["head"]["description"].startswith("9 cells were not started")
    with pytest.raises(StoreError, match="nothing was swept here"):
        watch_store(Store.at(store.root / "nothing"))
