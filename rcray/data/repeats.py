"""Rows of unpaired data that stand in several pairs: where they lie in an epoch, and what they weigh in its steps.

An answer of the rarer label stands beside several of the other. Its pairs are kept together, so that most steps have
all of them or none, and in one step of the epoch, drawn among those that have a pair of it, its pairs weigh 1 together;
in the others they weigh 0. So each step is the sum over some rows that count once each, an epoch goes through the rows
as one without pairs would, and nothing depends on how the labels are mixed.
"""

import numpy as np
import torch


def kept_together(behind: np.ndarray, generator: torch.Generator) -> np.ndarray:
    """A shuffled order of the pairs in which those that share a row follow each other.

    Args:
        behind: [pairs, 2] the row on either side.
        generator: of the shuffle; where no row comes twice it shuffles as if there were pairs alone.
    """
    rarer = behind[:, int(_different(behind[:, 1]) < _different(behind[:, 0]))]
    _, group = np.unique(rarer, return_inverse=True)
    place = torch.randperm(int(group.max()) + 1, generator=generator).numpy().argsort()
    return np.argsort(place[group], kind="stable")


def weights_of(behind: np.ndarray, order: np.ndarray, batch_size: int, generator: torch.Generator) -> np.ndarray:
    """[pairs, 2] what either side of every pair weighs in its step; pairs that no step has weigh 0.

    Args:
        behind: [pairs, 2] the row on either side.
        order: the pairs of the epoch's steps, whole batches.
        batch_size: pairs of a step.
        generator: of the draws.
    """
    weights = np.zeros(behind.shape)
    step = np.arange(len(order)) // batch_size
    drawn = torch.randperm(len(order), generator=generator).numpy()
    for side in (0, 1):
        row = behind[order, side]
        counting = np.full(int(behind[:, side].max()) + 1, -1)
        counting[row[drawn]] = step[drawn]  # the last one drawn decides
        _, here, times = np.unique(row * (len(order) + 1) + step, return_inverse=True, return_counts=True)
        weights[order, side] = (counting[row] == step) / times[here]
    return weights


def _different(rows: np.ndarray) -> int:
    return len(np.unique(rows))
