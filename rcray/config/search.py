"""Search beyond grids: points of continuous fields, drawn or chosen; only where an experiment has a `search`."""

import math
import random
from typing import Any, Literal

from pydantic import Field, model_validator

from rcray.config.benchmarks import PREFERENCE_ACCURACY
from rcray.config.section import Section


class Range(Section):
    """The values a field may take."""

    low: float
    high: float
    scale: Literal["linear", "log"] = "linear"

    @model_validator(mode="after")
    def _has_an_inside(self) -> "Range":
        if not self.low < self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"low {self.low:g} has no logarithm; use scale: linear")
        return self

    def draw(self, rng: random.Random) -> float:
        """A value, to six digits: what is printed is what is run."""
        if self.scale == "log":
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = rng.uniform(self.low, self.high)
        return self.rounded(value)

    def rounded(self, value: float) -> float:
        """Six significant digits, and never outside."""
        return min(self.high, max(self.low, float(f"{value:.6g}")))


class SearchConfig(Section):
    """How points are found, and what a good one is."""

    method: Literal["random", "asha", "optuna"] = Field(
        description="points drawn; drawn, and what falls behind is stopped; chosen from what earlier ones showed"
    )
    space: dict[str, Range] = Field(min_length=1, description="dotted path under `run`: its range")
    samples: int = Field(16, ge=1, description="points in all")
    seed: int = Field(0, ge=0, description="of the points; the runs keep their own")
    metric: str = Field(PREFERENCE_ACCURACY, pattern=r"^[\w-]+/[\w-]+$", description="benchmark/metric to raise")
    batch: int = Field(4, ge=1, description="optuna: points chosen at a time, so that the choice can be repeated")
    grace_steps: int = Field(20, ge=1, description="asha: steps before the first comparison")
    reduction: int = Field(3, ge=2, description="asha: one in so many goes on at each comparison")

    def points(self) -> list[dict[str, Any]]:
        """All points of random and asha; the first batch of optuna. Point i does not depend on how many there are."""
        count = min(self.batch, self.samples) if self.method == "optuna" else self.samples
        return [self._point(random.Random(f"search/{self.seed}/{i}")) for i in range(count)]

    def _point(self, rng: random.Random) -> dict[str, Any]:
        return {path: self.space[path].draw(rng) for path in sorted(self.space)}
