"""Encoded pairs: in memory, or as flat arrays on disk that are only mapped.

A million pairs are a few gigabytes of tokens. On disk they are one int32 array of tokens (prompt, chosen, rejected,
pair after pair), one array of offsets, and the rows' names in the same way; a pair is cut out when it is asked for.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, overload

import numpy as np

ARRAYS = ("tokens", "offsets", "names", "name_offsets")
#: Of unpaired data beside them: how many tokens of each rejected part are its own prompt, and the rows of both sides.
OWN_PROMPTS, BEHIND = "own_prompts", "behind"
_DTYPES = {
    "tokens": np.int32,
    "offsets": np.int64,
    "names": np.uint8,
    "name_offsets": np.int64,
    OWN_PROMPTS: np.int64,
    BEHIND: np.int64,
}
_FIRST_ROWS = 100  # names kept in a report; the cache's dropped.tsv has all of them


@dataclass(frozen=True)
class EncodedPair:
    """Token ids of one pair; `prompt` precedes both answers, unless the rejected one has a prompt of its own.

    `behind`: the numbers of the two rows of unpaired data that it was made of, each label counting from 0.
    """

    row: str
    prompt: tuple[int, ...]
    chosen: tuple[int, ...]
    rejected: tuple[int, ...]
    prompt_l: tuple[int, ...] | None = None
    behind: tuple[int, int] | None = field(default=None, kw_only=True)

    @property
    def rejected_row(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The rejected answer and the prompt before it."""
        return self.prompt if self.prompt_l is None else self.prompt_l, self.rejected

    @property
    def tokens(self) -> int:
        """Tokens a plain forward of both answers reads."""
        return len(self.prompt) + len(self.chosen) + sum(map(len, self.rejected_row))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Tokens of prompt, chosen and rejected; a rejected answer's own prompt counts as the difference it makes."""
        return len(self.prompt), len(self.chosen), sum(map(len, self.rejected_row)) - len(self.prompt)


@dataclass
class Tally:
    """How many rows one thing happened to, which ones at first, and why the first."""

    count: int = 0
    rows: list[str] = field(default_factory=list)
    reason: str = ""


@dataclass
class EncodeReport:
    """What happened to the rows, by kind: what was dropped, realigned, truncated."""

    kept: int = 0
    asked: int | None = None  # None: all there are
    kinds: dict[str, Tally] = field(default_factory=dict)
    log: IO[str] | None = field(default=None, repr=False, compare=False)

    def note(self, kind: str, row: str, reason: str = "") -> None:
        """Counts a row; every one is in the log, the first ones also here."""
        tally = self.kinds.setdefault(kind, Tally(reason=reason))
        tally.count += 1
        if len(tally.rows) < _FIRST_ROWS:
            tally.rows.append(row)
        if self.log is not None:
            self.log.write(f"{kind}\t{row}\t{reason}\n")

    def rows(self, kind: str) -> list[str]:
        """Names of the first rows of a kind."""
        return self.kinds[kind].rows if kind in self.kinds else []

    def summary(self) -> str:
        """One line; row names of the first few of each kind."""
        short = self.asked is not None and self.kept < self.asked
        parts = [f"{self.kept} pairs kept" + (f" of {self.asked} asked for" if short else "")]
        for kind, tally in self.kinds.items():
            shown = ", ".join(tally.rows[:3]) + (", …" if tally.count > 3 else "")
            parts.append(f"{tally.count} {kind} ({shown})")
        return "; ".join(parts)

    def first_reason(self) -> str:
        """The first thing that went wrong, in full."""
        return next((f"{t.rows[0]}: {t.reason}" for t in self.kinds.values() if t.reason), "the source has no row")


class Digest:
    """Hash over all tokens, fed pair by pair; the same in memory and on disk, whatever the rows are called."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, pair: EncodedPair) -> None:
        """Takes the next pair."""
        parts = [pair.prompt, pair.chosen, pair.rejected, *([] if pair.prompt_l is None else [pair.prompt_l])]
        self._hash.update(np.array([len(part) for part in parts], np.int64).tobytes())
        self._hash.update(np.array(sum(parts, ()), np.int32).tobytes())

    def hex(self) -> str:
        """The hash so far."""
        return self._hash.hexdigest()


@dataclass(frozen=True)
class EncodedPairs:
    """An encoded split and the account of how it was made."""

    pairs: Sequence[EncodedPair]
    report: EncodeReport
    digest: str = ""  # of all pairs, where it is known already

    def fingerprint(self) -> str:
        """Hash of every token id: tokenizer, template, data and lengths all show in it."""
        return self.digest or _digest_of(self.pairs)

    @cached_property
    def lengths(self) -> np.ndarray:
        """[pairs, 3] tokens of prompt, chosen and rejected, as `EncodedPair.sizes` counts them."""
        if isinstance(self.pairs, MappedPairs):
            return self.pairs.lengths()
        return np.array([pair.sizes for pair in self.pairs], np.int64).reshape(-1, 3)

    @cached_property
    def behind(self) -> np.ndarray | None:
        """[pairs, 2] the rows of unpaired data behind each pair; None for real pairs."""
        if isinstance(self.pairs, MappedPairs):
            return self.pairs.behind
        rows = [pair.behind for pair in self.pairs if pair.behind is not None]
        return np.array(rows, np.int64) if rows else None

    @cached_property
    def prompts(self) -> np.ndarray | None:
        """[pairs, 2] the prompts of both answers, numbered as they come; None where no two pairs share one."""
        if isinstance(self.pairs, MappedPairs):
            contents = self.pairs.prompts()
        else:
            contents = ((bytes_of(pair.prompt), bytes_of(pair.rejected_row[0])) for pair in self.pairs)
        numbers: dict[int, int] = {}  # by hash: the prompts of a large split are not held in memory
        rows = [[numbers.setdefault(hash(prompt), len(numbers)) for prompt in both] for both in contents]
        own = sum(chosen != rejected for chosen, rejected in rows)
        return np.array(rows, np.int64) if len(numbers) < len(rows) + own else None


def bytes_of(tokens: Sequence[int]) -> bytes:
    """Token ids as they lie on disk."""
    return np.array(tokens, _DTYPES["tokens"]).tobytes()


def _digest_of(pairs: Iterable[EncodedPair]) -> str:
    digest = Digest()
    for pair in pairs:
        digest.add(pair)
    return digest.hex()


class MappedPairs(Sequence[EncodedPair]):
    """The pairs of a directory written by `PairWriter`; only what is asked for is read from disk."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._tokens, self._offsets, self._names, self._name_offsets = (
            np.load(directory / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ARRAYS
        )
        own = directory / f"{OWN_PROMPTS}.npy"
        self._own = np.load(own, mmap_mode="r", allow_pickle=False) if own.exists() else None
        behind = directory / f"{BEHIND}.npy"
        self.behind = None if self._own is None else np.load(behind, allow_pickle=False).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._name_offsets) - 1

    @overload
    def __getitem__(self, index: int) -> EncodedPair: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[EncodedPair]: ...
    def __getitem__(self, index: int | slice) -> EncodedPair | Sequence[EncodedPair]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]  # negative from the end, IndexError beyond it
        start, chosen, rejected, end = self._offsets[3 * i : 3 * i + 4].tolist()
        ids = self._tokens[start:end].tolist()
        first, last = self._name_offsets[i : i + 2].tolist()
        own = 0 if self._own is None else int(self._own[i])
        return EncodedPair(
            self._names[first:last].tobytes().decode(),
            tuple(ids[: chosen - start]),
            tuple(ids[chosen - start : rejected - start]),
            tuple(ids[rejected - start + own :]),
            None if self._own is None else tuple(ids[rejected - start :][:own]),
            behind=None if self.behind is None else (int(self.behind[i, 0]), int(self.behind[i, 1])),
        )

    def lengths(self) -> np.ndarray:
        """[pairs, 3] tokens of prompt, chosen and rejected, as `EncodedPair.sizes` counts them."""
        sizes = np.diff(self._offsets).reshape(-1, 3)
        return sizes if self._own is None else sizes - sizes[:, :1] * (0, 0, 1)

    def prompts(self) -> Iterator[tuple[bytes, bytes]]:
        """The ids before each answer of every pair, as they lie on disk."""
        for i in range(len(self)):
            start, chosen, rejected = self._offsets[3 * i : 3 * i + 3].tolist()
            prompt = self._tokens[start:chosen].tobytes()
            own = prompt if self._own is None else self._tokens[rejected : rejected + int(self._own[i])].tobytes()
            yield prompt, own


class PairWriter:
    """Writes pairs as they come; memory does not grow with their number."""

    def __init__(self, directory: Path, *, unpaired: bool = False):
        directory.mkdir(parents=True, exist_ok=True)
        names = (*ARRAYS, OWN_PROMPTS, BEHIND) if unpaired else ARRAYS
        self._arrays = {name: _GrowingArray(directory / f"{name}.npy", _DTYPES[name]) for name in names}
        self._end = self._name_end = 0
        self._digest = Digest()
        self._arrays["offsets"].append([0])
        self._arrays["name_offsets"].append([0])

    def add(self, pair: EncodedPair) -> None:
        """Appends one pair."""
        self._digest.add(pair)
        own = pair.prompt_l or ()
        ends = np.cumsum([self._end, len(pair.prompt), len(pair.chosen), len(own) + len(pair.rejected)])[1:]
        if OWN_PROMPTS in self._arrays:
            assert pair.behind is not None
            self._arrays[OWN_PROMPTS].append([len(own)])
            self._arrays[BEHIND].append(pair.behind)
        name = pair.row.encode(errors="replace")
        self._end, self._name_end = int(ends[-1]), self._name_end + len(name)
        self._arrays["tokens"].append(pair.prompt + pair.chosen + own + pair.rejected)
        self._arrays["offsets"].append(ends)
        self._arrays["names"].append(np.frombuffer(name, np.uint8))
        self._arrays["name_offsets"].append([self._name_end])

    def close(self) -> str:
        """Completes the files; returns the fingerprint of all pairs."""
        for array in self._arrays.values():
            array.close()
        return self._digest.hex()


class _GrowingArray:
    """A one-dimensional .npy file of unknown length: numpy leaves room in the header for the final one."""

    def __init__(self, path: Path, dtype: Any):
        self.dtype = np.dtype(dtype)
        self.size = 0
        self.file = path.open("wb")
        self._header()

    def _header(self) -> None:
        described = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": (self.size,),
        }
        np.lib.format.write_array_header_1_0(self.file, described)  # type: ignore[arg-type]

    def append(self, values: Sequence[int] | np.ndarray) -> None:
        self.file.write(np.asarray(values, self.dtype).tobytes())
        self.size += len(values)

    def close(self) -> None:
        self.file.seek(0)
        self._header()
        self.file.close()
