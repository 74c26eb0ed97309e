"""Two hundred runs of two thousand steps: the page is there in three seconds and scrolls without a jerk."""

import threading
import time

import pytest

from rcray.aggregate.collect import collect
from rcray.aggregate.explore.command import watch_experiments
from rcray.aggregate.explore.page import Subject, write_explore
from rcray.aggregate.explore.server import PageServer
from rcray.config import Experiment
from rcray.store import Store
from rcray.sweep.grid import expand
from tests.report.explored import write_explored

pytestmark = pytest.mark.timeout(900)
LOAD_SECONDS = 3.0
FRAME_MILLISECONDS = 34.0  # two frames of a 60 Hz screen
DRAWN = (
    "document.body.dataset.ready == 'yes' && document.querySelectorAll('#table tr[data-key]').length == {0}"
    " && document.querySelectorAll('#curves .curve').length == {0}"
)
SCROLL = """new Promise((done) => {{
  const [frames, box] = [[], {box}];
  let last = performance.now();
  const tick = (now) => {{
    frames.push(now - last);
    last = now;
    box.scrollBy(0, 24);
    if (frames.length < 120) requestAnimationFrame(tick);
    else done(frames.slice(1).sort((a, b) => a - b)[113]);
  }};
  requestAnimationFrame(tick);
}})"""


def made(folder, rates, seeds):
    experiment = Experiment(
        name="large",
        run={"data": {"train_pairs": 16000, "eval_pairs": 256}, "train": {"batch_size": 8, "micro_batch_size": 4}},
        grid={
            "objective": ["dpo", "cpo", "dil-bce", "simpo", "ddro"],
            "calibration.enabled": [False, True],
            "train.learning_rate": rates,
            "train.seed": seeds,
        },
    )
    store, cells = Store.open(folder), expand(experiment)
    assert len(cells) == 200 and cells[0].config.total_steps == 2000
    for cell in cells:
        write_explored(store, cell, pairs=256)
    return store, experiment, cells


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return made(tmp_path_factory.mktemp("large"), [1e-5, 2e-5, 5e-5, 1e-4], [1, 2, 3, 4, 5])


def look(browser, address, settings=40):
    page = browser.open("about:blank")
    began = time.monotonic()
    page.go(address)
    page.wait_for(DRAWN.format(settings), 60)
    loaded = time.monotonic() - began
    time.sleep(2)  # what the first load set going
    empty = browser.open("data:text/html,<body style='height:9000px'>")
    idle = empty.evaluate(SCROLL.format(box="document.documentElement"))  # what this machine does with nothing to draw
    page.send("Page.bringToFront")
    frames = [
        page.evaluate(SCROLL.format(box=f"document.querySelector('{box}')")) for box in ("html", "#cells .scroll")
    ]
    print(f"{address}: drawn after {loaded:.2f} s")
    print(f"95% of the frames within {max(frames):.1f} ms; of an empty page {idle:.1f} ms")
    assert loaded < LOAD_SECONDS
    assert max(frames) <= max(FRAME_MILLISECONDS, 1.5 * idle)
    assert page.errors == []
    return page


def test_from_a_file(large, browser, tmp_path):
    store, _, cells = large
    path = write_explore(tmp_path, Subject("large", "large"), collect(store, cells))
    print(f"{path.stat().st_size / 1e6:.1f} MB")
    assert path.stat().st_size < 10e6
    look(browser, path)


def test_two_hundred_settings_from_a_file(browser, tmp_path):
    """A row, a mark, a line and a curve for every run, and the differences of every two of them."""
    store, _, cells = made(tmp_path / "store", [i * 1e-5 for i in range(1, 21)], [1])
    began = time.monotonic()
    path = write_explore(tmp_path, Subject("large", "large"), collect(store, cells))
    print(f"{path.stat().st_size / 1e6:.1f} MB, written in {time.monotonic() - began:.0f} s")
    assert path.stat().st_size < 12e6
    page = look(browser, path, 200)
    began = time.monotonic()
    page.click("#table [data-pin]")
    page.wait_for("document.querySelectorAll('#table .range').length > 500")
    print(f"pinned after {time.monotonic() - began:.2f} s")
    assert time.monotonic() - began < LOAD_SECONDS


def test_from_the_server_with_every_point_of_the_run_in_focus(large, browser):
    store, experiment, cells = large
    watch = watch_experiments(store, [(["rcray", "sweep", "large.yaml"], experiment, cells)])
    watch.state()
    server = PageServer(watch, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        page = look(browser, server.address)
        drawn = "document.querySelector('#band .curve').getAttribute('d').split('L').length"
        page.wait_for(f"{drawn} == 2000", 20)
    finally:
        server.shutdown()
        server.server_close()
