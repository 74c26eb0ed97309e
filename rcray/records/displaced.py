"""`displaced/KEY.parquet`: the held-out pairs whose chosen answers fell most, token by token, before and after.

KEY is that of the measurement of held-out pairs, as evaluation.json names it; `items/KEY.parquet` has every pair, this
has the worst of them with their texts.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rcray.files import damaged, write_parquet

SIDES = ("chosen", "rejected")


@dataclass(frozen=True, eq=False)
class AnswerTokens:
    """One answer: its tokens as text, and the log-probability of each under both models, in nats."""

    tokens: tuple[str, ...]
    start: np.ndarray  # [tokens]
    trained: np.ndarray

    @property
    def change(self) -> float:
        """What the answer gained, in nats."""
        return float((self.trained - self.start).sum())


@dataclass(frozen=True, eq=False)
class DisplacedPair:
    """One held-out pair."""

    row: str  # as its item is named
    prompt: str
    chosen: AnswerTokens
    rejected: AnswerTokens


def write_displaced(path: Path, pairs: tuple[DisplacedPair, ...]) -> None:
    """Writes the pairs, the worst first."""
    import pyarrow as pa

    columns: dict[str, list[object]] = {"row": [p.row for p in pairs], "prompt": [p.prompt for p in pairs]}
    kinds = [("row", pa.string()), ("prompt", pa.string())]
    for side in SIDES:
        answers = [getattr(pair, side) for pair in pairs]
        columns[f"{side}_tokens"] = [list(answer.tokens) for answer in answers]
        columns[f"{side}_start"] = [np.asarray(answer.start, float) for answer in answers]
        columns[f"{side}_trained"] = [np.asarray(answer.trained, float) for answer in answers]
        kinds += [(f"{side}_tokens", pa.list_(pa.string()))]
        kinds += [(f"{side}_{model}", pa.list_(pa.float64())) for model in ("start", "trained")]
    write_parquet(path, pa.table(columns, pa.schema(kinds)), compression="zstd")


def read_displaced(path: Path) -> tuple[DisplacedPair, ...]:
    """The pairs, the worst first; none where no file was kept, as in stores of earlier versions."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        return ()
    try:
        rows = pq.read_table(path, page_checksum_verification=True).to_pylist()
        return tuple(
            DisplacedPair(
                row["row"],
                row["prompt"],
                *(
                    AnswerTokens(
                        tuple(row[f"{side}_tokens"]), np.array(row[f"{side}_start"]), np.array(row[f"{side}_trained"])
                    )
                    for side in SIDES
                ),
            )
            for row in rows
        )
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise damaged(path, error, "delete the run's evaluation.json and evaluate again") from None
