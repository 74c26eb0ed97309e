"""Preference pairs as text, before any tokenizer: two splits that never share a row.

Nothing is held in memory: a split is read again every time it is iterated.
"""

import hashlib
import logging
import random
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from rcray.config import content_key
from rcray.config.data import DataConfig
from rcray.data import synthetic
from rcray.data.dialogue import Answer, Item, Pair, Skipped, Turn
from rcray.data.readers import read_pairs
from rcray.data.rows import Rows
from rcray.data.sources import open_rows
from rcray.data.unpaired import LABELS, missing_label, pair_up
from rcray.errors import DataError

log = logging.getLogger(__name__)

HELD_OUT_SHARE = 0.1  # at most, where a dataset has no split of its own for it
TRAIN, HELD_OUT = "train", "held-out"
DRAW_VERSION = 1  # raised when the same seed would draw other rows; before there was one, the first rows were taken
_DRAWN_AT_ONCE = 4096  # pairs held as text; a larger draw reads its source once for each such part


@dataclass(frozen=True)
class Stream:
    """Rows as they were read, and rows left out, in the source's order; may be iterated again."""

    start: Callable[[], Iterator[Item | Skipped]]

    def __iter__(self) -> Iterator[Item | Skipped]:
        return self.start()

    def pairs(self, config: DataConfig) -> "Pairs":
        """The same as pairs, labelled answers two by two."""
        return Pairs(self, config.format == "unpaired")


@dataclass(frozen=True)
class Pairs:
    """The pairs of a stream and its rows left out; may be iterated again."""

    rows: Stream
    unpaired: bool

    def __iter__(self) -> Iterator[Pair | Skipped]:
        if self.unpaired:
            return pair_up(self.rows)
        return (item for item in self.rows if not isinstance(item, Answer))


@dataclass(frozen=True)
class PairSplits:
    """Pairs to train on, and held-out pairs for the probe and the preference metrics."""

    train: Iterable[Pair | Skipped]
    held_out: Iterable[Pair | Skipped]
    source: Callable[[], str]  # fingerprint of what is read; costs a pass over local files


def load_pairs(config: DataConfig) -> PairSplits:
    """Opens the two splits of a dataset."""
    if config.name == "synthetic":
        return _synthetic(config)
    rows = open_rows(config, config.split)
    if config.eval_split is not None:
        others = open_rows(config, config.eval_split)
        kept = Stream(lambda: _without_excluded(read_pairs(rows, config), config))
        return PairSplits(
            _drawn(kept, rows.count, config).pairs(config),
            Stream(lambda: read_pairs(others, config)).pairs(config),
            lambda: content_key([rows.fingerprint(), others.fingerprint()], 64),
        )
    return _held_out_share(rows, config)


def _synthetic(config: DataConfig) -> PairSplits:
    def split(name: str, count: int) -> Iterator[Pair]:
        rows = synthetic.generate(count, difficulty=config.difficulty, seed=config.seed, split=name)
        return (Pair(f"{name}/{i}", (Turn("user", row[0]),), *row[1:]) for i, row in enumerate(rows))

    assert config.train_pairs is not None  # the configuration refuses it
    count = config.train_pairs
    return PairSplits(
        Stream(lambda: _without_excluded(split(TRAIN, count), config)).pairs(config),
        Stream(lambda: split(HELD_OUT, config.eval_pairs)).pairs(config),
        lambda: f"synthetic {synthetic.VERSION}",
    )


def _held_out_share(rows: Rows, config: DataConfig) -> PairSplits:
    """A seeded draw of good rows is held out, and no prompt of theirs is trained on, not even from another row."""

    @cache
    def drawn() -> frozenset[int]:
        count = rows.count()
        size = held_out_rows(config, count)
        if size < config.eval_pairs * config.rows_per_pair:
            log.warning(
                "%s: data.eval_pairs %d: %d of %d rows are held out, a tenth at the most; give an eval_split for more",
                *(config.name, config.eval_pairs, size, count),
            )
        spare = min(count, 2 * size + 8)  # some of the drawn rows may be bad
        ranks = random.Random(f"{config.seed}/held-out").sample(range(count), spare)
        good = _good_rows(read_pairs(rows, config), set(ranks))
        usable = [i for i in ranks if i in good]
        if config.format == "pairs":
            return frozenset(usable[:size])
        each = -(-size // 2)  # of either label: a held-out pair has one of both
        return frozenset(i for label in LABELS for i in [i for i in usable if good[i] is label][:each])

    def held_out() -> Iterator[Item | Skipped]:
        chosen = drawn()
        return (item for i, item in enumerate(read_pairs(rows, config)) if i in chosen)

    @cache  # a draw reads the training rows many times
    def held_out_prompts() -> frozenset[bytes]:
        return frozenset(_prompt_key(item) for item in held_out() if not isinstance(item, Skipped))

    def train() -> Iterator[Item | Skipped]:
        chosen, prompts = drawn(), held_out_prompts()
        for i, item in enumerate(_without_excluded(read_pairs(rows, config), config)):
            if i in chosen:
                continue
            if not isinstance(item, Skipped) and _prompt_key(item) in prompts:
                yield Skipped(item.row, "dropped held out", "its prompt is that of a held-out row", bad=False)
            else:
                yield item

    return PairSplits(
        _drawn(Stream(train), rows.count, config).pairs(config), Stream(held_out).pairs(config), rows.fingerprint
    )


def held_out_rows(config: DataConfig, count: int) -> int:
    """How many rows are held out of a source without a split for it: what is asked, up to a tenth."""
    return min(config.eval_pairs * config.rows_per_pair, max(2, int(count * HELD_OUT_SHARE)))


def _drawn(stream: Stream, count: Callable[[], int], config: DataConfig) -> Stream:
    """The same rows in an order drawn by the seed, where only some are wanted: a file's first rows may be alike.

    Rows are handed on as they are drawn and the encoder stops when it has enough, so the source is read once for every
    few thousand rows that it needs, and never held in memory.
    """

    def start() -> Iterator[Item | Skipped]:
        assert config.train_pairs is not None
        size = count()
        if config.train_pairs >= size:
            yield from stream
            return
        order = random.Random(f"{config.seed}/train").sample(range(size), size)
        for first in range(0, size, _DRAWN_AT_ONCE):
            ranks = {position: rank for rank, position in enumerate(order[first : first + _DRAWN_AT_ONCE])}
            chosen = {ranks[i]: item for i, item in enumerate(stream) if i in ranks}
            yield from (chosen[rank] for rank in sorted(chosen))

    return Stream(start) if config.draws else stream


def _without_excluded(items: Iterable[Item | Skipped], config: DataConfig) -> Iterator[Item | Skipped]:
    """The same rows in the same places, those of `data.exclude_rows` left out."""
    excluded, position = frozenset(config.exclude_rows or ()), -1
    for position, item in enumerate(items):
        if position in excluded and not isinstance(item, Skipped):
            yield Skipped(item.row, "dropped excluded", "data.exclude_rows names it", bad=False)
        else:
            yield item
    if excluded and max(excluded) > position:
        raise DataError(
            f"data.exclude_rows: row {max(excluded)} of a source whose rows are 0 to {position}",
            fix="make the file again with `rcray diagnose --write-filter`",
        )


def row_numbers(config: DataConfig, names: Collection[str]) -> dict[str, int]:
    """The numbers of these training rows, as `data.exclude_rows` counts them."""
    if config.name == "synthetic":
        return {name: int(name.rpartition("/")[2]) for name in names}
    wanted = set(names)
    rows = read_pairs(open_rows(config, config.split), config)
    return {item.row: position for position, item in enumerate(rows) if item.row in wanted}


def _good_rows(items: Iterable[Item | Skipped], among: set[int]) -> dict[int, bool]:
    """Positions of usable rows, and the labels of unpaired ones."""
    usable = ((i, item) for i, item in enumerate(items) if i in among and not isinstance(item, Skipped))
    return {i: item.label if isinstance(item, Answer) else True for i, item in usable}


def _prompt_key(item: Item) -> bytes:
    return hashlib.sha256(repr(item.prompt).encode(errors="surrogatepass")).digest()


def check_pairs(config: DataConfig) -> None:
    """Everything that can be refused without a tokenizer: a missing source or column; bad rows, if they may not be.

    Called before any weights are read, so that a fault in the data costs seconds.
    """
    if config.name == "synthetic":
        return
    splits: list[tuple[str | None, int | None]] = [(config.split, None)]
    if config.eval_split is not None:
        splits = [(config.split, config.train_pairs), (config.eval_split, config.eval_pairs)]
    for split, limit in splits:
        enough = limit if config.bad_rows == "fail" else 1  # one good row shows that there is a dataset
        kept, lacking = 0, set(LABELS) if config.format == "unpaired" else set()
        for item in read_pairs(open_rows(config, split), config):
            if not isinstance(item, Skipped):
                kept += 1
                lacking -= {item.label} if isinstance(item, Answer) else set()
            elif config.bad_rows == "fail":
                refuse_bad(item)
            if enough is not None and kept >= enough and not lacking:
                break
        if kept and lacking:
            raise missing_label(lacking.pop())


def refuse_bad(skipped: Skipped) -> None:
    """Stops at a row with a fault."""
    if skipped.bad:
        raise DataError(f"{skipped.row}: {skipped.reason}", fix="correct the row, or set data.bad_rows: drop")
