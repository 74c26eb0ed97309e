"""Unpaired rows, one labelled answer each, as pairs: a wanted answer beside an unwanted one to another prompt.

An objective that takes such rows is a sum of one term per side, so it does not matter which answer stands beside which.
The answers of the rarer label come again until those of the other are used up. Weights in the objective make up for
it: in an epoch every row counts in one step, and there once (data/repeats.py).
"""

from collections.abc import Iterable, Iterator

from rcray.data.dialogue import Answer, Item, Pair, Skipped
from rcray.errors import DataError

LABELS = {True: "wanted (label: true)", False: "unwanted (label: false)"}


def pair_up(rows: Iterable[Item | Skipped]) -> Iterator[Pair | Skipped]:
    """As many pairs as there are answers of the more frequent label, in the order of the rows.

    `rows` is iterated more than once, and never held: twice at the same time, and again for each time that the answers
    of a label run out.
    """
    wanted, unwanted = _Answers(rows, True), _Answers(rows, False)
    while True:
        w, l = next(wanted), next(unwanted)  # noqa: E741  the paper's letter
        yield from wanted.take_skipped()
        if wanted.ran_out and unwanted.ran_out:
            return
        yield Pair(f"{w.row} + {l.row}", w.prompt, w.completion, l.completion, l.prompt, (w.row, l.row))


class _Answers(Iterator[Answer]):
    """Answers of one label, again and again; rows left out are kept on the first pass."""

    def __init__(self, rows: Iterable[Item | Skipped], label: bool):
        self.rows, self.label = rows, label
        self.ran_out = False
        self._skipped: list[Skipped] = []
        self._pass = iter(rows)

    def __next__(self) -> Answer:
        answer = self._in_this_pass()
        if answer is None:
            self.ran_out, self._pass = True, iter(self.rows)
            answer = self._in_this_pass()
        if answer is None:
            raise missing_label(self.label)
        return answer

    def _in_this_pass(self) -> Answer | None:
        for item in self._pass:
            if isinstance(item, Answer) and item.label is self.label:
                return item
            if isinstance(item, Skipped) and not self.ran_out:
                self._skipped.append(item)
        return None

    def take_skipped(self) -> list[Skipped]:
        """Rows left out since this was last asked."""
        taken, self._skipped = self._skipped, []
        return taken


def missing_label(label: bool) -> DataError:
    """What to say of rows that all have the other label."""
    return DataError(
        f"data.format: unpaired: no usable row is {LABELS[label]}",
        fix="unpaired rows need answers of both labels; an eval_split, or more rows, where the held-out ones lack one",
    )
