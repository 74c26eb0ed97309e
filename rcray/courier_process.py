"""The courier's own process: `python -m rcray.courier_process`, started by `rcray.courier`.

It reads its order from stdin, follows the store, and ends when it is told to or when its parent is gone. If the tracker
is away at the end it gives up after a while and says so: the records stay, and `rcray sync` delivers them.
"""

import contextlib
import json
import logging
import os
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rcray.courier import Delivered, Order
from rcray.errors import RcrayError
from rcray.pipeline import delivery_of
from rcray.secrets import redact, redact_logs
from rcray.store import Store

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
SLOWEST_POLL_SECONDS = 30.0  # while the tracker is away
PATIENCE_SECONDS = 10.0  # how long an absent tracker is waited for at the end
_NICENESS = 10  # training comes first
# Of one core, while training runs: steps of a tiny model come faster than a database takes them, and what is left over
# is delivered at the end.
_DUTY = 0.04


class _Ears:
    """Messages from the parent, without blocking; `gone` once the parent closed the pipe or died."""

    def __init__(self) -> None:
        self.order = Order.from_line(sys.stdin.readline())
        self.hurried = False
        self.last_words: dict[str, Any] | None = None
        self.gone = False
        self._news = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if "hurry" in message:
                self.hurried = True
            else:
                self.last_words = message
            self._news.set()
        self.gone = True
        self._news.set()

    def wait(self, seconds: float) -> bool:
        """Waits, but not past the next message; returns whether the parent is still there."""
        self._news.wait(seconds)
        self._news.clear()
        return not self.gone


class _Mouth:
    """The way back to the parent: what libraries print goes to the log instead."""

    def __init__(self) -> None:
        self.pipe = sys.stdout
        sys.stdout = sys.stderr

    def tell(self, **content: Any) -> None:
        """One message."""
        with contextlib.suppress(OSError):  # the parent may be gone
            print(json.dumps(content), file=self.pipe, flush=True)

    def alive(self) -> bool:
        """Tells the parent that there is progress; never asks to stop."""
        self.tell(alive=True)
        return False


def main() -> None:
    """Follows the store until told to finish."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s: %(message)s")
    redact_logs()
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    ears, mouth = _Ears(), _Mouth()
    order = ears.order
    delivery = delivery_of(order, Store.open(order.store), live=True)
    with contextlib.suppress(RcrayError):  # tried again by each pass
        delivery.open()  # imports and schema take seconds once, and are no part of any pass
    pause = POLL_SECONDS
    while ears.wait(pause):
        before = time.process_time()
        limit = before + _DUTY * SLOWEST_POLL_SECONDS

        def stop(limit: float = limit) -> bool:
            return mouth.alive() if ears.hurried else time.process_time() > limit

        try:
            delivery.deliver(stop=stop)
            used = time.process_time() - before
            pause = POLL_SECONDS if ears.hurried else min(max(POLL_SECONDS, used / _DUTY), SLOWEST_POLL_SECONDS)
        except RcrayError as error:
            log.warning("delivery will be tried again: %s", error)
            pause = min(2 * pause, SLOWEST_POLL_SECONDS)
    words = ears.last_words or {"state": "KILLED", "paths": [], "tally": ""}
    paths = [Path(path) for path in words["paths"]]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            delivery.deliver(final=True, stop=mouth.alive)
            delivery.finish(words["state"], paths, words["tally"])
            problem = ""
            break
        except RcrayError as error:
            log.warning("last delivery: %s", error)
            problem = redact(str(error))
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
            mouth.alive()
    failures = tuple(delivery.problems.values())
    sent = delivery.sent
    mouth.tell(**asdict(Delivered(not problem and not failures, problem, sent.points, sent.files, failures)))


if __name__ == "__main__":
    main()
