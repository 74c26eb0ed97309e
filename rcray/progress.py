"""What a person sees while something runs: a live ledger or a progress line; plain lines where there is no terminal."""

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rcray.records.ledger import Ledger
from rcray.records.progress import Progress as Doing
from rcray.records.progress import read_progress
from rcray.records.states import FINISHED, State
from rcray.sweep.ledger import ledger_table, screen_table
from rcray.track.delivery import Tally

LINE_SECONDS = 30.0  # between two lines of progress where there is no terminal
_LOOK_SECONDS = 1.0


class LedgerScreen:
    """The ledger, redrawn in place on a terminal; elsewhere a line per change of status, and of progress at times.

    Of a sweep that is longer than the terminal it shows what runs, what failed and what has just finished.
    """

    def __init__(self, title: str):
        self.title = title
        self.console = Console()
        self.live: Live | None = None
        self.shown: dict[str, str] = {}
        self.finished: dict[str, None] = {}  # in the order in which it was seen
        self.begun = self.told = time.monotonic()
        self.last: Ledger | None = None

    def __enter__(self) -> "LedgerScreen":
        if self.console.is_terminal:
            self.live = Live(console=self.console, refresh_per_second=4, transient=True)
            self.live.start()
        return self

    def refresh(self, ledger: Ledger) -> None:
        """Shows the ledger as it is now."""
        self.last = ledger
        if self.live:
            self._see_finished(ledger)
            height = self.console.height
            self.live.update(screen_table(ledger, self.title, height, self.finished, self._waiting(ledger)))
            return
        for entry in ledger.cells:
            if self.shown.get(entry.run_id, State.PENDING) != entry.status:
                self.console.print(f"{entry.status:10s} {entry.label}", markup=False, highlight=False)
            self.shown[entry.run_id] = entry.status
        if time.monotonic() - self.told > LINE_SECONDS:
            self.told = time.monotonic()
            for line in ledger.doings() or filter(None, [self._waiting(ledger)]):
                self.console.print(f"{'':10s} {line}", markup=False, highlight=False)

    def _see_finished(self, ledger: Ledger) -> None:
        self.finished |= dict.fromkeys(entry.run_id for entry in ledger.cells if entry.status in FINISHED)

    def _waiting(self, ledger: Ledger) -> str:
        """What is awaited while no cell is under way and some are to be."""
        tally = ledger.tally()
        if State.RUNNING in tally or State.PENDING not in tally:
            return ""
        return f"starting Ray and its processes, {time.monotonic() - self.begun:.0f} s so far"

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()
        if self.last is not None:
            self.console.print(ledger_table(self.last, self.title))


class ProgressLine:
    """One training run: step, loss, change of both likelihoods, share in the band, tokens per second, time left.

    What comes before the first step, and steps of a worker group, are read from the run's directory. Where there is no
    terminal, a line says the same every half minute.
    """

    def __init__(self, label: str, run: Path):
        self.label = label
        self.run = run
        self.ended = threading.Event()
        self.watcher = threading.Thread(target=self._watch, name="progress", daemon=True)
        self.console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.first: tuple[float, float] | None = None
        self.in_band = self.steps = self.tokens = 0
        self.started = time.perf_counter()

    def __enter__(self) -> "ProgressLine":
        self.progress.start()
        self.task = self.progress.add_task(self.label, total=None, text="")
        self.watcher.start()
        return self

    def _watch(self) -> None:
        told = time.monotonic()
        while not self.ended.wait(_LOOK_SECONDS):
            now = read_progress(self.run)
            if now is None:
                continue
            if not self.steps:
                self.progress.update(self.task, completed=now.done, total=now.total or None, text=now.text)
            if not self.console.is_terminal and time.monotonic() - told > LINE_SECONDS:
                told = time.monotonic()
                self.console.print(f"{self.label}: {now.text}", markup=False, highlight=False, soft_wrap=True)

    def update(self, row: dict[str, Any]) -> None:
        """Takes one step's record."""
        self.first = self.first or (row["z_w"], row["z_l"])
        self.steps += 1
        self.in_band += row["in_band"]
        self.tokens += row["tokens"]
        rate = self.tokens / (time.perf_counter() - self.started)
        text = (
            f"loss {row['loss']:.3f}  Δz_w {row['z_w'] - self.first[0]:+.2f}  Δz_l {row['z_l'] - self.first[1]:+.2f}  "
            f"in band at head/adapters {self.in_band / self.steps:.0%}  {rate:,.0f} tok/s"
        )
        self.progress.update(self.task, completed=row["step"], total=row["total_steps"], text=text)

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.watcher.join()
        self.progress.stop()


class _StatusLine:
    """One line on stderr: in place on a terminal (`live`), printed anew elsewhere."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.live = self.console.status("") if self.console.is_terminal else None

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def print(self, text: str) -> None:
        """A line of its own."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class CountLine(_StatusLine):
    """A long pass over something: how much of it is done, at what rate, for how long still."""

    def __init__(self, what: str):
        super().__init__()
        self.what = what
        self.begun = self.told = time.monotonic()

    def update(self, done: int, total: int) -> None:
        """Takes how much is done."""
        now = time.monotonic()
        if done == 0:
            self.begun = now
        now_at = Doing(self.what, done, total, done / (now - self.begun) if done and now > self.begun else None)
        if self.live:
            self.live.update(now_at.text)
        elif now - self.told > LINE_SECONDS:
            self.told = now
            self.print(now_at.text)


class DeliveryLine(_StatusLine):
    """A delivery: what was sent so far. Without a terminal a line now and then, which also shows that it is alive."""

    def __init__(self, name: str, address: str):
        super().__init__()
        self.text = f"delivering {name} to {address}"
        self.shown = ("", 0.0)

    def __enter__(self) -> Self:
        self.print(self.text)
        return super().__enter__()

    def update(self, sent: Tally) -> None:
        """Takes what was sent since the start."""
        text, since = self.shown
        if self.live:
            self.live.update(f"{sent} (Ctrl-C ends the delivery, not the training)")
        elif str(sent) != text and time.monotonic() - since > LINE_SECONDS:
            self.print(f"  {sent}")
            self.shown = (str(sent), time.monotonic())


class Interruptible:
    """SIGTERM ends what is in here as Ctrl-C does, and neither is lost.

    A KeyboardInterrupt that comes up inside a library's clean-up or import may be swallowed there: what was `checked`
    raises it again.
    """

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> "Interruptible":
        self.before = {sign: signal.signal(sign, self._interrupt) for sign in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for sign, handler in self.before.items():
            signal.signal(sign, handler)

    def _interrupt(self, *_: object) -> None:
        self.asked = True
        raise KeyboardInterrupt

    def checked(self, call: Callable[[Any], None]) -> Callable[[Any], None]:
        """The same call; first it raises what was asked for."""

        def first_look(value: Any) -> None:
            if self.asked:
                raise KeyboardInterrupt
            call(value)

        return first_look
