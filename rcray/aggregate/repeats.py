"""Cells that the paper prints twice with different numbers: the only published estimate of run-to-run noise."""

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from rcray.aggregate import published
from rcray.aggregate.paper import BENCHMARK_TABLES, DIGITS, TableSpec, objective_title
from rcray.aggregate.places import DEFAULT_BETA
from rcray.aggregate.published import AVERAGE, Place
from rcray.aggregate.tables import percent
from rcray.config.benchmarks import benchmark_title
from rcray.config.models import model_title


@dataclass(frozen=True)
class Repeat:
    """One training in two tables: its scores there in percent, as printed, by benchmark; `average` among them."""

    place: Place
    tables: tuple[str, str]
    scores: Mapping[str, tuple[float, float]]

    @property
    def noise(self) -> float:
        """Standard deviation of one run's benchmark score, points: two runs differ by √2 of it."""
        gaps = [first - second for name, (first, second) in self.scores.items() if name != AVERAGE]
        return math.sqrt(fmean(gap**2 for gap in gaps) / 2)

    @property
    def average_noise(self) -> float:
        """The same of an average."""
        first, second = self.scores[AVERAGE]
        return abs(first - second) / math.sqrt(2)


@functools.cache
def repeats() -> tuple[Repeat, ...]:
    """Every training that two tables print differently; one that is printed the same twice was copied."""
    seen: dict[Place, list[tuple[str, Mapping[str, published.Score]]]] = {}
    for spec in BENCHMARK_TABLES:
        for place, scores in published.scores(spec.name).items():
            usual = replace(place, ema_beta=None) if place.ema_beta == DEFAULT_BETA else place
            seen.setdefault(usual, []).append((spec.name, scores))
    different = []
    for place, printed in seen.items():
        for (one, first), (other, second) in itertools.pairwise(printed):
            both = {name: (_points(first[name]), _points(second[name])) for name in first if name in second}
            if any(a != b for a, b in both.values()):
                different.append(Repeat(place, (one, other), both))
    return tuple(different)


def _points(score: published.Score) -> float:
    return round(percent(score.value), DIGITS)  # as printed: a share has rounding in its last bits


def repeat_notes(spec: TableSpec) -> list[str]:
    """A footnote for each cell of a table that another one prints differently."""
    return [_note(repeat) for repeat in repeats() if spec.name in repeat.tables]


def noise_notes() -> list[str]:
    """What two runs of one setting differed by, to read every difference against."""
    return [
        f"Run-to-run noise is in no printed error. One cell is published twice ({_cell(repeat)}): its scores differ by "
        f"{math.sqrt(2) * repeat.noise:.2f} points a benchmark (root mean square) and "
        f"{math.sqrt(2) * repeat.average_noise:.2f} in the average, if they are two runs."
        for repeat in repeats()
    ]


def _cell(repeat: Repeat) -> str:
    place = repeat.place
    return f"{objective_title(place.objective)} {'with' if place.rc else 'without'} RC on {model_title(place.model)}"


def _note(repeat: Repeat) -> str:
    gaps = ", ".join(
        f"{'average' if name == AVERAGE else benchmark_title(name)} {first:.2f} and {second:.2f}"
        for name, (first, second) in repeat.scores.items()
    )
    return (
        f"{_cell(repeat)} is printed in the tables `{repeat.tables[0]}` and `{repeat.tables[1]}` with different "
        f"numbers: {gaps}. As two runs of one setting they put the standard deviation of a run at {repeat.noise:.2f} "
        f"points for a benchmark and {repeat.average_noise:.2f} for an average."
    )
