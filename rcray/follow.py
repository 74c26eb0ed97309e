"""`rcray sync --follow`: delivers while an experiment is trained, and ends by itself when that has ended.

The store says all it needs: sessions who trains what, run directories how far it is. If the tracker is away at the end
it gives up after a while and says so: the records stay, and `rcray sync` delivers them.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rcray.errors import ConfigError, RcrayError
from rcray.store import Store
from rcray.sync import Synced, deliver_all, delivery_to, sync
from rcray.track.address import Address
from rcray.track.book import Book
from rcray.track.delivery import Delivery, DeliveryPlan, Tally
from rcray.track.sessions import Session, live_sessions, read_session, remove_session

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
SLOWEST_POLL_SECONDS = 30.0  # while the tracker is away
PATIENCE_SECONDS = 10.0  # how long an absent tracker is waited for at the end
_SESSION_POLL_SECONDS = 0.25
# Of one core, while training runs: steps of a tiny model come faster than a database takes them, and what is left over
# is delivered at the end.
_DUTY = 0.04
_NICENESS = 10  # training comes first


def one_to_follow(tracked: Sequence[Book]) -> Book:
    """The experiment that `--follow` means: the only one, or the only one that is being trained."""
    live = [book for book in tracked if live_sessions(book.path.parent)]
    choice = live if len(tracked) > 1 else tracked
    if len(choice) != 1:
        names = ", ".join(book.name for book in choice)
        raise ConfigError(
            f"--follow: takes one experiment; being trained here: {names or 'none'}",
            fix="name one; or leave out --follow to deliver all of them once",
        )
    return choice[0]


def follow(
    book: Book,
    store: Store,
    address: Address,
    *,
    session: str | None = None,
    on_progress: Callable[[Tally], None] = lambda _: None,
) -> Synced:
    """Delivers while the experiment is trained, and ends when that has ended and all is delivered.

    Args:
        book: the experiment's.
        store: where its runs are.
        address: of the tracker; one that is away is tried again.
        session: follow this one alone, as the command that opened it asks; None: whoever trains the experiment.
        on_progress: called with what was sent, often.

    Raises:
        RcrayError: at the end the tracker was away, or another process was delivering, for too long.
    """
    with suppress(OSError):
        os.nice(_NICENESS)
    directory = book.path.parent
    delivery = delivery_to(address, store, DeliveryPlan(book.name, book.title, (), parent=False, live=True))
    own = read_session(directory, session) if session else None
    # A short training is over before its follower looks for the first time.
    followed: dict[str, Session] = {session: own} if session and own else {}
    planned: dict[str, Session] = {}
    with suppress(RcrayError):  # tried again by each pass
        delivery.open()  # imports and schema take seconds once, and are no part of any pass
    pause = POLL_SECONDS
    while live := _live(directory, session):
        if live != planned:
            planned = live
            followed |= live
            delivery.change_plan(_plan_of(book, live))
        try:
            pause = _pass(delivery, live, on_progress)
        except RcrayError as error:
            log.warning("delivery will be tried again: %s", error)
            pause = min(2 * pause, SLOWEST_POLL_SECONDS)
        until = time.monotonic() + pause
        while _live(directory, session) == live and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _SESSION_POLL_SECONDS))
    if not followed:
        return sync(book, store, address)
    delivery.change_plan(replace(_plan_of(book, followed), live=False))
    try:
        _deliver_rest(delivery, on_progress)
    finally:
        if session:  # its command may have been killed
            remove_session(directory, session)
    return Synced(book.name, address, tuple(delivery.plan.cells), delivery)


def _live(directory: Path, session: str | None) -> dict[str, Session]:
    return {key: each for key, each in live_sessions(directory).items() if session in (None, key)}


def _plan_of(book: Book, sessions: Mapping[str, Session]) -> DeliveryPlan:
    wanted = {key for session in sessions.values() for key in session.cells}
    cells = tuple(cell for cell in book.cells() if cell.run_id in wanted)
    ours = frozenset(key for session in sessions.values() if session.is_of_this_environment for key in session.new)
    swept = any(session.is_sweep for session in sessions.values())
    return DeliveryPlan(book.name, book.title, cells, swept, ours, awaits_evaluation=swept, live=True)


def _pass(delivery: Delivery, live: Mapping[str, Session], on_progress: Callable[[Tally], None]) -> float:
    """One pass, of bounded length while somebody trains; returns how long to pause after it."""
    training = any(session.is_training for session in live.values())
    before = time.process_time()
    limit = before + _DUTY * SLOWEST_POLL_SECONDS

    def stop() -> bool:
        on_progress(delivery.sent)
        return training and time.process_time() > limit

    delivery.deliver(stop=stop)
    on_progress(delivery.sent)
    used = time.process_time() - before
    return min(max(POLL_SECONDS, used / _DUTY), SLOWEST_POLL_SECONDS) if training else POLL_SECONDS


def _deliver_rest(delivery: Delivery, on_progress: Callable[[Tally], None]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS

    def stop() -> bool:
        on_progress(delivery.sent)
        return False

    while True:
        try:
            return deliver_all(delivery, delivery.plan.cells, stop)
        except RcrayError as error:
            if time.monotonic() > deadline:
                raise
            log.warning("last delivery: %s", error)
            time.sleep(POLL_SECONDS)
