"""Two workers, with whole or with sharded models, make the step one process makes; checkpoints fit them all."""

from itertools import product

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rcray.calibration import Calibrator
from rcray.calibration.update import Drift, UpdateCalibrator
from rcray.config.model import ModelConfig
from rcray.data.encoded import EncodedPair, EncodedPairs, EncodeReport
from rcray.data.schedule import Schedule
from rcray.models.capabilities import capabilities_of
from rcray.models.load import load_model
from rcray.models.reference import ReferenceLogps
from rcray.objectives import objective
from rcray.train import parallel
from rcray.train.ahead import Ahead
from rcray.train.baseline import kl_baseline
from rcray.train.checkpoint import Progress, Resumable, Snapshot, restore_newest, save_checkpoint
from rcray.train.look import Fresh, Looks
from rcray.train.micro import Policy
from rcray.train.parts import score_source
from rcray.train.record import row_of
from rcray.train.sharded import has_shards, whole_weights
from rcray.train.step import Scoring, StepState, Update, optimizer_step
from tests.math.test_one_backward import half, make_batch
from tests.ray.heads import free_ports

PAIRS = 4
JUDGED = ("log_alpha", "predicted_dz_w", "next_dz_l", "batch_dz_w", "fresh_drift_w", "grad_norm")
CASES = {"full": "tiny-neox", "lora": "tiny-mistral", "qlora": "tiny-neox", "qlora in bfloat16": "tiny-neox"}
#: Also in float64, by looks at parts of a step, and resumed between two looks: nothing of that is other in 4 bits.
COMPLETE = ("full", "lora")
#: How far rows of two workers may be from those of one; products in bfloat16 are rounded otherwise in other shapes.
CLOSE = {name: 1e-4 for name in CASES} | {"qlora in bfloat16": 1e-2}


def build(directory, case, way, kind="published", double=False):
    method, _, dtype = case.partition(" in ")
    config = ModelConfig(name=directory, method=method, lora={"r": 4, "alpha": 8}, dtype=dtype or "float32")
    model = load_model(config, None, seed=1, to_shard=way == "fsdp").model
    torch.manual_seed(3)
    for name, p in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.05)
    model = model.double() if double else model
    source = score_source(model, "head" if method == "full" else "adapters")
    short_mlp, precision = capabilities_of(model).short_mlp, capabilities_of(model).precision
    if way == "fsdp":
        parallel.shard(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    sums = -20 - torch.arange(2.0 * PAIRS, dtype=torch.float64).view(2, PAIRS)
    policy = Policy(
        model=model,
        objective=objective("dpo"),
        likelihood="sum",
        share_prompts="on",
        short_mlp=short_mlp,
        precision=precision.context,
        reference=ReferenceLogps(sums[0], sums[1], sums[0], sums[1]),
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    clip = parallel.clip_norm if way == "fsdp" else torch.nn.utils.clip_grad_norm_
    workers = (
        parallel.Workers() if way == "one" else parallel.Workers(2, parallel.ProcessGroup(), parallel.sum_gradients)
    )
    together = {"reduce": workers.reduce, "sum_gradients": workers.sum_gradients}
    rank = 0 if way == "one" else dist.get_rank()
    return StepState(
        policy=policy,
        scoring=Scoring(per_micro_batch=True, source=source),
        update=Update(optimizer, schedule, batch_size=PAIRS, clip_norm=0.5, clip=clip),
        calibrator={"published": Calibrator(0.9), "update": UpdateCalibrator()}.get(kind),
        workers=workers,
        looks=Looks(policy, optimizer, 0.5, rank=rank, **together) if kind == "update" else None,
    )


def steps(state, batch, count):
    return [row_of(optimizer_step(state, [batch], step + 1)) for step in range(count)]


def looking_steps(state, batches, fresh):
    """A look at the first and at the third of four steps."""
    looks = {0: fresh, 2: fresh}
    return [row_of(optimizer_step(state, batches, step + 1, looks.get(step))) for step in range(4)]


def looks_at(batch, pairs):
    """A look at these pairs of this worker, of so many over all."""
    return Fresh([batch], pairs, torch.full((2, len(batch.index)), -20.0, dtype=torch.float64))


def kto_steps(directory, method, way):
    """Two steps of KTO with its baseline on rows of which 8 are wanted and 3 are not."""
    generator = torch.Generator().manual_seed(9)
    tokens = [tuple(torch.randint(5, 400, (3 + i,), generator=generator).tolist()) for i in range(12)]
    data = [
        EncodedPair(str(i), tokens[i], tokens[-i], tokens[i % 3], tokens[4 + i % 3], behind=(i, i % 3))
        for i in range(8)
    ]
    state = build(directory, method, way, None)
    policy, workers = state.policy, state.workers
    frozen = policy.model if method != "full" else load_model(ModelConfig(name=directory), None).model.eval()
    sums = [-20 - torch.arange(8.0, dtype=torch.float64) for _ in range(4)]
    policy.objective, policy.reference = objective("kto", baseline="kl", beta=0.3), ReferenceLogps(*sums)
    policy.baseline = kl_baseline(policy.model, frozen, "sum", policy.precision, workers.reduce)
    rank = 0 if way == "one" else dist.get_rank()
    behind = EncodedPairs(data, EncodeReport()).behind
    ahead = Ahead(policy, data, Schedule(8, PAIRS, PAIRS, 1, 0, behind=behind), rank, workers.count)
    with torch.no_grad():
        for p in policy.model.parameters():
            if p.requires_grad or method == "lora":  # not the bits of 4-bit weights
                p.mul_(1.02)  # a policy at its reference has a baseline of 0
    rows = []
    for step in range(2):
        (batch,) = ahead.at(step)
        rows.append({"baseline": float(policy.baseline(batch)), **row_of(optimizer_step(state, [batch], step + 1))})
    return rows


def worker(rank, port, cache, results):
    """One of two processes: every case in turn, since starting takes longer."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for case, architecture in CASES.items():
        (results / case).mkdir(exist_ok=True)
        train(rank, str(cache / architecture), case, results / case)
    dist.destroy_process_group()


def train(rank, directory, case, results):
    whole, mine = make_batch(), half(make_batch(), [rank, rank + 2])
    rows, weights = {}, {}
    for way in ("one", "ddp", "fsdp"):
        state = build(directory, case, way)
        rows[way] = steps(state, whole if way == "one" else mine, 3)
        weights[way] = whole_weights(state.policy.model, trained_only=True)
        assert has_shards(state.policy.model) == (way == "fsdp")
        state = build(directory, case, way, "update")
        batch = whole if way == "one" else mine
        rows[f"{way}, update"] = looking_steps(state, [batch], looks_at(batch, PAIRS))
        if case != "qlora in bfloat16":
            rows[f"{way}, kto"] = kto_steps(directory, case, way)
        if case in COMPLETE:
            # Two micro-batches, of which a look at two pairs shows the first.
            state = build(directory, case, way, "update")
            parts = [half(whole, [0, 1]), half(whole, [2, 3])] if way == "one" else [half(mine, [0]), half(mine, [1])]
            rows[f"{way}, partly"] = looking_steps(state, parts, looks_at(parts[0], 2))
            state = build(directory, case, way, "update", double=True)
            rows[f"{way}, exactly"] = looking_steps(state, parts, looks_at(parts[0], 2))
            weights[f"{way}, exactly"] = whole_weights(state.policy.model, trained_only=True)

    # Two steps, a checkpoint, and the third step in a new model: as if nothing had happened, sharded or whole.
    state = build(directory, case, "fsdp")
    steps(state, mine, 2)
    gathered = Snapshot.gather(state.policy.model, state.update.optimizer)
    if rank == 0:
        save_checkpoint(results, Resumable.of(state), Progress(2), 1, gathered)
    dist.barrier()
    ema = state.calibrator.state_dict()
    for way in ("fsdp", "ddp"):
        again = build(directory, case, way)
        assert restore_newest(results, Resumable.of(again)).step == 2
        again.calibrator.load_state_dict(ema)
        optimizer_step(again, [mine], 3)
        weights[f"resumed {way}"] = whole_weights(again.policy.model, trained_only=True)
    for way in ("fsdp", "ddp") if case in COMPLETE else ():
        weights[f"steered {way}"], weights[f"steered {way}, resumed"] = steered(rank, directory, case, way, results)
    if rank == 0:
        torch.save({"rows": rows, "weights": weights}, results / "results.pt")
    dist.barrier()


def steered(rank, directory, method, way, results):
    """Weights after four steps by the update; and, in a new model, after two of them, a checkpoint, and the others.

    Looks are taken at the first and at the last step: it is resumed between two.
    """
    mine, folder = half(make_batch(), [rank, rank + 2]), results / way
    fresh = looks_at(mine, PAIRS)

    def go(state, first, last):
        for step in range(first, last):
            optimizer_step(state, [mine], step + 1, fresh if step in (0, 3) else None)

    state = build(directory, method, way, "update")
    model, update, looks = state.policy.model, state.update, state.looks
    go(state, 0, 2)
    gathered, look = Snapshot.gather(model, update.optimizer), looks.state()
    if rank == 0:
        progress = Progress(2, calibrator=state.calibrator.state_dict(), look=look)
        progress.drift = [state.drift.w, state.drift.l, state.drift.weight]
        save_checkpoint(folder, Resumable.of(state), progress, 1, gathered)
    dist.barrier()
    go(state, 2, 4)
    again = build(directory, method, way, "update")
    known = restore_newest(folder, Resumable.of(again))
    again.calibrator.load_state_dict(known.calibrator)
    again.drift = Drift(*known.drift)
    again.looks.restore(known.look)
    go(again, 2, 4)
    assert state.calibrator.log_alpha == again.calibrator.log_alpha != 0
    return (whole_weights(one.policy.model, trained_only=True) for one in (state, again))


@pytest.fixture(scope="module")
def trained(quick_cache, tmp_path_factory):
    results = tmp_path_factory.mktemp("workers")
    mp.spawn(worker, (*free_ports(1), quick_cache, results), nprocs=2)
    return results


@pytest.mark.parametrize("case", CASES)
def test_whole_or_sharded_it_is_one_training(trained, case):
    results, close = torch.load(trained / case / "results.pt", weights_only=True), CLOSE[case]
    kto = results["rows"].get("one, kto", ())
    assert not kto or any(row["baseline"] > 0.01 for row in kto)
    for way in ("ddp", "fsdp"):
        for expected, got in zip(results["rows"]["one"], results["rows"][way], strict=True):
            for name in ("loss", "z_w", "rho", "log_s_w", "log_r", "log_alpha", "grad_norm"):
                assert got[name] == pytest.approx(expected[name], rel=close, abs=close), (way, name)
        for steps_of in ("update", "partly") if case in COMPLETE else ("update",):
            rows = zip(results["rows"][f"one, {steps_of}"], results["rows"][f"{way}, {steps_of}"], strict=True)
            for (expected, got), name in product(rows, JUDGED):
                near = {"rel": 10 * close, "abs": 10 * close, "nan_ok": True}
                assert got[name] == pytest.approx(expected[name], **near), (way, name)
        if case in COMPLETE:
            rows = zip(results["rows"]["one, exactly"], results["rows"][f"{way}, exactly"], strict=True)
            for (expected, got), name in product(rows, JUDGED):
                assert got[name] == pytest.approx(expected[name], rel=1e-9, abs=1e-9, nan_ok=True), (way, name)
            for name, expected in results["weights"]["one, exactly"].items():
                assert expected.dtype == torch.float64
                torch.testing.assert_close(results["weights"][f"{way}, exactly"][name], expected, rtol=1e-9, atol=1e-9)
        for expected, got in zip(kto, results["rows"].get(f"{way}, kto", ()), strict=True):
            for name in ("baseline", "loss", "d_w", "d_l", "grad_norm"):
                assert got[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5), (way, name)
    assert any(row["log_alpha"] for row in results["rows"]["one, update"])
    if case in COMPLETE:
        assert any(row["log_alpha"] for row in results["rows"]["one, partly"])
    start = results["weights"]["one"]
    for way in ("ddp", "fsdp", "resumed fsdp", "resumed ddp"):
        got = results["weights"][way]
        assert got.keys() == start.keys()
        # Adam's first steps have the size of the learning rate whatever the gradient: a sign decides.
        apart = torch.cat([(got[name] - start[name]).abs().flatten() for name in start])
        assert apart.mean() < 0.1 * close, way
    for name, value in results["weights"]["fsdp"].items():
        assert torch.equal(value, results["weights"]["resumed fsdp"][name]), "resumed is uninterrupted, bit for bit"
    for way, name in product(("fsdp", "ddp"), start) if case in COMPLETE else ():
        one, other = (results["weights"][key][name] for key in (f"steered {way}", f"steered {way}, resumed"))
        assert torch.equal(one, other), (way, name, "so it is by the update, between two looks")
