"""The update that is really made: previews against torch's own optimizers, and the true band."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rcray.calibration.preview import Coordinates, preview_of
from rcray.calibration.update import (
    WIDEST_LOG_ALPHA,
    AdamPreview,
    Foreseen,
    Move,
    SgdPreview,
    own_move,
)

SIZE, STEPS = 40, 12
ADAM = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8}


def whole(product):
    """No worker and no coordinate is left out."""
    return product


def adam_preview(optimizer, parameter):
    group, state = optimizer.param_groups[0], optimizer.state.get(parameter, {})
    zero = torch.zeros_like(parameter)
    return AdamPreview(
        state.get("exp_avg", zero), state.get("exp_avg_sq", zero), int(state.get("step", 0)), group["lr"],
        group["betas"], group["eps"], parameter.detach() * group["lr"] * group["weight_decay"],
    )  # fmt: skip


def sgd_preview(optimizer, parameter):
    group, buffer = optimizer.param_groups[0], optimizer.state.get(parameter, {}).get("momentum_buffer")
    decay = parameter.detach() * group["lr"] * group["weight_decay"]
    return SgdPreview(torch.zeros_like(parameter) if buffer is None else buffer, group["lr"], group["momentum"], decay)


OPTIMIZERS = {
    "adam": (torch.optim.AdamW, {**ADAM, "weight_decay": 0.0}, adam_preview),
    "adam-decay": (torch.optim.AdamW, {**ADAM, "weight_decay": 0.3}, adam_preview),
    "sgd": (torch.optim.SGD, {"lr": 0.1}, sgd_preview),
    "sgd-momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.8}, sgd_preview),
    "sgd-momentum-decay": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.2}, sgd_preview),
}


def move_at(foreseen, log_alpha):
    return Move(*foreseen.moves(log_alpha).tolist())


def gradients(seed):
    generator = torch.Generator().manual_seed(seed)
    lasting = torch.randn(SIZE, generator=generator, dtype=torch.float64)
    return [lasting + torch.randn(SIZE, generator=generator, dtype=torch.float64) for _ in range(STEPS)]


def trained(name, steps, seed=0):
    """A parameter after some steps, its optimizer, and a preview of the next one."""
    kind, settings, preview = OPTIMIZERS[name]
    drawn = gradients(seed)
    parameter = torch.nn.Parameter(drawn[0].clone())
    optimizer = kind([parameter], **settings)
    for gradient in drawn[:steps]:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter, optimizer, preview


def really(optimizer, parameter, gradient):
    before = parameter.detach().clone()
    parameter.grad = gradient.clone()
    optimizer.step()
    return parameter.detach() - before


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_preview_is_the_update_that_torch_makes(name):
    parameter, optimizer, preview = trained(name, 0)
    for gradient in gradients(0):
        foreseen = preview(optimizer, parameter)
        expected = foreseen.update(gradient)
        torch.testing.assert_close(really(optimizer, parameter, gradient), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_memory_and_gradient_make_up_the_update(name):
    """Exactly for SGD; Adam's memory is scaled by the second moment before the gradient is in it."""
    parameter, optimizer, preview = trained(name, STEPS)
    gradient = gradients(0)[-1]
    foreseen = preview(optimizer, parameter)
    parts = foreseen.kept() + foreseen.per_gradient(gradient) * gradient
    error = (parts - foreseen.update(gradient)).norm() / foreseen.update(gradient).norm()
    assert error < (1e-12 if name.startswith("sgd") else 0.1)
    if not name.startswith("sgd"):  # with the root of the update itself, it is exact
        root = foreseen._root(gradient) / foreseen._root(None)
        exact = (foreseen.kept() + foreseen.decay) / root - foreseen.decay + foreseen.per_gradient(gradient) * gradient
        torch.testing.assert_close(exact, foreseen.update(gradient))


@pytest.mark.parametrize(("name", "expected"), [("sgd-momentum", 5.0), ("adam", 10.0)])
def test_a_gradient_that_lasts_settles_at_what_the_preview_says(name, expected):
    _, optimizer, preview = trained(name, STEPS)
    (parameter,) = optimizer.param_groups[0]["params"]
    if name == "adam":
        expected *= 1 - 0.9 ** (STEPS + 1)
    assert preview(optimizer, parameter).settles == pytest.approx(expected)


@pytest.mark.parametrize("most", [100, 9])
@pytest.mark.parametrize("rates", [(0.01, 0.01), (0.01, 0.3)])
@pytest.mark.parametrize(("kind", "settings"), [(torch.optim.AdamW, {}), (torch.optim.SGD, {"momentum": 0.8})])
def test_a_preview_of_several_tensors_reads_every_group(kind, settings, rates, most):
    torch.manual_seed(0)
    first, second = (torch.nn.Parameter(torch.randn(shape)) for shape in ((3, 4), (5,)))
    decay = 0.1 if kind is torch.optim.AdamW else 0.0
    groups = [
        {"params": [first], "weight_decay": decay, "lr": rates[0]},
        {"params": [second], "weight_decay": 0.0, "lr": rates[1]},
    ]
    optimizer = kind(groups, **settings)
    coordinates = Coordinates([first, second], 0, None, most)
    for _ in range(4):
        first.grad, second.grad = torch.randn(3, 4), torch.randn(5)
        preview = preview_of(optimizer, [first, second], coordinates)
        expected = preview.update(coordinates.flat([first.grad, second.grad]))
        before = coordinates.flat([first, second])
        optimizer.step()
        torch.testing.assert_close(coordinates.flat([first, second]) - before, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("other", [{"betas": (0.8, 0.99)}, {"eps": 1e-4}])
def test_groups_that_differ_in_more_than_their_rates_are_not_foreseen(other):
    first, second = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = torch.optim.AdamW([{"params": [first]}, {"params": [second], **other}])
    assert preview_of(optimizer, [first, second], Coordinates([first, second], 0, None)) is None


class OnTheGpu(torch.Tensor):
    """The step count of AdamW in one kernel: it lies on the GPU, and whoever reads it waits."""

    def __int__(self):
        raise AssertionError("read")


def test_the_steps_of_an_optimizer_are_read_once_and_then_counted(monkeypatch):
    monkeypatch.setattr("rcray.calibration.preview._on_cpu", lambda optimizer: False)
    parameter, optimizer, _ = trained("adam", 3)
    coordinates = Coordinates([parameter], 0, None)

    def steps():
        return preview_of(optimizer, [parameter], coordinates).steps

    assert steps() == 3
    saved = copy.deepcopy(optimizer.state_dict())
    state = optimizer.state[parameter]
    state["step"] = state["step"].as_subclass(OnTheGpu)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.step()
    assert steps() == 5
    optimizer.load_state_dict(saved)
    assert steps() == 3, "and read anew where a checkpoint was loaded"


def test_on_a_cpu_an_optimizers_steps_are_read_each_time():
    parameter, optimizer, _ = trained("adam", 3)
    assert preview_of(optimizer, [parameter], Coordinates([parameter], 0, None)).steps == 3
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert preview_of(optimizer, [parameter], Coordinates([parameter], 0, None)).steps == 4
    assert not optimizer._optimizer_step_post_hooks, "nothing is counted beside the optimizer"


def foreseen_from(preview, seed=0, clip_norm=math.inf, size=SIZE):
    """Pairs whose likelihoods are linear in the parameters, of a look and of a batch; both sides share a part."""
    generator = torch.Generator().manual_seed(seed)
    shared, w, l, *noise = torch.randn(5, size, generator=generator, dtype=torch.float64)  # noqa: E741
    score_w, score_l = shared + w, shared + l
    branch_w, branch_l = -0.6 * (score_w + 0.3 * noise[0]), 0.5 * (score_l + 0.3 * noise[1])
    return Foreseen(score_w, score_l, branch_w, branch_l, preview, clip_norm, whole)


@pytest.mark.parametrize("clip_norm", [0.5, 3.0, 1e6])
@pytest.mark.parametrize("log_alpha", [-1.0, 0.0, 0.7])
def test_clipping_is_torchs(clip_norm, log_alpha):
    parameter, optimizer, preview = trained("adam", 3)
    foreseen = foreseen_from(preview(optimizer, parameter), clip_norm=clip_norm)
    plain = math.exp(log_alpha) * foreseen.branch_w + math.exp(-log_alpha) * foreseen.branch_l
    parameter.grad = plain.clone()
    torch.nn.utils.clip_grad_norm_([parameter], clip_norm)
    gradient, factor = foreseen.gradient(log_alpha)
    torch.testing.assert_close(gradient, parameter.grad)
    torch.testing.assert_close(gradient, plain * factor)
    assert (factor < 1) == (clip_norm < plain.norm())


def test_few_pairs_answer_as_much_as_the_whole_step_does():
    """Their gradient is longer than that of all pairs: clipped by its own length it would seem to pull too weakly."""
    parameter, optimizer, preview = trained("sgd", 3)
    free, clipped = (foreseen_from(preview(optimizer, parameter), clip_norm=limit) for limit in (1e6, 0.1))
    norm = float(clipped.gradient(0.2)[0].norm() / clipped.gradient(0.2)[1])
    own = clipped.responses(0.2)
    torch.testing.assert_close(clipped.responses(0.2, norm), own)
    torch.testing.assert_close(clipped.responses(0.2, norm / 3), 3 * own)
    torch.testing.assert_close(clipped.responses(0.2, 0.05), free.responses(0.2), msg="not clipped at all")


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("log_alpha", [-0.5, 0.0, 1.0])
def test_the_move_of_linear_likelihoods_is_exact(name, log_alpha):
    parameter, optimizer, preview = trained(name, 5)
    foreseen = foreseen_from(preview(optimizer, parameter), clip_norm=2.0)
    predicted = move_at(foreseen, log_alpha)
    update = really(optimizer, parameter, foreseen.gradient(log_alpha)[0])
    assert predicted.w == pytest.approx(float(foreseen.score_w @ update), rel=1e-9)
    assert predicted.l == pytest.approx(float(foreseen.score_l @ update), rel=1e-9)


def test_the_batchs_own_move_weighs_pairs_by_their_incentives():
    """One incentive for all pairs: then it is the mean move of the batch."""
    parameter, optimizer, preview = trained("adam", 5)
    foreseen = foreseen_from(preview(optimizer, parameter))
    own = own_move(foreseen.judged(0.2)[2:4].tolist(), 0.6, 0.5)
    update = really(optimizer, parameter, foreseen.gradient(0.2)[0])
    assert own.w == pytest.approx(float(-foreseen.branch_w / 0.6 @ update), rel=1e-9)
    assert own.l == pytest.approx(float(foreseen.branch_l / 0.5 @ update), rel=1e-9)


@given(seed=st.integers(0, 10_000), at=st.floats(-1, 1), elsewhere=st.floats(-1, 1))
def test_branches_of_some_pairs_leave_the_rest_of_the_gradient_as_it_was_made(seed, at, elsewhere):
    parameter, optimizer, preview = trained("adam", 3)
    foreseen = foreseen_from(preview(optimizer, parameter), seed)
    update = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    whole = foreseen.completed(update, at)
    torch.testing.assert_close(whole.gradient(at)[0], update)
    torch.testing.assert_close(whole.gradient(torch.tensor(at, dtype=torch.float64))[0], update)
    by_branches = foreseen.gradient(elsewhere)[0] - foreseen.gradient(at)[0]
    torch.testing.assert_close(whole.gradient(elsewhere)[0], update + by_branches)
    # A gradient that the branches explain is foreseen as if they were those of all pairs.
    explained = foreseen.completed(foreseen.gradient(at)[0], at)
    torch.testing.assert_close(explained.judged(at), foreseen.judged(at), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_response_is_the_moves_slope_in_each_branch(name):
    """Held where clipping and Adam's scaling are those of this factor, the move is linear in both branches."""
    parameter, optimizer, preview = trained(name, STEPS)
    foreseen = foreseen_from(preview(optimizer, parameter))
    response = foreseen.response(0.3)
    gradient, _ = foreseen.gradient(0.3)
    by_gradient = preview(optimizer, parameter).per_gradient(gradient) * gradient
    up, down = math.exp(0.3), math.exp(-0.3)
    assert up * response.ww + down * response.wl == pytest.approx(float(foreseen.score_w @ by_gradient))
    assert up * response.lw + down * response.ll == pytest.approx(float(foreseen.score_l @ by_gradient))


@given(seed=st.integers(0, 10_000), name=st.sampled_from(sorted(OPTIMIZERS)), steps=st.integers(0, STEPS))
def test_the_true_band_is_where_a_side_stands_still(seed, name, steps):
    parameter, optimizer, preview = trained(name, steps)
    foreseen = foreseen_from(preview(optimizer, parameter), seed, size=SIZE)
    lower, upper = foreseen.edges().tolist()
    for edge, side in ((lower, "w"), (upper, "l")):
        if math.isfinite(edge):
            below, above = (getattr(move_at(foreseen, edge + d), side) for d in (-5e-4, 5e-4))
            assert below <= 0 <= above
            if not name.startswith("adam") or steps == STEPS:  # Adam begins with signs: jumps, not zeros
                beside = max(abs(getattr(move_at(foreseen, edge + d), side)) for d in (-0.5, 0.5))
                assert abs(getattr(move_at(foreseen, edge), side)) <= 1e-3 * beside
        else:  # open: the sign is the same at both bounds
            ends = [getattr(move_at(foreseen, end), side) for end in (-WIDEST_LOG_ALPHA, WIDEST_LOG_ALPHA)]
            assert ends[0] > 0 if edge < 0 else ends[1] < 0


def test_an_edge_takes_fewer_looks_at_moves_than_halving_would(monkeypatch):
    asked = []
    moves = Foreseen.moves
    monkeypatch.setattr(Foreseen, "moves", lambda self, at: asked.append(at) or moves(self, at))
    for seed in range(20):
        for name in ("adam", "sgd-momentum"):
            parameter, optimizer, preview = trained(name, STEPS, seed)
            foreseen_from(preview(optimizer, parameter), seed, size=SIZE).edges()
    halving = 2 + 2 * 14
    print(f"{len(asked) / 40:.1f} looks on average, {halving} by halving")
    assert len(asked) / 40 < 0.7 * halving


@given(seed=st.integers(0, 10_000), momentum=st.sampled_from([0.0, 0.9]), at=st.floats(0.02, 0.98))
def test_between_its_edges_the_winner_rises_and_the_loser_falls(seed, momentum, at):
    buffer = 0.1 * torch.randn(SIZE, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    foreseen = foreseen_from(SgdPreview(buffer, 0.1, momentum), seed)
    lower, upper = (min(max(edge, -WIDEST_LOG_ALPHA), WIDEST_LOG_ALPHA) for edge in foreseen.edges().tolist())
    if upper - lower > 0.02:  # wider than the edges are found exactly
        assert move_at(foreseen, lower + at * (upper - lower)).pathway == "iii"


def test_without_memory_the_true_band_of_one_pair_is_the_papers():
    """Plain descent and a look at the batch itself: rho |s_l|/|s_w| < alpha^2 d_w/d_l < |s_l|/(rho |s_w|)."""
    w, l = torch.tensor([3.0, 0.0, 1.0]).double(), torch.tensor([1.0, 2.0, 0.5]).double()  # noqa: E741
    foreseen = Foreseen(w, l, -0.4 * w, 0.7 * l, SgdPreview(torch.zeros(3).double(), 0.1, 0.0), math.inf, whole)
    rho = float(w @ l / w.norm() / l.norm())
    ratio = float(l.norm() / w.norm())
    edges = [0.5 * math.log(bound * 0.7 / 0.4) for bound in (rho * ratio, ratio / rho)]
    assert foreseen.edges().tolist() == pytest.approx(edges, abs=5e-4)


def test_a_drawn_share_stands_for_all_coordinates():
    torch.manual_seed(0)
    parameters = [torch.randn(300, 400), torch.randn(80_000)]
    others = [p + torch.randn_like(p) for p in parameters]
    exact = sum(float((p.double() * o.double()).sum()) for p, o in zip(parameters, others, strict=True))
    drawn = Coordinates(parameters, 0, None, most=20_000)
    assert len(drawn.flat(parameters)) == pytest.approx(20_000, abs=2) and drawn.share == pytest.approx(0.1)
    estimate = float(drawn.total(drawn.flat(parameters).double() @ drawn.flat(others).double()))
    assert estimate == pytest.approx(exact, rel=0.03) and estimate != pytest.approx(exact, rel=1e-6)
    again = Coordinates(parameters, 0, None, most=20_000)
    assert torch.equal(again.flat(others), drawn.flat(others))
    everything = Coordinates(parameters, 0, None)
    assert everything.share == 1.0 and len(everything.flat(parameters)) == 200_000
