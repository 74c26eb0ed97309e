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

from rcray.config.data import DataConfig
from rcray.data.batch import collate, mismatched
from rcray.data.encoded import EncodedPair, EncodedPairs, EncodeReport
from rcray.models.inference import pair_sums
from rcray.models.reference import ReferenceLogps
from rcray.objectives import objective
from rcray.train.baseline import kl_baseline
from rcray.train.step import optimizer_step
from tests.math.test_one_backward import build, gradients, state_of

LONGEST = DataConfig().max_length


def rows(wanted, unwanted, seed=11):
    """Prompts and answers as token ids, all of different lengths."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(count):
        return tuple(torch.randint(5, 400, (count,), generator=generator).tolist())

    return [[(tokens(2 + i), tokens(9 - i)) for i in range(count)] for count in (wanted, unwanted)]


def trl_loss(model, reference, wanted, unwanted, loss_type, **settings):
    """Loss and gradients of TRL's trainer, rows in order, wanted first; the mismatched answers are its own rotation."""
    words = {f"w{i}": i for i in range(model.config.vocab_size - 3)}
    words |= {name: model.config.vocab_size - 1 - i for i, name in enumerate(("[unk]", "[pad]", "[eos]"))}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="[unk]")),
        unk_token="[unk]", pad_token="[pad]", eos_token="[eos]",
    )  # fmt: skip
    few = [{"prompt": "w1", "completion": " w2", "label": label} for label in (True, False)]
    trainer = KTOTrainer(
        model,
        ref_model=reference,
        args=KTOConfig(
            output_dir=tempfile.mkdtemp(), per_device_train_batch_size=2, loss_type=loss_type, max_length=None,
            gradient_checkpointing=False, use_cpu=True, bf16=False, report_to="none", disable_tqdm=True, **settings,
        ),
        train_dataset=Dataset.from_list(few),
        processing_class=tokenizer,
    )  # fmt: skip
    labelled = [(*row, True) for row in wanted] + [(*row, False) for row in unwanted]
    examples = [{"prompt_ids": list(p), "completion_ids": list(a), "label": label} for p, a, label in labelled]
    if loss_type == "kto":
        for i, example in enumerate(examples):
            example["KL_completion_ids"] = examples[i - 1]["completion_ids"]
    model.zero_grad(set_to_none=True)
    loss = trainer._compute_loss(trainer.model, trainer.data_collator(examples), return_outputs=False)
    loss.backward()
    (baseline,) = [value for metrics in trainer._metrics.values() for value in metrics["kl"]]
    found = loss.item(), baseline, gradients(model)
    model.zero_grad(set_to_none=True)
    return found


def our_loss(model, reference, wanted, unwanted, **hyperparameters):
    """The same through pairs of two rows each and one optimizer step at rate 0."""
    count = max(len(wanted), len(unwanted))
    pairs = [
        EncodedPair(str(i), *wanted[i % len(wanted)], unwanted[i % len(unwanted)][1], unwanted[i % len(unwanted)][0])
        for i in range(count)
    ]
    data = EncodedPairs(pairs, EncodeReport(kept=count, rows_behind=(len(wanted), len(unwanted))))
    state = state_of(model, "kto", estimator="head", calibrated=False, n=count)
    policy = state.policy
    policy.objective = objective("kto", **hyperparameters)
    policy.reference = ReferenceLogps(*pair_sums(reference, pairs, data.lengths, range(count), torch.device("cpu")))
    policy.side_weights = data.side_weights
    if hyperparameters["baseline"] == "kl":
        policy.baseline = kl_baseline(model, reference, "sum", LONGEST, policy.precision, None)
    batch = collate(pairs, range(count))
    outcome = optimizer_step(state, [batch], 1)
    baseline = float(policy.baseline(batch)) if policy.baseline else 0.0
    return outcome.sums[0] / count, baseline, gradients(model)


@pytest.fixture
def models_apart(quick_cache):
    """A policy that has moved a little from its reference."""
    model = build(quick_cache, "full", "tiny-neox").float()
    reference = copy.deepcopy(model).requires_grad_(False)
    torch.manual_seed(4)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.02 * torch.randn_like(p))
    return model, reference


@pytest.mark.parametrize(
    ("loss_type", "baseline", "counts"),
    [("kto", "kl", (3, 3)), ("apo_zero_unpaired", "none", (3, 3)), ("apo_zero_unpaired", "none", (4, 2)),
     ("apo_zero_unpaired", "none", (2, 4))],
)  # fmt: skip
def test_loss_baseline_and_gradients_are_trls(models_apart, loss_type, baseline, counts):
    """A pair is two rows: our mean over pairs is TRL's mean over rows, times the rows per pair."""
    wanted, unwanted = rows(*counts)
    theirs, their_baseline, their_gradients = trl_loss(
        *models_apart, wanted, unwanted, loss_type, beta=0.3, desirable_weight=1.5, undesirable_weight=0.5
    )
    ours, our_baseline, our_gradients = our_loss(
        *models_apart, wanted, unwanted, beta=0.3, lam_w=1.5, lam_l=0.5, baseline=baseline
    )
    per_pair = sum(counts) / max(counts)
    assert ours / per_pair == pytest.approx(theirs, abs=1e-5)
    assert our_baseline == pytest.approx(their_baseline, abs=1e-4)
    assert baseline == "none" or our_baseline > 0.01  # a baseline that does something
    largest = max(g.abs().max() for g in their_gradients.values())
    for name, gradient in their_gradients.items():
        assert (our_gradients[name] / per_pair - gradient).abs().max() / largest < 1e-4, name


def test_mismatched_rows_keep_their_prompts_and_move_their_answers():
    (a, b), (c, d) = rows(2, 2)
    batch = collate([EncodedPair("0", *a, c[1], c[0]), EncodedPair("1", *b, d[1], d[0])], range(2))
    side = mismatched(batch, 12)
    expected = [(a[0], d[1]), (b[0], a[1]), (c[0], b[1]), (d[0], c[1])]
    for i, (prompt, answer) in enumerate(expected):
        real, response = side.attention[i].bool(), side.response[i].bool()
        kept = answer[: 12 - len(prompt)]
        assert tuple(side.ids[i][real].tolist()) == prompt + kept
        assert tuple(side.ids[i][response].tolist()) == kept
