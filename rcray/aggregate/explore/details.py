"""What the page shows of single pairs: every held-out pair as a point, the worst token by token, samples in words.

Texts and names that several runs share are written once.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rcray.aggregate.collect import CellResult
from rcray.aggregate.explore.curves import pack
from rcray.config.benchmarks import PREFERENCE
from rcray.errors import StoreError
from rcray.records.displaced import DisplacedPair, read_displaced
from rcray.records.items import Items, read_items
from rcray.records.samples import read_samples

_MANY_RUNS = 60  # past which each has fewer pairs, so that a page stays at a few megabytes
_FEWER_PAIRS = 4


class Details:
    """Details of runs, gathered one by one."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, ...], int] = {}
        self._texts: dict[tuple[Any, ...], int] = {}
        self._runs: dict[str, dict[str, Any]] = {}

    def add(self, result: CellResult, *, pairs: int | None = None) -> None:
        """Takes what a run's directory has; of the worst pairs only so many, where it is said."""
        try:
            key = result.run.read_evaluation().keys.get(PREFERENCE) if result.ok else None
            items = read_items(result.run.items(key)) if key else None
            worst = read_displaced(result.run.displaced(key)) if key else ()
            samples = read_samples(result.run.samples) if result.ok else ()
        except StoreError as error:  # said where the tables say it; the others are shown
            self._runs[result.cell.run_id] = {"problem": error.message}
            return
        detail: dict[str, Any] = {}
        if items is not None and {"drift_w", "drift_l"} <= items.columns.keys():
            detail["pairs"] = self._pairs(items)
        if worst:
            detail["displaced"] = [self._displaced(pair) for pair in worst[:pairs]]
        if samples:
            detail["samples"] = [asdict(sample) for sample in samples]
        self._runs[result.cell.run_id] = detail

    def content(self) -> dict[str, Any]:
        """All of it, as the page reads it."""
        texts = [dict(zip(("row", "prompt", "chosen", "rejected"), text, strict=True)) for text in self._texts]
        return {"names": [list(names) for names in self._names], "texts": texts, "runs": self._runs}

    def _pairs(self, items: Items) -> list[Any]:
        names = self._names.setdefault(items.names, len(self._names))
        return [names, pack(items.columns["drift_w"]), pack(items.columns["drift_l"])]

    def _displaced(self, pair: DisplacedPair) -> list[Any]:
        """The number of its text, and four rows of log-probabilities: start and trained, chosen and rejected."""
        text = (pair.row, pair.prompt, pair.chosen.tokens, pair.rejected.tokens)
        logps = [pack(values) for side in (pair.chosen, pair.rejected) for values in (side.start, side.trained)]
        return [self._texts.setdefault(text, len(self._texts)), *logps]


def details_of(results: Sequence[CellResult]) -> dict[str, Any]:
    """Of every run of a page; with very many runs fewer pairs of each are spelled out, and `most` says how many."""
    details, most = Details(), None if len(results) <= _MANY_RUNS else _FEWER_PAIRS
    for result in results:
        details.add(result, pairs=most)
    return {**details.content(), "most": most}
