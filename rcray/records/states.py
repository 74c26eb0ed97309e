"""The states of runs, cells and measurements: one vocabulary, in files and on screens."""

from enum import StrEnum


class State(StrEnum):
    """Every word a `status` can be, from "there is a result" to "nothing can be measured"."""

    OK = "ok"
    CACHED = "cached"  # of a sweep's cell: ok from an earlier command
    STOPPED = "stopped"  # of a sweep's cell: its search has seen enough of it; as a run it is pending
    RUNNING = "running"
    PENDING = "pending"  # never started, or waits to be continued
    FAILED = "failed"
    OOM = "oom"
    DEGENERATE = "degenerate"  # non-finite, or answers without reading: no number of it means anything
    UNDEFINED = "undefined"  # of a metric: its data cannot tell it


#: Ended without a result.
UNSUCCESSFUL = (State.FAILED, State.OOM, State.DEGENERATE)
#: Ended; training would not go on by itself.
ENDED = (State.OK, *UNSUCCESSFUL)
#: Ended, and would end the same if it were done again.
SETTLED = (State.OK, State.DEGENERATE)
#: Cells that a sweep need not come back to.
FINISHED = (State.OK, State.CACHED, State.STOPPED)
