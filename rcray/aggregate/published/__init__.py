"""Every number of the paper's tables, as data, read from the CSV files beside this module.

379 benchmark scores and averages, 54 runtimes, their printed differences, and the AlpacaEval win rates.
"""

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

BASELINE = "baseline"  # the objective of a start model that was not trained
AVERAGE = "average"


@dataclass(frozen=True)
class Score:
    """A printed score as a share, with the printed standard error (averages have none)."""

    value: float
    stderr: float | None


@dataclass(frozen=True)
class Place:
    """Which training a row of a table stands for."""

    model: str
    data: str
    objective: str
    rc: bool
    epochs: int = 1
    ema_beta: float | None = None  # None: the default one, or no RC


@dataclass(frozen=True)
class Overhead:
    """Training time without and with RC in minutes, or the word that stands for it, and the two differences.

    The published differences are the printed ones (from unrounded times).
    """

    without: float | str
    with_rc: float | str
    minutes: float | None = None
    share: float | None = None  # of the time without RC
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class WinRate:
    """A printed win rate as a share: with RC against the same objective without it."""

    model: str
    objective: str
    judge: str
    rate: float


def _rows(name: str) -> list[dict[str, str]]:
    text = resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@functools.cache
def scores(table: str) -> Mapping[Place, Mapping[str, Score]]:
    """A table's scores by place and benchmark, `average` among them."""
    printed: dict[Place, dict[str, Score]] = {}
    for row in _rows("benchmarks.csv"):
        if row["table"] == table:
            place = Place(
                model=row["model"],
                data=row["dataset"],
                objective=row["objective"],
                rc=row["rc"] == "True",
                epochs=int(row["epochs"]),
                ema_beta=float(row["ema_beta"]) if row["ema_beta"] else None,
            )
            stderr = float(row["stderr"]) / 100 if row["stderr"] else None
            printed.setdefault(place, {})[row["benchmark"]] = Score(float(row["score"]) / 100, stderr)
    return printed


@functools.cache
def runtimes() -> Mapping[tuple[str, str], Overhead]:
    """Times by model and objective, `average` among the objectives."""
    minutes = {(row["model"], row["objective"], row["rc"]): float(row["minutes"]) for row in _rows("runtime.csv")}
    return {
        (row["model"], row["objective"]): Overhead(
            minutes[row["model"], row["objective"], "False"],
            minutes[row["model"], row["objective"], "True"],
            float(row["minutes"]),
            float(row["percent"]) / 100,
        )
        for row in _rows("runtime_differences.csv")
    }


@functools.cache
def win_rates() -> tuple[WinRate, ...]:
    """AlpacaEval, as the text of the paper gives it."""
    return tuple(
        WinRate(row["model"], row["objective"], row["judge"], float(row["percent"]) / 100)
        for row in _rows("alpaca_eval.csv")
    )
