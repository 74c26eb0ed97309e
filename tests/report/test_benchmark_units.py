"""Benchmarks of a user's own: shares are printed in percent and averaged, any other number as it is."""

import pytest
import runs

from rcray.aggregate.catalogue import catalogue_of_runs
from rcray.aggregate.collect import collect
from rcray.aggregate.groups import compare
from rcray.aggregate.tables import to_csv, to_markdown
from rcray.config.benchmarks import is_share
from rcray.store import Store

MEASURED = {
    "own/acc": (0.27, 0.29),
    "own/acc_norm": (0.5, 0.25),
    "own/perplexity": (12.0, 11.0),
    "other/exact_match.strict-match": (0.41, 0.43),
    "story/bits_per_byte": (0.75, 0.5),
}


def table_of(tmp_path, measured=MEASURED):
    store = Store.open(tmp_path / "store")
    cells = runs.cells_of(runs.quickstart())[:2]
    for i, cell in enumerate(cells):
        runs.add_benchmarks(runs.write_ok(store, cell), {name: values[i] for name, values in measured.items()})
    results = collect(store, cells)
    tables = catalogue_of_runs("t", results, compare(results), []).tables
    return next(table for table in tables if table.name == "benchmarks")


def test_a_metric_is_printed_in_its_own_unit_and_shares_alone_are_averaged(tmp_path):
    table = table_of(tmp_path)
    lines = to_markdown(table).splitlines()
    row = "27.00 ± 1.00 | **50.00 ± 1.00** | 12.00 ± 0.01 | 41.00 ± 1.00 | 0.75 ± 0.01 | 34.00 | – |"
    assert lines[4] == f"| DPO | w/o | {row}"
    row = "**29.00 ± 1.00** | 25.00 ± 1.00 | 11.00 ± 0.01 | **43.00 ± 1.00** | 0.50 ± 0.01 | **36.00** | +2.00 |"
    assert lines[5] == f"| DPO | w/ | {row}"  # the lower perplexity is the better one: nothing is bold
    assert "Not in percent, not in the average, never bold: own/perplexity, story/bits_per_byte." in table.notes
    assert "Of several metrics of a benchmark the average has the first, and not: own/acc_norm." in table.notes
    assert to_csv(table).splitlines()[1].endswith(",DPO,w/o,27,1,50,1,12,0.01,41,1,0.75,0.01,34,NA,NA")
    assert "standard error, pooled: 0.01" in table.rows[0].entries[4].tip


def test_without_a_share_there_is_no_average(tmp_path):
    table = table_of(tmp_path, {"own/perplexity": (12.0, 11.0)})
    assert to_markdown(table).splitlines()[5] == "| DPO | w/ | 11.00 ± 0.01 | – | – |"


@pytest.mark.parametrize(
    ("metric", "share"),
    [("acc", True), ("own/acc_norm,none", True), ("own/exact_match.flexible-extract", True),
     ("own/word_perplexity", False), ("acc_of_something", False), ("own", False)],
)  # fmt: skip
def test_which_metrics_are_shares(metric, share):
    assert is_share(metric) == share
