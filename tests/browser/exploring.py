"""A made store with its page to explore, and what a person does on that page."""

import json
import threading
from contextlib import contextmanager

import numpy as np
import yaml

from rcray.aggregate.collect import collect
from rcray.aggregate.explore.cells import rows_of
from rcray.aggregate.explore.command import watch_experiments
from rcray.aggregate.explore.server import PageServer
from rcray.aggregate.report import build_report
from rcray.cli.shared import cells_of, sweep_command
from rcray.store import Store
from tests.report import runs
from tests.report.explored import HOSTILE, write_explored

SELECTED = "[...document.querySelectorAll('#table tr.selected')].map((row) => row.dataset.key)"
#: Two frames, and the time in which the address follows.
FRAME = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 130))))"


class Made:
    """A store of thirteen runs, the last one failed, and its page."""

    def __init__(self, folder):
        self.store = Store.open(folder / "store")
        made = runs.several_seeds(runs.quickstart(), (42, 43))
        self.file = folder / "my grid.yaml"
        self.file.write_text(yaml.safe_dump(made.model_dump(mode="json", include={"name", "title", "run", "grid"})))
        self.experiment, self.cells = cells_of(self.file, None)
        for cell in self.cells:
            write_explored(self.store, cell)
        self.failed = self.cells[-1]
        runs.make(self.store, self.failed, "failed", error=f"ran out of luck {HOSTILE}", steps=30)
        command = sweep_command(self.file, None)
        self.page = build_report(self.store, self.experiment, self.cells, figures=False, command=command).explore
        self.rows = rows_of(self.results())
        self.keys = [row.key for row in self.rows]

    def results(self):
        return collect(self.store, self.cells)

    def value(self, key, metric):
        return self.rows[self.keys.index(key)].setting.metric(metric).value


@contextmanager
def serve(store, experiment, cells, *, read_before=False):
    """The address of a server of these cells, which it reads when it is first asked, or before."""
    watch = watch_experiments(store, [(["rcray", "sweep", f"{experiment.name}.yaml"], experiment, cells)])
    if read_before:
        watch.state()
    server = PageServer(watch, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.address
    finally:
        server.shutdown()
        server.server_close()


def hold_against(page, base, other):
    """Pins a setting, and selects another one."""
    page.click(f"#table [data-pin='{base.key}']")
    page.wait_for("document.querySelectorAll('#table .range').length > 5")
    page.click(f"#table tr[data-key='{other.key}'] .name")
    settle(page)


def settle(page):
    page.evaluate(FRAME)


def move(page, place):
    page.send("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    settle(page)


def point_of_curve(page, key, share=1.0):
    """Where a setting's curve is on the screen, so far along it."""
    curve = f"document.querySelector(\"#curves .curve[data-key='{key}']\")"
    box(page, "#curves svg")
    settle(page)
    return page.evaluate(
        f"(() => {{ const p = {curve}.getPointAtLength({share} * {curve}.getTotalLength())"
        f".matrixTransform({curve}.getScreenCTM()); return [p.x, p.y]; }})()"
    )


SHIFT = 8  # of the protocol's modifiers


def drag(page, start, end, modifiers=0):
    way = [np.add(start, np.subtract(end, start) * share) for share in (0.3, 0.7, 1)]
    page.send("Input.dispatchMouseEvent", type="mouseMoved", x=start[0], y=start[1])
    for kind, (x, y) in [("mousePressed", start), *(("mouseMoved", place) for place in way), ("mouseReleased", end)]:
        page.send("Input.dispatchMouseEvent", type=kind, x=float(x), y=float(y), button="left", buttons=1, clickCount=1,
                  modifiers=modifiers)  # fmt: skip
    settle(page)


def put(page, field, value, event="input"):
    """Sets a field as a person would."""
    page.evaluate(
        f"(() => {{ const f = document.getElementById('{field}'); f.value = {json.dumps(value)};"
        f" f.dispatchEvent(new Event('{event}')); }})()"
    )
    settle(page)


def box(page, selector):
    return page.evaluate(
        f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
        " const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; })()"
    )
