"""The published tables, rebuilt from the package's data, against the tables as the paper prints them.

printed/*.txt holds the bodies of the paper's tables, one line per row, taken from its text and not from our data.
"""

import math
import re
from pathlib import Path

import pytest

from rcray.aggregate import published
from rcray.aggregate.benchmark_tables import table_of_published
from rcray.aggregate.catalogue import catalogue_of_published
from rcray.aggregate.paper import BENCHMARK_TABLES, RUNTIME_MODELS, RUNTIME_OBJECTIVES
from rcray.aggregate.published import AVERAGE
from rcray.aggregate.repeats import noise_notes, repeats
from rcray.aggregate.tables import entry_text, to_csv, to_markdown
from rcray.config.benchmarks import benchmark_title

PRINTED = Path(__file__).parent / "printed"
#: The paper prints a benchmark in two spellings; ours is the one that it has everywhere else.
SPELLING, PRINTED_ONCE = "MUSR", "MuSR"
TABLES = {table.name: table for table in catalogue_of_published().tables}


def printed(name):
    """Header and rows; a label that the paper prints once for several rows is repeated."""
    header, *lines = [line.split(" | ") for line in (PRINTED / f"{name}.txt").read_text().splitlines()]
    rows, group, label = [], "", ""
    for line in lines:
        if len(line) == 1:
            group = line[0]
            continue
        if line[0] == "Baseline":
            line = ["Baseline", "", *line[1:]]
        label = line[0].strip() or label
        rows.append((group, [label, *line[1:]]))
    return header, rows


@pytest.mark.parametrize("name", ["main", "pythia", "hh", "ema", "epochs"])
def test_every_printed_score_is_in_our_table(name):
    header, rows = printed(name)
    table = TABLES[name]
    titles = [column.title for column in table.columns]
    ours = [title for title in titles if title != "Δ"]
    assert ours == [title.replace(" (Δ)", "").replace(PRINTED_ONCE, SPELLING) for title in header]
    assert len(table.rows) == len(rows)
    checked = 0
    for row, (group, cells) in zip(table.rows, rows, strict=True):
        assert row.group == (group or row.group)
        for column, entry, text in zip(table.columns, row.entries, cells, strict=False):
            text, _, delta = text.partition(" (")
            if "±" in text:
                value, error = text.split(" ±")
                error = f"0{error}" if error.startswith(".") else error
                text = f"{value} ± {error}"
            assert entry_text(column, entry) == text, (group, cells)
            checked += text.count(".")
            if delta:
                assert entry_text(table.columns[-1], row.entries[-1]) == delta.rstrip(")").replace("+0.00", "0.00")
                checked += 1
    expected = {"main": 28 * 13 + 14, "pythia": 18 * 9 + 9, "hh": 4 * 13, "ema": 6 * 9 + 5, "epochs": 5 * 13}
    assert checked == expected[name]


def test_a_benchmark_has_one_spelling_in_every_table():
    assert benchmark_title("musr") == SPELLING
    texts = [column.title for table in TABLES.values() for column in table.columns]
    texts += [text for table in TABLES.values() for text in (table.title, *table.notes)]
    spelled = {word for text in texts for word in re.findall("musr", text, re.IGNORECASE)}
    assert spelled == {SPELLING}


def test_every_number_of_the_data_is_in_a_table():
    """377 scores were announced; the file has 379, averages included."""
    shown = 0
    for spec in BENCHMARK_TABLES:
        printed_scores = published.scores(spec.name)
        assert {row.place for row in spec.rows()} == set(printed_scores)
        for scores in printed_scores.values():
            assert set(scores) == {*spec.benchmarks, AVERAGE}
            shown += len(scores)
    assert shown == 379
    assert 2 * len(published.runtimes()) == 54


def test_recomputed_averages_and_deltas_agree_to_rounding():
    for spec in BENCHMARK_TABLES:
        for place, scores in published.scores(spec.name).items():
            mean = sum(scores[name].value for name in spec.benchmarks) / len(spec.benchmarks)
            assert abs(mean - scores[AVERAGE].value) <= 0.00005 + 1e-9, (spec.name, place)


def minutes(text):
    parsed = re.fullmatch(r"([+-]?)(?:(\d+)h )?(\d+)m", text)
    value = 60 * int(parsed[2] or 0) + int(parsed[3])
    return -value if parsed[1] == "-" else value


def test_every_printed_runtime_is_in_our_table():
    header, rows = printed("runtime")
    table = TABLES["runtime"]
    assert [column.title for column in table.columns] == header[1:]
    assert len(rows) == len(table.rows) == 12
    for row, (_, (model, metric, *cells)) in zip(table.rows, rows, strict=True):
        assert (row.group, row.entries[0].words) == (model, metric)
        for column, entry, text in zip(table.columns[1:], row.entries[1:], cells, strict=True):
            ours = entry_text(column, entry)
            if metric == "Δ (%)":
                assert ours == text
            else:
                assert minutes(ours) == minutes(text)
                assert ours[0] == text[0]  # a minus before a rounded zero, too
                assert entry.value == minutes(text)


def test_recomputed_runtime_differences_agree_to_rounding():
    """The paper took differences of unrounded times: half a minute on each side."""
    for key, time in published.runtimes().items():
        assert abs(time.with_rc - time.without - time.minutes) <= 1, key
        share = (time.with_rc - time.without) / time.without
        assert abs(share - time.share) <= 1.0 / time.without + 0.001, key
    for model in RUNTIME_MODELS:
        for side in ("without", "with_rc"):
            times = [getattr(published.runtimes()[model, objective], side) for objective in RUNTIME_OBJECTIVES]
            assert abs(sum(times) / len(times) - getattr(published.runtimes()[model, AVERAGE], side)) <= 1


def test_win_rates_and_footnotes():
    text = to_markdown(TABLES["alpaca-eval"])
    assert "| DPO | DeepSeek V3.2 | 70.56 |" in text
    assert "| BCE | DeepSeek V3.2 | 51.43 |" in text
    assert "| DPO | GPT-4-Turbo | 70.12 |" in text
    assert "probably degenerate" in to_markdown(TABLES["main"])
    assert "probably degenerate" not in to_markdown(TABLES["pythia"])
    assert all("mix two definitions" in to_markdown(TABLES[spec.name]) for spec in BENCHMARK_TABLES)


def test_csv_has_plain_numbers():
    lines = to_csv(TABLES["main"]).splitlines()
    assert lines[0].startswith("model,method,rc,mmlu_pro,mmlu_pro_stderr,bbh,bbh_stderr")
    assert lines[2] == "Mistral-7B,DPO,w/,30.31,0.42,44.83,3.01,41.67,1.74,60.92,1.43,2.7,0.45,38.21,1.34,36.44,12.18"
    assert to_csv(TABLES["runtime"]).splitlines()[1].startswith("Mistral-7B,w/o RC Time,646,660,712,651")


def test_a_cell_that_is_printed_twice_is_footnoted_and_estimates_the_noise():
    (repeat,) = repeats()
    assert (repeat.place.model, repeat.place.objective, repeat.place.rc) == ("pythia-2.8b", "dpo", True)
    assert repeat.scores["average"] == pytest.approx((28.77, 28.95))
    assert repeat.scores["arc"] == pytest.approx((37.12, 37.88))
    gaps = [34.39 - 34.66, 11.27 - 11.15, 32.31 - 32.12, 37.12 - 37.88]
    assert repeat.noise == pytest.approx(math.sqrt(sum(gap**2 for gap in gaps) / 4 / 2))
    assert repeat.average_noise == pytest.approx(0.18 / math.sqrt(2))
    for name, spec in {spec.name: spec for spec in BENCHMARK_TABLES}.items():
        noted = any("average 28.77 and 28.95" in note for note in table_of_published(spec).notes)
        assert noted == (name in ("pythia", "ema"))
    assert ["0.18 in the average" in note for note in noise_notes()] == [True]
