"""A micro-batch: its forward, the scores that are read off it, and its one backward.

A part is one forward, of both sides or of one. It knows the log-probabilities of its answer tokens. Told what each
token weighs in its likelihood, it gives the scores; told the seeds, it makes the backward:

  CutPart        adapters, calibrating: a backward of head and last block with unit seeds; the scores are read from what
                 flowed through the block's adapters, and the same backward, scaled row by row, goes on below
  WatchedPart    adapters, not calibrating (parts.py): an ordinary backward, watched; rows are divided by their seeds
                 afterwards, and the gradients are those of the plain objective bit for bit
  HeadPart       head, sketch (parts.py): scores come from the head's residuals, before the body's backward

Where scores cannot be read off, extra_gradients.py takes them the published way.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from rcray.calibration import Calibration, Calibrator, Reduce, Statistics, statistics
from rcray.calibration.band import FACTOR_NUMBERS, Factor, from_products, incentive_sums, means_of, score_products
from rcray.calibration.scores import Gradients, Products, SideScores
from rcray.data.batch import Batch, moved
from rcray.data.layout import CHOSEN, REJECTED, LaidOut, Layout, longest_row, one_side, packed, two_rows, worth_packing
from rcray.errors import DegenerateRunError
from rcray.models.adapters import adapters_off
from rcray.models.blocks import AdapterBlock
from rcray.models.forward import Flow, answer_logps, cutting, unfolding, watching
from rcray.models.load import CPU
from rcray.models.reference import ReferenceLogps
from rcray.objectives import Objective, PairLogps, TokenLogps
from rcray.objectives.base import Incentives, Number, Reduction, exp, larger


@dataclass
class Policy:
    """The model that is trained, and how likelihoods of pairs come from it."""

    model: Any
    objective: Objective
    likelihood: Reduction
    reference: ReferenceLogps | None = None  # cached sums, for objectives that need no more
    # For token-level objectives: the frozen model itself, or `model`, whose adapter is then switched off.
    live_reference: Any | None = None
    share_prompts: Literal["auto", "on", "off"] = "off"
    window: int | None = None  # rows longer than this are not packed: the model reads no further back
    baseline: Callable[[Batch], Tensor] | None = None  # KTO's K of a micro-batch, where it has one
    longest: int = 1024  # tokens of a row of mismatched prompt and answer, which that is taken from
    short_mlp: nn.Module | None = None  # the last feed-forward layer, where it may leave out the prompts
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext  # autocast, where asked for
    device: torch.device = CPU
    worth_packing: Callable[[Batch], bool] = worth_packing
    packed_forwards: int = 0  # made so far: of a step's micro-batches and of looks

    @property
    def on_cpu(self) -> bool:
        """Whether reading a number costs nothing; of any other device it waits for all that was asked of it before."""
        return self.device.type == "cpu"

    @cached_property
    def wide(self) -> torch.dtype:
        """What likelihoods are added up in: the dtype of what is trained, float32 at least."""
        trained = next(p for p in self.model.parameters() if p.requires_grad)
        return torch.promote_types(torch.float32, trained.dtype)


class Part(Protocol):
    """See the module. After `begin`, scores then backward, or, without calibration, backward then scores."""

    logp: Tensor  # [answers], detached

    def begin(self, weights: Tensor) -> None:
        """Takes what each token weighs in its likelihood, dz / d logp."""
        ...

    def scores(self) -> SideScores | Products:
        """The scores of the sides that lie here."""
        ...

    def backward(self, seed_w: Tensor, seed_l: Tensor) -> None:
        """Adds the gradient of sum_i seed_i z_i to the parameters."""
        ...


#: Makes the forward of a layout; token weights are None where they depend on its log-probabilities.
MakePart = Callable[[Layout, Tensor | None], Part]


class ReadOff:
    """A micro-batch whose scores are by-products of its backward."""

    def __init__(self, policy: Policy, batch: Batch, make_part: MakePart, *, apart: bool):
        laid_out = lay_out(policy, batch, apart)
        self.real_tokens = sum(layout.tokens for layout in laid_out)  # counted here: on a GPU it would wait for it
        self.computed_tokens = sum(layout.padded for layout in laid_out)
        policy.packed_forwards += sum(layout.packed for layout in laid_out)
        layouts = [layout.to(policy.device) for layout in laid_out]
        known = policy.objective.formula.statistics is None
        weights = [_token_weights(policy, layout) if known else None for layout in layouts]
        with policy.precision():
            self.parts = [make_part(layout, v) for layout, v in zip(layouts, weights, strict=True)]
        leaves = [part.logp.requires_grad_(not known) for part in self.parts]
        pairs = policy.objective.statistics(_token_logps(policy, layouts, leaves), policy.likelihood)
        if not known:
            weights = list(torch.autograd.grad(pairs.z_w.sum() + pairs.z_l.sum(), leaves))
            pairs = pairs.with_z(pairs.z_w.detach(), pairs.z_l.detach())
        for part, v in zip(self.parts, weights, strict=True):
            assert v is not None
            part.begin(v)
        self.pairs = with_reference(policy, batch, pairs)

    def scores(self) -> SideScores | Products:
        """Of all parts: one for both sides, or one for each."""
        return of_both_sides([part.scores() for part in self.parts])

    def backward(self, seed_w: Tensor, seed_l: Tensor) -> None:
        """Part by part."""
        for part in self.parts:
            part.backward(seed_w, seed_l)

    def branches(
        self, seed_w: Tensor, seed_l: Tensor, into: tuple[Gradients, Gradients], parameters: Sequence[nn.Parameter]
    ) -> None:
        """The parameters' gradients are exchanged for the buffer of each side while its part goes backward."""
        for part, buffer in zip(self.parts, into, strict=True):
            before = [p.grad for p in parameters]
            for i, p in enumerate(parameters):
                p.grad = buffer[i] if buffer else None
            part.backward(seed_w, seed_l)
            buffer[:] = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            for p, grad in zip(parameters, before, strict=True):
                p.grad = grad


def add_gradients(total: Gradients, part: Gradients) -> None:
    """total += part, tensor by tensor; an empty total becomes the part."""
    if total:
        for kept, new in zip(total, part, strict=True):
            kept += new
    else:
        total.extend(part)


def of_both_sides(parts: Sequence[SideScores | Products]) -> SideScores | Products:
    """The scores of a micro-batch from those of its parts."""
    if len(parts) == 1:
        return parts[0]
    chosen, rejected = parts
    assert isinstance(chosen, SideScores) and isinstance(rejected, SideScores)
    return SideScores(chosen.w, rejected.l)


@dataclass(frozen=True)
class Recorded:
    """A micro-batch for the record: sums over its pairs, on the device, and what names a pair that is broken."""

    sums: Tensor  # [9] loss, z_w, z_l, zt_w, zt_l, guarded; zt_w, zt_l and the number of pairs with a fresh prompt
    index: Tensor
    loss: Tensor
    pairs: PairLogps

    def broken(self, step: int) -> DegenerateRunError:
        """The first pair whose loss is not finite."""
        row = int((~torch.isfinite(self.loss)).nonzero()[0])
        return DegenerateRunError(
            f"step {step}: loss {self.loss[row].item()} on training pair {int(self.index[row])} "
            f"(z_w {self.pairs.z_w[row].item():.4g}, z_l {self.pairs.z_l[row].item():.4g})"
        )


def record_of(objective: Objective, batch: Batch, pairs: PairLogps, loss: Tensor) -> Recorded:
    """Nothing is waited for."""
    with torch.no_grad():
        nothing = torch.full_like(loss, math.nan)
        zt_w, zt_l = (nothing, nothing) if pairs.ref_w is None else (pairs.zt_w, pairs.zt_l)
        fresh = torch.ones_like(loss) if batch.fresh is None else moved(batch.fresh, loss.device).to(loss.dtype)
        guarded = objective.guarded(pairs).to(loss.dtype)
        parts = [loss, pairs.z_w, pairs.z_l, zt_w, zt_l, guarded, zt_w * fresh, zt_l * fresh, fresh]
        sums = torch.stack([part.sum(dtype=torch.float64) for part in parts])
    detached = pairs.with_z(pairs.z_w.detach(), pairs.z_l.detach())
    return Recorded(sums, batch.index, loss.detach(), detached)


def lay_out(policy: Policy, batch: Batch, apart: bool) -> list[Layout]:
    """How a micro-batch is forwarded; `apart`: each side in a graph of its own."""
    if isinstance(batch, LaidOut) and batch.layout is not None and not apart:
        return [batch.layout]
    if apart:
        return [one_side(batch, CHOSEN), one_side(batch, REJECTED)]
    asked = policy.share_prompts == "on" or (policy.share_prompts == "auto" and policy.worth_packing(batch))
    if asked and batch.same_prompts and (policy.window is None or longest_row(batch) <= policy.window):
        return [packed(batch)]
    return [two_rows(batch)]


def _token_weights(policy: Policy, layout: Layout) -> Tensor:
    """dz / d logp of each answer token where z is a plain sum or mean."""
    counts = layout.counts.to(policy.wide)
    per_pair = torch.ones_like(counts) if policy.likelihood == "sum" else 1 / counts
    first, last = per_pair[0], per_pair[-1]  # one side alone: the same row
    return layout.token_seeds(first, last)


def _token_logps(policy: Policy, layouts: list[Layout], logps: list[Tensor]) -> TokenLogps:
    """Log-probabilities as [pairs, longest] per side, and the reference's where tokens of it are needed."""
    reference: list[Tensor | None] = [None] * len(layouts)
    if policy.live_reference is not None:
        with torch.no_grad(), adapters_off(policy.live_reference), policy.precision():
            reference = [answer_logps(policy.live_reference, layout)[0] for layout in layouts]
    sides: dict[str, Any] = {}
    for side, letter in ((CHOSEN, "w"), (REJECTED, "l")):
        i = next(i for i, layout in enumerate(layouts) if side in layout.sides)
        layout, ref = layouts[i], reference[i]
        sides[f"logp_{letter}"] = layout.matrix(logps[i], side)
        sides[f"mask_{letter}"] = layout.matrix(torch.ones_like(logps[i]), side)
        sides[f"ref_logp_{letter}"] = None if ref is None else layout.matrix(ref, side)
    return TokenLogps(**sides)


def with_reference(policy: Policy, batch: Batch, pairs: PairLogps) -> PairLogps:
    """The cached likelihoods of the reference, if any, beside the policy's, and what else objectives of both read."""
    if policy.reference is None or policy.live_reference is not None:
        return pairs
    index = batch.index if policy.on_cpu else moved(batch.index, policy.device)
    ref_w, ref_l = policy.reference.sum_w[index].to(pairs.z_w), policy.reference.sum_l[index].to(pairs.z_l)
    if policy.likelihood == "mean":
        ref_w, ref_l = ref_w / pairs.n_w, ref_l / pairs.n_l
    constants = pairs.constants if policy.baseline is None else {"kl_baseline": policy.baseline(batch)}
    weights = None if batch.weights is None else moved(batch.weights, policy.device).to(pairs.z_w)
    return replace(pairs, ref_w=ref_w, ref_l=ref_l, constants=constants, weights=weights)


class CutPart:
    """Scores at the last block's adapters, by a backward that stops at the block's input."""

    def __init__(self, model: nn.Module, layout: Layout, block: AdapterBlock, mlp: nn.Module | None):
        with cutting(block.block) as self.cut:
            self.graph, self.flows = watched_logps(model, layout, block, mlp)
        self.logp = self.graph.detach()
        self.rows = layout.plain_rows

    def begin(self, weights: Tensor) -> None:
        """The backward of head and last block, with unit seeds."""
        assert self.cut.above is not None
        (self.above,) = torch.autograd.grad(self.graph, [self.cut.above], weights.to(self.graph.dtype))

    def scores(self) -> SideScores:
        """From what flowed through the adapters."""
        return side_scores_of(self.flows, self.rows)

    def backward(self, seed_w: Tensor, seed_l: Tensor) -> None:
        """The block's own adapters from the backward already made, everything below by going on with it."""
        seeds = self.rows.row_seeds(seed_w, seed_l)
        for flow in self.flows:
            gradient = flow.weight_gradient(slice(None), seeds)
            weight = flow.layer.weight
            weight.grad = gradient if weight.grad is None else weight.grad + gradient
        assert self.cut.below is not None
        if self.cut.below.requires_grad:
            self.cut.below.backward(self.above * seeds[:, None, None].to(self.above.dtype))


def watched_logps(
    model: nn.Module, layout: Layout, block: AdapterBlock, mlp: nn.Module | None
) -> tuple[Tensor, list[Flow]]:
    """Log-probabilities with their graph, and the flow through the block's adapters; packed rows unfold there."""
    with unfolding(model, block.block, layout), watching(block) as flows:
        logp, _ = answer_logps(model, layout, mlp=mlp)
    return logp, flows


def side_scores_of(flows: list[Flow], rows: Layout, scale: Tensor | None = None) -> SideScores:
    """Gradients of the adapters' weights from the rows of each side; chosen rows come first."""
    chosen = rows.pairs if CHOSEN in rows.sides else 0
    w = [flow.weight_gradient(slice(None, chosen), scale) for flow in flows] if CHOSEN in rows.sides else []
    l = [flow.weight_gradient(slice(chosen, None), scale) for flow in flows] if REJECTED in rows.sides else []  # noqa: E741
    return SideScores(w, l)


@dataclass(frozen=True)
class Decision:
    """What was decided for a window, and how other scores see its objective, where they were asked for."""

    calibration: Calibration
    full: Statistics | None = None  # over all parameters
    exact: Statistics | None = None  # by the scores that a sketch estimates


@dataclass
class Window:
    """Sums over the micro-batches of one window, on this worker."""

    pairs: int  # over all workers
    checks_sketch: bool = False
    workers: int = 1
    incentives: list[Incentives] = field(default_factory=list)
    scores: SideScores = field(default_factory=lambda: SideScores([], []))
    products: Products | None = None  # in place of the sums, where this worker's one micro-batch is the window
    full: SideScores = field(default_factory=lambda: SideScores([], []))  # over all parameters
    exact: SideScores = field(default_factory=lambda: SideScores([], []))  # what a sketch stands for
    recorded: list[Recorded] = field(default_factory=list)  # of each micro-batch
    tokens: list[int] = field(default_factory=lambda: [0, 0])  # real, computed
    evidence: Tensor | None = None  # what is decided by, on the device
    decided_there: bool = False  # by the published rule; its factor is then at the end of the evidence
    decision: Decision | None = None

    @property
    def decided(self) -> Decision:
        """The decision, once it is made."""
        assert self.decision is not None
        return self.decision

    def close(self, reduce: Reduce | None) -> None:
        """Makes one vector of the evidence, incentives of every worker and products of the scores; frees the scores."""
        if self.products is not None:
            products = [self.products.values]
        else:
            products = [score_products(self.scores.w, self.scores.l, reduce)]
        products += [score_products(other.w, other.l, reduce) for other in (self.full, self.exact) if other.w]
        self.evidence = torch.cat([incentive_sums(self.incentives, reduce).flatten(), *products])
        self.scores, self.products = SideScores([], []), None

    def alpha(self, rule: Calibrator, guarding: bool) -> Number:
        """By the published rule, as a number on the device: nothing is waited for."""
        assert self.evidence is not None
        factor = rule.factor(self.statistics(self.evidence.unbind())[0])
        self.evidence, self.decided_there = torch.cat([self.evidence, torch.stack(astuple(factor))]), True
        return exp(larger(factor.log_alpha, 0.0) if guarding else factor.log_alpha)

    def factor(self, numbers: Sequence[float]) -> Factor:
        """What was decided on the device, once the evidence is read."""
        return Factor(*numbers[-FACTOR_NUMBERS:])

    def statistics(self, numbers: Sequence[Number] | None = None) -> list[Statistics]:
        """By its scores, then by all parameters and by the exact scores, where asked for.

        `numbers`: the evidence, where that was read already.
        """
        assert self.evidence is not None
        numbers = numbers or self.evidence.tolist()
        first, end = 5 * self.workers, len(numbers) - (FACTOR_NUMBERS if self.decided_there else 0)
        means = means_of([numbers[i : i + 5] for i in range(0, first, 5)])
        return [statistics(*means, from_products(numbers[i : i + 3], self.pairs)) for i in range(first, end, 3)]
