"""Loss scaling for float16: gradients below 6e-8 would be zero there, above 65,504 infinite.

The seeds of the backward are multiplied by the scale and the gradients divided by it before they are clipped, so that a
step is the same for every scale at which nothing overflows. Where something does, no update is made, the scale is
halved, and the record says so; after many sound steps it is doubled again. As torch's GradScaler does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

FIRST_SCALE = 2.0**16
GROWTH_INTERVAL = 2000  # sound steps before the scale is doubled
OVERFLOW = "float16 overflow, no update"


@dataclass
class LossScaling:
    """The scale, a power of two, and how many steps it has held."""

    scale: float = FIRST_SCALE
    sound_steps: int = 0

    def unscale(self, gradients: Sequence[Tensor]) -> None:
        """Divides gradients by the scale; exact, since it is a power of two."""
        for gradient in gradients:
            gradient.mul_(1 / self.scale)

    def settle(self, norm: float) -> bool:
        """Takes a step's gradient norm; whether it may be used, or else was lost to an overflow.

        A gradient that is not finite at a scale of 1 is no matter of scale: it is let through, and ends the run.
        """
        if math.isfinite(norm):
            self.sound_steps += 1
            if self.sound_steps == GROWTH_INTERVAL:
                self.scale, self.sound_steps = 2 * self.scale, 0
            return True
        if self.scale == 1:
            return True
        self.scale, self.sound_steps = self.scale / 2, 0
        return False

    def state(self) -> list[float]:
        """For a checkpoint."""
        return [self.scale, self.sound_steps]

    def restore(self, state: Sequence[float]) -> None:
        """Goes on from `state`; an empty one is the beginning."""
        if state:
            self.scale, self.sound_steps = float(state[0]), int(state[1])
