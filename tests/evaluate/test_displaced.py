"""The most displaced pairs: the worst of all, their tokens adding up to what the items say."""

import numpy as np
import pytest

from rcray.config.evaluation import EvaluationConfig
from rcray.evaluate.stage import evaluate_run
from rcray.records.displaced import read_displaced
from rcray.records.items import read_items


@pytest.fixture
def measured(trained):
    outcome = evaluate_run(trained.plain, trained.store, EvaluationConfig(displaced=5))
    assert outcome.loads == 1, "the trained model is read once"
    run = trained.run(trained.plain)
    key = run.read_evaluation().keys["preference"]
    return read_items(run.items(key)), read_displaced(run.displaced(key))


def test_they_are_the_worst_and_add_up(measured):
    items, worst = measured
    order = np.argsort(items.columns["drift_w"], kind="stable")[:5]
    assert [pair.row for pair in worst] == [items.names[i] for i in order]
    for pair, i in zip(worst, order, strict=True):
        for side, answer in (("w", pair.chosen), ("l", pair.rejected)):
            assert len(answer.tokens) == len(answer.start) == len(answer.trained) == items.columns[f"n_{side}"][i]
            assert answer.start.sum() == pytest.approx(items.columns[f"start_{side}"][i], abs=1e-3)
            assert answer.trained.sum() == pytest.approx(items.columns[f"trained_{side}"][i], abs=1e-3)
        assert pair.chosen.change == pytest.approx(items.columns["drift_w"][i], abs=1e-3)
        assert "".join(pair.chosen.tokens).split() and pair.prompt


def test_none_where_none_are_asked_for(trained):
    evaluate_run(trained.calibrated, trained.store, EvaluationConfig(displaced=0))
    run = trained.run(trained.calibrated)
    assert not (run.path / "displaced").exists()
    assert read_displaced(run.displaced(run.read_evaluation().keys["preference"])) == ()
