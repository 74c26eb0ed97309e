"""Scores read off the one backward, and the gradients it leaves, equal the published two extra `autograd.grad` calls.

The reference forwards chosen and rejected apart, as plain padded rows, and calibrates with `calibrate`; nothing of
parts.py, layout.py or the packed rows is in it.
"""

import math

import pytest
import torch

from rcray.calibration import Calibrator, calibrate, observe, score_parameters
from rcray.config.model import ModelConfig
from rcray.config.objectives import BY_NAME
from rcray.data.batch import Batch, Side, collate
from rcray.data.encode import EncodedPair
from rcray.models import head as head_module
from rcray.models.capabilities import capabilities_of
from rcray.models.load import load_model
from rcray.models.reference import ReferenceLogps
from rcray.objectives import objective
from rcray.train import step as step_module
from rcray.train.extra_gradients import pair_logps
from rcray.train.micro import Policy
from rcray.train.parts import may_share_prompts, score_source
from rcray.train.record import row_of
from rcray.train.step import Scoring, StepState, Update, optimizer_step

#: Uneven on purpose: prompts and answers of many lengths, an answer of one token.
SIZES = ((3, 9, 4), (12, 1, 7), (7, 5, 5), (9, 6, 12))
WAYS = {"full": ("tiny-neox", "head"), "lora": ("tiny-mistral", "adapters"), "qlora": ("tiny-qwen2", "adapters")}


def make_pairs(sizes=SIZES):
    generator = torch.Generator().manual_seed(7)

    def tokens(count):
        return tuple(torch.randint(5, 400, (count,), generator=generator).tolist())

    return [EncodedPair(str(i), tokens(p), tokens(w), tokens(r)) for i, (p, w, r) in enumerate(sizes)]


def make_batch(sizes=SIZES, padding="right"):
    pairs = make_pairs(sizes)
    batch = collate(pairs, range(len(pairs)))
    return batch if padding == "right" else Batch(batch.index, _left(batch.chosen), _left(batch.rejected))


def _left(side):
    """The same rows, padded on the left."""
    turned = [
        torch.stack([row.roll(int((mask == 0).sum())) for row, mask in zip(tensor, side.attention, strict=True)])
        for tensor in (side.ids, side.attention, side.response)
    ]
    return Side(*turned)


def build(quick_cache, method, architecture=None):
    """A model whose adapters are off zero, in float64 where 4 bits allow it."""
    name = architecture or WAYS[method][0]
    lora = {} if method == "full" else {"lora": {"r": 4, "alpha": 8}}
    config = ModelConfig(name=str(quick_cache / name), method=method, **lora)
    model = load_model(config, quick_cache, seed=1).model
    torch.manual_seed(3)
    for parameter_name, p in model.named_parameters():
        if "lora_B" in parameter_name:
            torch.nn.init.normal_(p, std=0.05)
    return model if method == "qlora" else model.double()


def state_of(model, name, *, estimator, calibrated=True, likelihood="sum", window="microbatch", sharing="off", n=4):
    loss = objective(name)
    traits = loss.params.traits
    source = None if traits.needs_reference_distribution else score_source(model, estimator)
    assert sharing == "off" or may_share_prompts(model, source) or source is None
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.0)
    generator = torch.Generator().manual_seed(5)
    sums = [-20 - 10 * torch.rand(n, generator=generator, dtype=torch.float64) for _ in range(2)]
    lengths = torch.tensor([[w, r] for _, w, r in SIZES], dtype=torch.float64).T
    live = None
    if traits.token_level:
        live = model
        if not hasattr(model, "disable_adapter"):
            import copy

            live = copy.deepcopy(model).requires_grad_(False)
            with torch.no_grad():
                for p in live.parameters():
                    p.mul_(1.01)
    policy = Policy(
        model=model,
        objective=loss,
        likelihood=likelihood,
        share_prompts=sharing,
        short_mlp=capabilities_of(model).short_mlp,
        reference=ReferenceLogps(*sums, *lengths) if traits.needs_reference and not traits.token_level else None,
        live_reference=live,
    )
    parameters = [] if source else score_parameters(model, estimator)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    return StepState(
        policy=policy,
        scoring=Scoring(per_micro_batch=window == "microbatch", source=source, parameters=parameters),
        update=Update(optimizer, schedule, batch_size=n, clip_norm=1e9),
        calibrator=Calibrator(0.9, clip=False) if calibrated else None,
    )


def published(model, state, batch, estimator, calibrated):
    """Gradients and the decision of the published way, on the same model."""
    model.zero_grad(set_to_none=True)
    parameters = score_parameters(model, estimator)
    pairs, loss = pair_logps(state.policy, batch), state.policy.objective
    calibrator = Calibrator(0.9, clip=False) if calibrated else None
    calibrated_pairs = calibrate(loss, pairs.z_w, pairs.z_l, parameters=parameters, calibrator=calibrator, pairs=pairs)
    calibrated_pairs.loss.mean().backward()
    return gradients(model), calibrated_pairs.report


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def tolerance_of(model):
    """float64 throughout for GPT-NeoX; Mistral and Qwen2 norm in float32 whatever the weights are."""
    if next(p for p in model.parameters() if p.requires_grad).dtype == torch.float32:
        return 2e-5
    return 1e-9 if model.config.model_type == "gpt_neox" else 1e-6


def compare(model, state, batches, whole, estimator, *, calibrated, monkeypatch):
    tolerance = tolerance_of(model)
    expected, report = published(model, state, whole, estimator, calibrated)
    decided = []
    monkeypatch.setattr(step_module, "observe", lambda stats: decided.append(observe(stats)) or decided[-1])
    if state.calibrator:
        update = state.calibrator.update
        monkeypatch.setattr(state.calibrator, "update", lambda stats: decided.append(update(stats)) or decided[-1])
    optimizer_step(state, batches, 1)
    got = gradients(model)
    assert got.keys() == expected.keys()
    largest = max(g.abs().max() for g in expected.values())
    for name in expected:
        assert (got[name] - expected[name]).abs().max() <= tolerance * largest, name
    assert decided[0].log_alpha == pytest.approx(report.log_alpha, abs=10 * tolerance)
    for name in ("log_s_w", "log_s_l", "rho", "log_d_w", "log_d_l"):
        assert getattr(decided[0].stats, name) == pytest.approx(getattr(report.stats, name), abs=10 * tolerance), name


@pytest.mark.parametrize("calibrated", [True, False], ids=["rc", "off"])
@pytest.mark.parametrize("sharing", ["on", "off"], ids=["packed", "rows"])
@pytest.mark.parametrize("name", list(BY_NAME))
@pytest.mark.parametrize("method", list(WAYS))
def test_every_objective(quick_cache, monkeypatch, method, name, sharing, calibrated):
    estimator = WAYS[method][1]
    model = build(quick_cache, method)
    likelihood = "mean" if name == "simpo" else "sum"
    state = state_of(model, name, estimator=estimator, calibrated=calibrated, likelihood=likelihood, sharing=sharing)
    batch = make_batch()
    compare(
        model,
        state,
        [batch],
        batch,
        estimator,
        calibrated=calibrated,
        monkeypatch=monkeypatch,
    )


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("sharing", ["on", "off"], ids=["packed", "rows"])
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("architecture", ["tiny-neox", "tiny-mistral", "tiny-qwen2"])
def test_every_architecture_and_padding(quick_cache, monkeypatch, architecture, method, sharing, padding):
    estimator = WAYS[method][1]
    model = build(quick_cache, method, architecture)
    state = state_of(model, "dpo", estimator=estimator, sharing=sharing)
    compare(
        model,
        state,
        [make_batch(padding=padding)],
        make_batch(),
        estimator,
        calibrated=True,
        monkeypatch=monkeypatch,
    )


@pytest.mark.parametrize(("method", "estimator"), [("full", "head"), ("full", "full"), ("lora", "adapters")])
@pytest.mark.parametrize("name", ["dpo", "cpo", "ti-dpo", "tdpo"])
def test_a_step_of_many_micro_batches(quick_cache, monkeypatch, method, estimator, name):
    """Statistics over the step: two micro-batches whose branches are kept apart equal one published batch."""
    model = build(quick_cache, method)
    state = state_of(model, name, estimator=estimator, window="step", sharing="on")
    whole = make_batch()
    parts = [half(whole, [0, 1]), half(whole, [2, 3])]
    compare(model, state, parts, whole, estimator, calibrated=True, monkeypatch=monkeypatch)


def half(batch, rows):
    sides = [Side(s.ids[rows], s.attention[rows], s.response[rows]) for s in (batch.chosen, batch.rejected)]
    return Batch(batch.index[rows], *sides)


@pytest.mark.parametrize("name", ["dpo", "ti-dpo"])
@pytest.mark.parametrize(("form", "kept"), [("gram", True), ("direct", True), ("direct", False)])
def test_every_form_of_the_head_scores(quick_cache, monkeypatch, name, kept, form):
    """Gram matrix or direct sums, residuals kept or recomputed in chunks: the same numbers."""
    monkeypatch.setattr(head_module, "chunk_tokens", lambda vocabulary: 7)
    if not kept:
        monkeypatch.setattr(head_module, "KEEP_BYTES", 0)
    monkeypatch.setattr("rcray.train.parts.exact_form", lambda *sizes, alone: form)
    model = build(quick_cache, "full")
    batch = make_batch()
    state = state_of(model, name, estimator="head", sharing="on")
    compare(model, state, [batch], batch, "head", calibrated=True, monkeypatch=monkeypatch)


def test_the_sketch_is_that_of_the_plain_path(quick_cache, monkeypatch):
    model = build(quick_cache, "full")
    batch = make_batch()
    state = state_of(model, "dpo", estimator="sketch", sharing="on")
    compare(model, state, [batch], batch, "sketch", calibrated=True, monkeypatch=monkeypatch)


@pytest.mark.parametrize("calibrated", [True, False], ids=["RC", "off"])
@pytest.mark.parametrize("window", ["microbatch", "step"])
def test_a_sketch_is_checked_against_the_exact_scores(quick_cache, window, calibrated):
    batches = [half(make_batch(), slice(0, 2)), half(make_batch(), slice(2, 4))]
    model = build(quick_cache, "full")
    exact, sketched = (
        state_of(model, "dpo", estimator=estimator, window=window, calibrated=calibrated, sharing="on")
        for estimator in ("head", "sketch")
    )
    sketched.scoring.check_sketch_every = 2
    expected = row_of(optimizer_step(exact, batches, 1))
    rows = [row_of(optimizer_step(sketched, batches, step)) for step in (1, 2, 3)]
    for row in (rows[0], rows[2]):
        assert row["rho_exact"] == pytest.approx(expected["rho"], abs=1e-9)
        assert row["log_r_star_exact"] == pytest.approx(expected["log_r_star"], abs=1e-9)
        assert 0 < abs(row["rho_exact"] - row["rho"]) < 0.2, "a sketch is near, and not the same"
    assert math.isnan(rows[1]["rho_exact"]) and math.isnan(expected["rho_exact"])


def test_a_saturated_pair_is_watched_too(quick_cache, monkeypatch):
    """Without calibration rows are divided by their seeds; a seed of nearly nothing takes another way."""
    model = build(quick_cache, "lora")
    state = state_of(model, "dpo", estimator="adapters", calibrated=False, sharing="on")
    state.policy.reference.sum_w[1] -= 400  # m~ of about 400: the seed underflows
    batch = make_batch()
    compare(model, state, [batch], batch, "adapters", calibrated=False, monkeypatch=monkeypatch)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_gradient_checkpointing_changes_nothing(quick_cache, monkeypatch, method):
    from rcray.train.setup import checkpoint_blocks

    estimator = WAYS[method][1]
    model = build(quick_cache, method)
    state = state_of(model, "dpo", estimator=estimator, sharing="on")
    plain = build(quick_cache, method)
    expected, _ = published(plain, state_of(plain, "dpo", estimator=estimator), make_batch(), estimator, True)
    checkpoint_blocks(model)
    model.train()
    optimizer_step(state, [make_batch()], 1)
    got = gradients(model)
    assert all(torch.allclose(got[n], expected[n], atol=1e-9) for n in expected)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["full", "lora"])
def test_compiled_blocks_change_nothing(quick_cache, method):
    from rcray.train.setup import compile_blocks

    estimator = WAYS[method][1]
    model = build(quick_cache, method)
    plain = build(quick_cache, method)
    expected, _ = published(plain, state_of(plain, "dpo", estimator=estimator), make_batch(), estimator, True)
    compile_blocks(model, torch.device("cpu"))
    for sizes in (SIZES[:2], SIZES):  # other lengths are no reason to fail
        optimizer_step(state_of(model, "dpo", estimator=estimator, sharing="on"), [make_batch(sizes)], 1)
    torch._dynamo.reset()
    got = gradients(model)
    assert all(torch.allclose(got[n], expected[n], atol=1e-6) for n in expected)
