"""How much of the tensors of an epoch is padding."""

import numpy as np

from rcray.data.schedule import Schedule


def padding_share(schedule: Schedule, lengths: np.ndarray) -> float:
    """Padded tokens over all tokens in the tensors of the first epoch; `lengths` as in EncodedPairs."""
    sides = lengths[:, :1] + lengths[:, 1:]  # [pairs, 2] prompt + chosen, prompt + rejected
    real = padded = 0
    for step in range(schedule.steps_per_epoch):
        for rows in schedule.micro_batches(step):
            real += int(sides[rows].sum())
            padded += int(sides[rows].max(axis=0).sum()) * len(rows)
    return 1 - real / padded
