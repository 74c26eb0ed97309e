"""What the pairs say of themselves, before any model: copies, contradictions, answers that are almost the same."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rcray.data.encoded import EncodedPair


@dataclass(frozen=True)
class TextMeasures:
    """Per pair of a whole split, [pairs] each."""

    duplicate: np.ndarray  # the same prompt and answers stood in an earlier row
    contradictory: np.ndarray  # some row of the same prompt rejects what this one chooses, or the reverse
    overlap: np.ndarray  # of the two answers: shared pairs of neighbouring tokens, 0 to 1


def measure_text(pairs: Sequence[EncodedPair]) -> TextMeasures:
    """Looks at tokens, so that what the model reads as the same counts as the same."""
    seen: set[tuple[int, int, int]] = set()
    keys = []
    chosen: Counter[tuple[int, int]] = Counter()
    rejected: Counter[tuple[int, int]] = Counter()
    duplicate, overlap = np.zeros(len(pairs), bool), np.zeros(len(pairs))
    for i, pair in enumerate(pairs):
        key = hash(pair.prompt), hash(pair.chosen), hash(pair.rejected)
        duplicate[i] = key in seen
        seen.add(key)
        keys.append(key)
        chosen[key[0], key[1]] += 1
        rejected[key[0], key[2]] += 1
        overlap[i] = answer_overlap(pair.chosen, pair.rejected)
    contradictory = [(p, w) in rejected or (p, l) in chosen for p, w, l in keys]  # noqa: E741  the paper's letter
    return TextMeasures(duplicate, np.array(contradictory, bool), overlap)


def answer_overlap(one: Sequence[int], other: Sequence[int]) -> float:
    """Dice's coefficient of neighbouring tokens; 1 for the same text, 0 for nothing in common."""
    mine, theirs = (Counter(zip((-1, *ids), ids, strict=False)) for ids in (one, other))
    return 2 * (mine & theirs).total() / (mine.total() + theirs.total())
