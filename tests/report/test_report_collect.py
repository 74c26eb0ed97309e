import math
import subprocess
import sys

import numpy as np
import pytest
import runs

from rcray.aggregate.collect import collect
from rcray.aggregate.groups import compare, difference
from rcray.aggregate.summary import AGREEMENT, CHANGE_L, PREDICTED, STEPS, intervals
from rcray.config import Experiment
from rcray.records.columns import IN_BAND
from rcray.store import Store
from rcray.sweep.grid import expand


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def test_a_finished_cell_is_read_whole(store):
    cells = runs.cells_of(runs.quickstart())
    runs.write_runs(store, cells)
    result = collect(store, cells)[3]  # CPO with RC
    assert (result.status, result.error, result.seconds, result.step) == ("ok", "", 41.5, 200)
    assert result.metrics["preference/accuracy"].value == 0.79296875
    assert result.metrics["preference/accuracy"].n == 256
    assert (result.metrics["preference/accuracy"].unit, result.metrics["preference/drift_w"].unit) == ("share", "nats")
    assert result.value(STEPS) == 200
    assert result.value(IN_BAND) == 1.0
    assert sum(result.value(metric) for metric in PREDICTED.values()) == pytest.approx(1.0)
    assert result.metrics[AGREEMENT].n == 19  # the last probe came after its update, where no look is
    assert result.value(CHANGE_L) == pytest.approx(-1.8, abs=0.2)


def test_a_cell_that_never_started_is_pending(store):
    cells = runs.cells_of(runs.quickstart())
    assert {result.status for result in collect(store, cells)} == {"pending"}
    assert collect(store, cells)[0].dynamics(["step", "log_r"])["log_r"].size == 0


def test_dynamics_are_sorted_and_the_later_part_wins(store):
    cell = runs.cells_of(runs.quickstart())[0]
    run = runs.write_ok(store, cell)
    later = runs.dynamics(cell, 120)
    later["loss"] = np.full(120, 7.0)
    import pyarrow as pa
    import pyarrow.parquet as pq

    order = np.arange(120)[::-1]  # unsorted within the part, and overlapping steps 1 to 120
    table = pa.table({name: pa.array(np.asarray(values)[order]) for name, values in later.items()})
    pq.write_table(table, run.dynamics / "part-00000101-00000220.parquet")
    records = collect(store, [cell])[0].dynamics(["step", "loss"])
    assert records["step"].tolist() == list(range(1, 201))
    assert (records["loss"][:120] == 7.0).all()
    assert (records["loss"][120:] < 7.0).all()


def test_damaged_files_are_a_failure_that_names_the_file(store):
    cells = runs.cells_of(runs.quickstart())
    runs.write_runs(store, cells)
    (store.run(cells[0].run_id).dynamics / "part-00000001-00000100.parquet").write_bytes(b"not parquet")
    store.run(cells[1].run_id).evaluation.write_text('{"rows": [{"metric": ')
    store.run(cells[2].run_id).evaluation.write_text('{"rows": [{"value": 1}]}')
    store.run(cells[3].run_id).status.write_text("{")
    runs.write_status(store.run(cells[4].run_id), cells[4], "splendid")
    results = collect(store, cells)
    assert [result.status for result in results] == ["failed"] * 5 + ["ok"]
    for result, word in zip(results, ("part-00000001", "evaluation", "evaluation", "status", "splendid"), strict=False):
        assert word in result.error


def test_agreement_compares_the_majority_of_each_interval():
    # Looks before the updates of rows 0 and 3, and after that of the last row.
    predicted = ["iii", "i", "iii", "ii", "iii", "ii"]
    realised = ["", "", "", "iii", "", "i"]
    assert intervals(predicted, realised, 3, finished=True) == [("iii", "iii"), ("ii", "i")]
    assert intervals(["i", "iii", "ii"], ["", "", "iii"], 2, finished=False) == [("iii", "iii")]  # a tie: the later
    assert intervals(["i", "i", "iii"], ["", "", "iii"], 2, finished=True) == [("iii", "iii")]  # due twice: the last
    assert intervals(["iii"], [""], 10, finished=True) == []


@pytest.mark.parametrize(
    ("ranks", "titles"),
    [
        ([4], ["DPO (method=full, scores=head)", "DPO (method=lora, scores=adapters)"]),
        ([4, 8], ["DPO (method=full, scores=head)", *(f"DPO (method=lora, r={r}, scores=adapters)" for r in (4, 8))]),
    ],
)
def test_what_follows_from_another_setting_is_not_named(store, ranks, titles):
    """Adapters exist where the method is lora: their settings are named only where they differ among those."""
    cells = [{"objective": "dpo"}, *({"model.method": "lora", "model.lora.r": rank} for rank in ranks)]
    experiment = Experiment(name="methods", run={"model": "tiny-neox"}, cells=cells)
    assert [comparison.title for comparison in compare(collect(store, expand(experiment)))] == titles


def test_variants_of_rc_share_one_row_without_it(store):
    experiment = Experiment(
        name="ema",
        run={"objective": "cpo"},
        grid={"calibration.enabled": [False, True], "calibration.ema_beta": [0.9, 0.98], "train.seed": [42, 43]},
    )
    cells = expand(experiment)
    runs.write_runs(store, cells)
    comparisons = compare(collect(store, cells))
    assert len(comparisons) == 1
    assert [setting.rc for setting in comparisons[0].settings] == ["w/o", "w/ (ema_beta=0.9)", "w/ (ema_beta=0.98)"]
    assert [len(setting.results) for setting in comparisons[0].settings] == [2, 2, 2]


def test_settings_of_an_objective_are_compared_apart(store):
    experiment = Experiment(
        name="beta",
        run={"objective": "dpo"},
        grid={"objective.beta": [0.1, 0.5], "calibration.enabled": [False, True]},
    )
    comparisons = compare(collect(store, expand(experiment)))
    assert [comparison.title for comparison in comparisons] == ["DPO (beta=0.1)", "DPO (beta=0.5)"]


def test_difference_pairs_seeds(store):
    cells = runs.cells_of(runs.several_seeds(runs.quickstart()))
    runs.write_runs(store, cells)
    dpo = compare(collect(store, cells))[0]
    delta = difference(dpo.without, dpo.with_rc[0], "preference/accuracy")
    # The fake seeds move the two rows by 1/64 and 1/128 per seed.
    assert delta.seeds == 3
    assert delta.value == pytest.approx(0.828125 - 0.8125 - 1 / 128)
    assert delta.std == pytest.approx(1 / 128)
    assert delta.stderr == pytest.approx(1 / 128 / math.sqrt(3))


def test_the_report_imports_no_torch_ray_or_mlflow():
    code = (
        "import sys, rcray.aggregate.report, rcray.aggregate.html, rcray.aggregate.figures\n"
        "print(sorted({'torch', 'ray', 'mlflow', 'transformers', 'matplotlib.pyplot'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
