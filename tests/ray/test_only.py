"""`rcray sweep FILE --only ...`, as the page to explore gives it: some cells are run, nothing of the others is lost."""

import json
import re

import pytest

from rcray.config import load_experiment
from rcray.sweep.grid import expand
from tests.ray.sweeping import sweep_here, write_experiment

pytestmark = pytest.mark.ray


def page_of(store):
    text = (store.experiment("small") / "explore.html").read_text()
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1))


def test_the_others_stay_in_ledger_report_and_page(one_ray, store, tmp_path):
    file = write_experiment(
        tmp_path / "small.yaml", grid={"objective": ["dpo", "cpo"], "calibration.enabled": [False, True]}
    )
    cells = expand(load_experiment(file))
    first, second, third, _ = every = [cell.run_id for cell in cells]

    def states():
        ledger = json.loads((store.experiment("small") / "ledger.json").read_text())
        assert [entry["run_id"] for entry in ledger["cells"]] == every
        page = page_of(store)
        assert set(page["runs"]) == set(every) and set(page["head"]["commands"][0]["runs"]) == set(every)
        assert len(page["head"]["groups"]) == 4
        return [entry["status"] for entry in ledger["cells"]]

    sweep_here(file, store, "--no-tracking", "--only", f"{first},{second}")
    assert states() == ["ok", "ok", "pending", "pending"], "exit code 0: what was asked for is done"
    tables = {path.name for path in (store.experiment("small") / "tables").iterdir()}
    trained = (store.run(first).final / "model.safetensors").stat().st_mtime_ns

    sweep_here(file, store, "--no-tracking", "--only", third)
    assert states() == ["cached", "cached", "ok", "pending"]
    assert tables <= {path.name for path in (store.experiment("small") / "tables").iterdir()}, "none is lost"
    assert (store.run(first).final / "model.safetensors").stat().st_mtime_ns == trained
    report = (store.experiment("small") / "report.html").read_text()
    assert all(cell.run_id in report for cell in cells)
