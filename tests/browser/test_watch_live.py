"""`rcray watch` beside a real sweep: curves move with the steps, a failure shows, a kill shows, the view stays."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

from rcray.cli.shared import cells_of
from rcray.records.live import read_live
from rcray.records.progress import read_progress
from tests.ray.sweeping import RCRAY, environment, sweep_command, wait_for, write_experiment

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
SECONDS = 5.0  # from a step to its point on the page
#: The last step that the drawn curve has reached, and where it ends on the screen.
LAST = "Number(document.querySelector('#curves .curve')?.dataset.last ?? 0)"
END = "document.querySelector('#curves .curve').getAttribute('d').split(/[ML]/).at(-1)"


@pytest.fixture
def experiment(tmp_path):
    """One cell that fails at once, and one of many steps without a checkpoint: only live rows can move its curve."""
    return write_experiment(
        tmp_path / "small.yaml",
        run={
            "data": {"train_pairs": 24000, "eval_pairs": 16},
            "train": {"batch_size": 8, "micro_batch_size": 4, "probe_every": 50, "probe_pairs": 8},
            "execution": {"checkpoint_every": 10_000},
        },
        grid={"objective": ["my_objectives:broken", "dpo"]},
    )


@pytest.fixture
def watch(experiment, store):
    command = [*RCRAY, "watch", str(experiment), "--store", str(store.root), "--port", "0"]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        yield re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline()).group()
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0


def test_a_sweep_is_seen_as_it_goes(experiment, store, watch, browser, tmp_path):
    broken, fine = cells_of(experiment, None)[1]
    run = store.run(fine.run_id)
    page = browser.open(watch)
    page.wait_for("document.querySelectorAll('#table tr[data-key]').length == 2")
    assert page.evaluate("document.querySelectorAll('.chip.running').length") == 1, "the word `live` alone"
    log = (tmp_path / "sweep.log").open("w")
    sweep = subprocess.Popen(
        [*sweep_command(experiment, store), "--no-tracking", "--concurrency", "1"], env=environment(), stdout=log,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        wait_for(lambda: len(read_live(run.path)) > 3, sweep, 300)
        key = page.evaluate("[...document.querySelectorAll('#table tr[data-key]')].at(-1).dataset.key")
        page.click(f"#table tr[data-key='{key}'] .name")
        said = "document.getElementById('curve-said').textContent"
        page.wait_for(f"{said}.includes('its next point comes at step')", 30)
        step, began = read_live(run.path)[-1]["step"], time.monotonic()
        page.wait_for(f"Number({said}.match(/is at step (\\d+)/)[1]) >= {step}")
        assert time.monotonic() - began < SECONDS, "what is shown at first moves with the steps, before any choice"
        page.evaluate("(() => { const c = document.getElementById('curve'); c.value = 'loss';"
                      " c.dispatchEvent(new Event('change')); })()")  # fmt: skip
        late, reached, ends = [], [], set()
        for _ in range(4):
            seen = page.evaluate(LAST)
            wait_for(lambda: read_live(run.path)[-1]["step"] > seen, sweep, 120)  # noqa: B023  it is called at once
            step, began = read_live(run.path)[-1]["step"], time.monotonic()
            page.wait_for(f"({LAST}) >= {step}", 60)
            late.append(time.monotonic() - began)
            reached.append(page.evaluate(LAST))
            ends.add(page.evaluate(END))
        print("seconds from a step to its point on the page:", [round(each, 2) for each in late])
        assert max(late) < SECONDS, late
        assert reached == sorted(set(reached)) and len(ends) == len(reached), "the curve moves with every look"
        assert not list(run.dynamics.glob("*.parquet")), "and no checkpoint has moved it"
        assert page.evaluate(f"document.querySelector(\"#table tr[data-key='{key}'] .chip\").textContent") == "running"
        assert page.evaluate("new URLSearchParams(location.hash.slice(1)).get('sel')") == key, "the view stays"
        assert page.evaluate("document.getElementById('curve').value") == "loss"
        said = page.evaluate(f"document.querySelector('[data-error=\"{broken.run_id}\"]').textContent")
        assert "this objective always fails" in said
        page.screenshot(tmp_path / "live.png", whole=True)

        doing = read_progress(run.path)
        sweep.send_signal(signal.SIGKILL)
        os.kill(doing.pid, signal.SIGKILL)
        began = time.monotonic()
        page.wait_for(f"document.querySelector(\"#table tr[data-key='{key}'] .chip\").textContent == 'pending'", 30)
        assert time.monotonic() - began < 10
        assert page.errors == [] and page.requested_hosts() == {"127.0.0.1"}
    finally:
        sweep.kill()
        sweep.wait()
        log.close()
    state = json.loads(page.evaluate("fetch('state').then((a) => a.text())"))
    assert state["runs"][fine.run_id]["state"] == "pending" and state["runs"][fine.run_id]["interrupted"]
