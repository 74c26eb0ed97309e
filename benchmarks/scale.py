"""Ten thousand cells through everything around training: plan, ledger, delivery book, report.

Cells are simulated: their runs lie in the store as training leaves them (status, step records, evaluation). Each part
runs in a process of its own for a tenth of the cells and for all of them: seconds of processor time, and the growth of
the peak resident set. Growth is the exponent of the time, log10 of their ratio: 1 is linear.

plan            the grid expanded, and `rcray plan` over it
ledger          a sweep's own: one refresh while eight cells run, all cells written
screen          a frame on a terminal of 50 lines: the ledger's table is made and drawn, as four times a second
book            every cell entered, every run's id kept, everything read back by another process
report          tables and page over all runs, without figures
"""

import math
import shutil
import tempfile
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path

from rich.console import Console

from benchmarks.aggregation import ledger_of, peak
from benchmarks.interleaved import arguments
from rcray.config import Experiment, load_experiment
from rcray.store import Store
from rcray.sweep.grid import Cell, expand

_AT_ONCE = 8
_FRAMES = 10
_LINEAR = 1.1  # an exponent above it is more than noise and cache misses


def cells_of(store: Path) -> tuple[Experiment, list[Cell]]:
    """The experiment of a simulated store."""
    experiment = load_experiment(Store.at(store).experiment("large") / "experiment.yaml")
    return experiment, expand(experiment)[: len(list((store / "runs").iterdir()))]


def plan(store: Path) -> None:
    from rcray.sweep.planning import make_plan

    experiment, cells = cells_of(store)
    make_plan([(Path("large.yaml"), experiment, cells)], store, None)


def ledger(store: Path) -> float:
    """Returns the seconds of one refresh."""
    from rcray.sweep.ledger import LiveLedger

    _, cells = cells_of(store)
    opened = Store.at(store)
    live = LiveLedger(cells, opened, opened.experiment("large"))
    live.refresh()
    for cell in cells[:_AT_ONCE]:
        live.start(cell.run_id)
    began = time.process_time()
    for _ in range(10):
        live.refresh()
    return (time.process_time() - began) / 10


def screen(store: Path) -> float:
    """Returns the seconds of one frame."""
    from rcray.progress import LedgerScreen
    from rcray.sweep.ledger import build_ledger

    _, cells = cells_of(store)
    ledger = build_ledger(cells, Store.at(store), stopped={})
    shown = LedgerScreen("Large")
    shown.console = Console(force_terminal=True, width=120, height=50, file=StringIO())
    with shown:
        began = time.process_time()
        for _ in range(_FRAMES):
            shown.refresh(ledger)
            assert shown.live
            shown.live.refresh()
        return (time.process_time() - began) / _FRAMES


def book(store: Path) -> None:
    from rcray.track.book import Book

    _, cells = cells_of(store)
    shutil.rmtree(Store.at(store).experiment("booked"), ignore_errors=True)
    writer = Book(Store.at(store), "booked")
    writer.enter(cells, "Large", "sqlite:///x")
    writer.save_server("sqlite:///x", "1", "parent")
    for cell in cells:
        writer.save_run("sqlite:///x", cell.run_id, cell.run_id)
    reader = Book(Store.at(store), "booked")
    assert len(reader.cells()) == len(reader.server("sqlite:///x").runs) == len(cells)


def report(store: Path) -> None:
    from rcray.aggregate.command import Request, run_report

    run_report(Request(ledger=store, out=store / "report", figures=False))


def timed(work: Callable[[Path], float | None], store: Path) -> float:
    """Seconds of processor time, or what the work itself returns."""
    began = time.process_time()
    measured = work(store)
    return time.process_time() - began if measured is None else measured


PARTS: dict[str, Callable[[Path], float | None]] = {
    "plan": plan,
    "ledger": ledger,
    "screen": screen,
    "book": book,
    "report": report,
}


def main() -> None:
    quick = arguments(__doc__).quick
    few, many = (100, 1_000) if quick else (1_000, 10_000)
    folder = Path(tempfile.mkdtemp(prefix="scale-"))
    try:
        stores = {count: ledger_of(folder / str(count), count) for count in (few, many)}
        print(f"{'':14s} {few:>7d} cells          {many:>7d} cells           growth")
        worst = 0.0
        for name, work in PARTS.items():
            small, large = (peak(timed, work, store) for store in stores.values())
            growth = math.log10(max(large[0], 1e-3) / max(small[0], 1e-3))
            worst = max(worst, growth)
            figures = "   ".join(f"{seconds:7.3f} s {memory:5.0f} MB" for seconds, memory in (small, large))
            print(f"{name:14s} {figures}   n^{growth:.2f}")
        print(f"growth {'linear or less' if worst <= _LINEAR else 'MORE THAN LINEAR'} in every part")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
