"""`rcray sync --follow` beside a training: started with it, told by its session what to deliver, never waited for long.

A process of its own, so that nothing at MLflow can slow or stop the training: neither a training process nor the
sweep's own imports mlflow. What passes between the two is on disk: the delivery book, the session, the run directories.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from typing import IO

from rcray.track.book import Book
from rcray.track.sessions import OpenSession, Session, remove_session

STALL_SECONDS = 120.0  # a follower that says nothing for so long at the end is stopped
_ENDING_SECONDS = 5.0
_POLL_SECONDS = 0.1
_ERROR = "error: "  # how the command line begins one


@dataclass(frozen=True)
class Delivered:
    """What came of it."""

    complete: bool = False  # the tracker has all there is
    problem: str = ""


class Follower:
    """The training's end of it: opens the session, starts the process, and sees it end."""

    def __init__(self, book: Book, uri: str, session: Session):
        self.outcome: Delivered | None = None
        self._book = book
        self._uri = uri
        self._session = OpenSession(book.path.parent, session)
        self._log_file = book.path.with_name("sync.log")

    def __enter__(self) -> "Follower":
        self._session.open()
        try:
            self._log: IO[str] = self._log_file.open("a+")
            self._log_start = self._log.seek(0, os.SEEK_END)
            store = str(self._book.store.root)
            sync = ["sync", self._book.name, "--follow", "--session", self._session.id, "--store", store]
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rcray", *sync],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                # The address not as an argument: it may carry a password. And a follower has no business on a GPU.
                env={**os.environ, "MLFLOW_TRACKING_URI": self._uri, "CUDA_VISIBLE_DEVICES": ""},
                start_new_session=True,  # Ctrl-C is ours to handle
            )
        except BaseException:
            self._session.close()
            raise
        return self

    def end_training(self) -> None:
        """Nothing is trained any more: it need not hold back, and delivers while the report is built."""
        with contextlib.suppress(OSError):  # a full disk; the report meets it too
            self._session.update(replace(self._session.session, is_training=False))

    def finish(self) -> Delivered:
        """Lets it deliver the rest and end; returns what came of it."""
        if self.outcome is None:
            self._session.close()
            self.outcome = self._await()
            remove_session(self._book.path.parent, self._session.id)
            self._log.close()
            if self.outcome.complete:
                self._log_file.unlink(missing_ok=True)
        return self.outcome

    def _await(self) -> Delivered:
        size, since = -1, time.monotonic()
        while self.process.poll() is None:
            if (now := os.fstat(self._log.fileno()).st_size) != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > STALL_SECONDS:
                self._stop()
                return Delivered(problem=f"delivery made no progress for {STALL_SECONDS:g} s; see {self._log_file}")
            time.sleep(_POLL_SECONDS)
        return Delivered(complete=True) if self.process.returncode == 0 else Delivered(problem=self._problem())

    def _problem(self) -> str:
        """The error it ended with, less what it says to do: whoever shows it says that."""
        self._log.seek(self._log_start)
        _, separator, error = f"\n{self._log.read()}".rpartition(f"\n{_ERROR}")  # it may be the first line
        if self.process.returncode < 0 or not separator:
            return f"delivery ended early (exit code {self.process.returncode}); see {self._log_file}"
        return error.partition("\n  fix: ")[0].strip()

    def _stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __exit__(self, *_: object) -> None:
        try:
            self.finish()
        except KeyboardInterrupt:  # a second Ctrl-C means now
            self.process.kill()
            self.process.wait()
