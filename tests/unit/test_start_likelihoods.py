"""What looks compare with: likelihoods of their pairs where training began, read by a budget of tokens."""

import pytest
import torch

from rcray.config import run_id
from rcray.data.batch import collate
from rcray.models import inference
from rcray.models.likelihood import side_logps
from rcray.train import fresh
from rcray.train.loop import Job, prepare
from tests.small_runs import small_config


@pytest.mark.parametrize("likelihood", ["sum", "mean"])
def test_they_are_those_of_single_forwards(store, monkeypatch, likelihood):
    """Without a reference; in fewer forwards than there are portions."""
    forwards, count = [], inference.batch_sums
    monkeypatch.setattr(inference, "batch_sums", lambda *args: forwards.append(args) or count(*args))
    read = []
    budgeted = fresh.pair_sums
    monkeypatch.setattr(fresh, "pair_sums", lambda *args: read.append(len(forwards)) or budgeted(*args))
    config = small_config(
        objective="cpo", likelihood=likelihood, train={"micro_batch_size": 1}, calibration={"look_every": 2}
    )
    training = prepare(Job(config, store, run_id(config), "a"), 0, 1)
    start, model = training.fresh.start, training.state.policy.model
    assert len(read) == 1 and 0 < len(forwards) - read[0] < len(start) / 2
    for row, found in start.items():
        batch = collate(training.data.pairs, [row])
        with torch.no_grad():
            sides = [side_logps(model, side) for side in (batch.chosen, batch.rejected)]
        expected = [(side.sums / (side.lengths if likelihood == "mean" else 1)).item() for side in sides]
        assert found == pytest.approx(expected, rel=1e-5)


def test_a_look_keeps_to_the_budget_of_tokens(store):
    """As the run's own micro-batches do; halved where memory ran out, it is halved for looks."""
    budget = 60
    train = {"batch_size": 8, "micro_batch_tokens": budget}
    config = small_config(train=train, calibration={"look_every": 2, "look_pairs": 8})
    training = prepare(Job(config, store, run_id(config), "a"), 0, 1)
    tokens, looks = training.schedule.tokens, [training.fresh.at(step) for step in (0, 2)]
    for look in looks:
        parts = [batch.index.tolist() for batch in look.batches]
        assert sum(map(len, parts)) == look.pairs == 8 and len(parts) > 1
        assert all(len(part) * max(tokens[part]) <= budget or len(part) == 1 for part in parts)
        start = [training.fresh.start[row] for part in parts for row in part]
        assert look.start.T.tolist() == [list(pair) for pair in start]
    schedule, plan = training.schedule, training.fresh.plan
    shares = [fresh._parts(plan, 0, 8, rank, 2) for rank in (0, 1)]
    assert sorted(row for share in shares for part in share for row in part) == sorted(plan.rows(0))
    assert [len(part) for part in shares[0]] == [len(part) for part in shares[1]] and schedule.budget == budget
