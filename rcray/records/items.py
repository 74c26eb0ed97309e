"""`items/KEY.parquet`: what a measurement said of each held-out pair or document, beside its rows in evaluation.json.

KEY is the measurement's own, as evaluation.json names it. An item has the same name in every run that was measured on
it, so two runs can be compared item by item.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rcray.files import damaged, write_parquet

_NAME, _TASK = "item", "task"


@dataclass(frozen=True, eq=False)
class Items:
    """Pairs or documents in the order in which they were measured, and a column of numbers for each metric.

    Held-out pairs have beside their metrics `start_w`, `start_l`, `trained_w`, `trained_l` (sums of log-probabilities,
    in nats) and the lengths `n_w`, `n_l`.
    """

    names: tuple[str, ...]  # a pair's row, a document's task, number and hash
    tasks: tuple[str, ...]  # the single task of a document; "" for pairs
    columns: Mapping[str, np.ndarray]  # [items] each; nan where a task has no such metric


def write_items(path: Path, items: Items) -> None:
    """Writes what was said of each item."""
    import pyarrow as pa

    columns = {_NAME: list(items.names), _TASK: list(items.tasks)}
    table = pa.table(columns | {name: np.asarray(values, dtype=float) for name, values in items.columns.items()})
    write_parquet(path, table, compression="zstd")


def read_items(path: Path) -> Items | None:
    """What was said of each item; None where no file was kept, as in stores of earlier versions."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        return None
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        names, tasks = (tuple(table[name].to_pylist()) for name in (_NAME, _TASK))
        columns = {
            name: table[name].to_numpy().astype(float) for name in table.column_names if name not in (_NAME, _TASK)
        }
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise damaged(path, error, "delete the run's evaluation.json and evaluate again") from None
    return Items(names, tasks, columns)
