"""KTO on unpaired rows: loss, baseline and gradients of TRL's own KTOTrainer on the same rows."""

import copy
import tempfile

import pytest
import torch

pytest.importorskip("trl")
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from trl import KTOConfig, KTOTrainer

from rcray.data.batch import mismatched
from rcray.data.encoded import EncodedPair, EncodedPairs, EncodeReport
from rcray.data.schedule import Schedule
from rcray.models.inference import pair_sums
from rcray.models.reference import ReferenceLogps
from rcray.objectives import objective
from rcray.train.ahead import Ahead
from rcray.train.baseline import kl_baseline
from rcray.train.step import optimizer_step
from tests.math.test_one_backward import build, gradients, state_of

SETTINGS = {"beta": 0.3, "lam_w": 1.5, "lam_l": 0.5}


def rows(wanted, unwanted, seed=11):
    """Prompts and answers as token ids, all of different lengths."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(count):
        return tuple(torch.randint(5, 400, (count,), generator=generator).tolist())

    return [[(tokens(2 + i), tokens(9 - i)) for i in range(count)] for count in (wanted, unwanted)]


def trainer_of(model, reference, loss_type):
    """TRL's trainer; what it trains on stands for nothing."""
    words = {f"w{i}": i for i in range(model.config.vocab_size - 3)}
    words |= {name: model.config.vocab_size - 1 - i for i, name in enumerate(("[unk]", "[pad]", "[eos]"))}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="[unk]")),
        unk_token="[unk]", pad_token="[pad]", eos_token="[eos]",
    )  # fmt: skip
    few = [{"prompt": "w1", "completion": " w2", "label": label} for label in (True, False)]
    return KTOTrainer(
        model,
        ref_model=reference,
        args=KTOConfig(
            output_dir=tempfile.mkdtemp(), per_device_train_batch_size=2, loss_type=loss_type, max_length=None,
            gradient_checkpointing=False, use_cpu=True, bf16=False, report_to="none", disable_tqdm=True,
            beta=SETTINGS["beta"], desirable_weight=SETTINGS["lam_w"], undesirable_weight=SETTINGS["lam_l"],
        ),
        train_dataset=Dataset.from_list(few),
        processing_class=tokenizer,
    )  # fmt: skip


def trl_loss(trainer, wanted, unwanted):
    """Loss, baseline and gradients, rows in order, wanted first; the mismatched answers are its own rotation."""
    model = trainer.model
    labelled = [(*row, True) for row in wanted] + [(*row, False) for row in unwanted]
    examples = [{"prompt_ids": list(p), "completion_ids": list(a), "label": label} for p, a, label in labelled]
    if trainer.loss_type == "kto":
        for i, example in enumerate(examples):
            example["KL_completion_ids"] = examples[i - 1]["completion_ids"]
    model.zero_grad(set_to_none=True)
    for metrics in trainer._metrics.values():
        metrics.clear()
    loss = trainer._compute_loss(model, trainer.data_collator(examples), return_outputs=False)
    loss.backward()
    (baseline,) = [value for metrics in trainer._metrics.values() for value in metrics["kl"]]
    ours = loss.item(), baseline, gradients(model)
    model.zero_grad(set_to_none=True)
    return ours


def paired_up(wanted, unwanted):
    """Pairs of two rows each, as training has them."""
    count = max(len(wanted), len(unwanted))
    behind = [(i % len(wanted), i % len(unwanted)) for i in range(count)]
    pairs = [EncodedPair(str(i), *wanted[i], *reversed(unwanted[j]), behind=(i, j)) for i, j in behind]
    return EncodedPairs(pairs, EncodeReport(kept=count))


def our_steps(model, reference, data, batch_size, baseline):
    """One epoch of optimizer steps at rate 0: the rows that count in each, its loss, baseline and gradients."""
    count = len(data.pairs)
    state = state_of(model, "kto", estimator="head", calibrated=False, n=batch_size)
    policy = state.policy
    policy.objective = objective("kto", **SETTINGS, baseline=baseline)
    policy.reference = ReferenceLogps(*pair_sums(reference, data.pairs, data.lengths, range(count), policy.device))
    if baseline == "kl":
        policy.baseline = kl_baseline(model, reference, "sum", policy.precision, None)
    schedule = Schedule(count, batch_size, batch_size, epochs=1, seed=5, behind=data.behind)
    ahead = Ahead(policy, data.pairs, schedule)
    for step in range(schedule.total_steps):
        (batch,) = ahead.at(step)
        weights = batch.weights.T.tolist()
        numbers = [(data.pairs[i].behind, w) for i, w in zip(batch.index.tolist(), weights, strict=True)]
        rows = [list(dict.fromkeys(behind[side] for behind, w in numbers if w[side])) for side in (0, 1)]
        outcome = optimizer_step(state, [batch], step + 1)
        kl = float(policy.baseline(batch)) if policy.baseline else 0.0
        yield rows, outcome.sums[0] / batch_size, kl, gradients(model)


@pytest.fixture(scope="module")
def models_apart(quick_cache):
    """A policy that has moved a little from its reference, and TRL's trainers of it by their loss."""
    model = build(quick_cache, "full", "tiny-neox").float()
    reference = copy.deepcopy(model).requires_grad_(False)
    torch.manual_seed(4)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.02 * torch.randn_like(p))
    trainers = {loss_type: trainer_of(model, reference, loss_type) for loss_type in ("kto", "apo_zero_unpaired")}
    return model, reference, trainers


#: Wanted rows, unwanted rows, pairs of a step.
COUNTS = [(3, 3, 3), (4, 2, 4), (2, 4, 4), (2, 5, 5), (5, 2, 5), (8, 3, 4), (3, 7, 3)]


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize(("loss_type", "baseline"), [("kto", "kl"), ("apo_zero_unpaired", "none")])
def test_loss_baseline_and_gradients_of_every_step_are_trls(models_apart, loss_type, baseline, counts):
    """A pair is two rows: our mean over pairs is TRL's mean over the rows that count, times those rows per pair."""
    (*labels, batch_size), seen, baselines = counts, [[], []], []
    wanted, unwanted = rows(*labels)
    model, reference, trainers = models_apart
    for numbers, *ours in our_steps(model, reference, paired_up(wanted, unwanted), batch_size, baseline):
        for side, row in zip(seen, numbers, strict=True):
            side += row
        these = [[side[i] for i in row] for side, row in zip((wanted, unwanted), numbers, strict=True)]
        theirs = trl_loss(trainers[loss_type], *these)
        per_pair = sum(map(len, these)) / batch_size
        assert ours[0] / per_pair == pytest.approx(theirs[0], abs=1e-5)
        assert ours[1] == pytest.approx(theirs[1], abs=1e-4)
        baselines.append(ours[1])
        largest = max(g.abs().max() for g in theirs[2].values())
        for name, gradient in theirs[2].items():
            assert (ours[2][name] / per_pair - gradient).abs().max() / largest < 1e-4, name
    assert baseline == "none" or max(baselines) > 0.01  # a baseline that does something
    for side, count in zip(seen, labels, strict=True):
        assert len(set(side)) == len(side) and (len(side) == count or max(labels) % batch_size)


def test_mismatched_rows_keep_their_prompts_and_move_their_answers():
    (a, b), (c, d) = rows(2, 2)
    pairs = [EncodedPair("0", *a, c[1], c[0]), EncodedPair("1", *b, d[1], d[0])]
    side = mismatched(pairs, range(2), 12)
    expected = [(a[0], d[1]), (b[0], a[1]), (c[0], b[1]), (d[0], c[1])]
    assert len(side.ids) == 4
    for i, (prompt, answer) in enumerate(expected):
        real, response = side.attention[i].bool(), side.response[i].bool()
        kept = answer[: 12 - len(prompt)]
        assert tuple(side.ids[i][real].tolist()) == prompt + kept
        assert tuple(side.ids[i][response].tolist()) == kept
