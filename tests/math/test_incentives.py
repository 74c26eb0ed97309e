"""Every objective's incentives against its closed form (closed_forms.py), finite differences and fifty digits."""

import math

import mpmath
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rcray.calibration import incentives
from rcray.config.objectives import BY_NAME
from rcray.errors import ConfigError
from rcray.objectives import PairLogps, objective
from tests.math.closed_forms import CASES, Row, at_a_corner, batches, beta, pairs_of, rows

FEW = settings(max_examples=25, deadline=None)


#: Their incentives are differences or constants: nothing underflows that a logarithm could save.
NO_CLOSED_LOGS = {"ipo", "rrhf", "slic-hf", "bpo", "cal-dpo", "sppo-hard", "hinge", "discopop"}


def test_the_cases_cover_every_built_in_objective():
    assert {name for name, _, _ in CASES.values()} == set(BY_NAME)
    assert len(BY_NAME) == 33


@pytest.mark.parametrize("case", CASES)
@FEW
@given(data=st.data(), batch=batches)
def test_incentives_equal_the_closed_form(case, data, batch):
    name, strategies, oracle = CASES[case]
    p = data.draw(st.fixed_dictionaries(strategies))
    chosen = [Row(row) for row in batch]
    assume(not any(at_a_corner(name, r, p) for r in chosen))
    sides = incentives(objective(name, **p), pairs_of(batch))
    expected_w, expected_l = zip(*(oracle(r, p) for r in chosen), strict=True)
    assert sides.d_w.tolist() == pytest.approx(expected_w, rel=1e-9)
    assert sides.d_l.tolist() == pytest.approx(expected_l, rel=1e-9)
    for log_d, expected in ((sides.log_d_w, expected_w), (sides.log_d_l, expected_l)):
        logs = [math.log(abs(d)) if d else -math.inf for d in expected]
        assert log_d.tolist() == pytest.approx(logs, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - NO_CLOSED_LOGS))
@FEW
@given(batch=batches)
def test_closed_logs_equal_logs_of_autograd(name, batch):
    """The log side of `incentives` is a second formula in the code; at default settings it must be the same one."""
    bound, pairs = objective(name), pairs_of(batch)
    assert bound.formula.log_incentives is not None
    assume(not any(at_a_corner(name, Row(row), bound.params.model_dump()) for row in batch))
    closed = bound.formula.log_incentives(pairs, bound.params)
    sides = incentives(bound, pairs)
    for log_d, d in zip(closed, (sides.d_w, sides.d_l), strict=True):
        lost = log_d.isfinite() & (log_d < -600)  # autograd's incentive is on its way to 0, or there
        assert (d[lost].abs() < 1e-250).all()
        assert log_d[~lost].tolist() == pytest.approx(d[~lost].abs().log().tolist(), rel=1e-9, abs=1e-9)


def log_s(u):
    return -mpmath.log1p(mpmath.exp(-u))


@pytest.mark.parametrize("z", [-1e4, -900.0, 900.0, 1e4])
def test_logs_survive_where_the_incentives_underflow(z):
    """exp(-900) is 0 in float64; the logs are compared with fifty digits."""
    z_w, z_l = z, -0.5 * z
    row = {"z_w": z_w, "z_l": z_l, "ref_w": 0.0, "ref_l": 0.0, "n_w": 7, "n_l": 3, "kl_w": 0.0, "kl_baseline": 0.0}
    with mpmath.workdps(50):
        w, l = mpmath.mpf(z_w), mpmath.mpf(z_l)  # noqa: E741
        m, norm = w - l, w / 7 - l / 3
        positive, shifted = m - 50 * max(0, -w), w - mpmath.mpf(0.95) * l
        bounded, js = w - mpmath.log((mpmath.exp(l) + 1) / 2), log_s(w) - log_s(l)
        slopes = [mpmath.exp(log_s(u) + log_s(-u)) for u in (m, w)]
        expected = {
            "dpo": (log_s(-m), log_s(-m)),
            "r-dpo": (log_s(-m - mpmath.mpf("0.01") * 4), log_s(-m - mpmath.mpf("0.01") * 4)),
            "simpo": (log_s(1 - norm) - mpmath.log(7), log_s(1 - norm) - mpmath.log(3)),
            "cpo": (mpmath.log(mpmath.exp(log_s(-m)) + 1), log_s(-m)),
            "tdpo": (log_s(-m), log_s(-m)),
            "ti-dpo": (log_s(-m), log_s(-m)),
            "kto": (log_s(-w) + log_s(w), log_s(l) + log_s(-l)),
            "dil-bce": (log_s(-w), log_s(l)),
            "bco": (log_s(-w), log_s(l)),
            "dpop": (log_s(-positive) + mpmath.log(51 if w < 0 else 1), log_s(-positive)),
            "dpo-shift": (log_s(-shifted), log_s(-shifted) + mpmath.log(mpmath.mpf(0.95))),
            "rpo": (mpmath.log(mpmath.exp(log_s(-m)) + mpmath.mpf(1) / 7), log_s(-m)),
            "bdpo": (log_s(-bounded), log_s(-bounded) + log_s(l)),
            "exo": (log_s(m) + log_s(-m) + mpmath.log(abs(mpmath.log(999) - m)),) * 2,
            "f-dpo": (log_s(-js) + log_s(-w), log_s(-js) + log_s(-l)),
            "apo-down": (mpmath.log(abs(slopes[0] - slopes[1])), mpmath.log(slopes[0])),
        }
        for name, (log_w, log_l) in expected.items():
            settable = {"beta": 1.0} if "beta" in BY_NAME[name].model_fields else {}
            sides = incentives(objective(name, **settable), pairs_of([row]))
            assert sides.log_d_w.item() == pytest.approx(float(log_w), rel=1e-12), name
            assert sides.log_d_l.item() == pytest.approx(float(log_l), rel=1e-12), name


@pytest.mark.parametrize("case", CASES)
@FEW
@given(data=st.data(), row=rows)
def test_incentives_are_the_slopes_of_the_loss(case, data, row):
    """Finite differences of the value that is reported as the loss: no continuation breaks it, no detach bends it."""
    name, strategies, _ = CASES[case]
    p = data.draw(st.fixed_dictionaries(strategies))
    assume(not at_a_corner(name, Row(row), p))
    bound, h = objective(name, **p), 1e-6

    def value(shift_w, shift_l):
        return bound.loss(pairs_of([{**row, "z_w": row["z_w"] + shift_w, "z_l": row["z_l"] + shift_l}])).item()

    sides = incentives(bound, pairs_of([row]))
    scale = 1 + abs(value(0, 0))
    slope_w = (value(h, 0) - value(-h, 0)) / (2 * h)
    slope_l = (value(0, h) - value(0, -h)) / (2 * h)
    assert sides.d_w.item() == pytest.approx(-slope_w, rel=1e-4, abs=1e-8 * scale)
    assert sides.d_l.item() == pytest.approx(slope_l, rel=1e-4, abs=1e-8 * scale)


@FEW
@given(batch=batches, b=beta, gamma=st.floats(0, 3))
def test_simpo_under_mean_does_not_divide_by_the_length_again(batch, b, gamma):
    per_token = [{**row, "z_w": row["z_w"] / row["n_w"], "z_l": row["z_l"] / row["n_l"]} for row in batch]
    simpo = objective("simpo", beta=b, gamma=gamma)
    assert torch.allclose(simpo.loss(pairs_of(batch)), simpo.loss(pairs_of(per_token, "mean")), rtol=1e-10)
    of_sums = incentives(simpo, pairs_of(batch))
    of_means = incentives(simpo, pairs_of(per_token, "mean"))
    lengths = torch.tensor([[row["n_w"], row["n_l"]] for row in batch], dtype=torch.float64)
    assert torch.allclose(of_sums.d_w * lengths[:, 0], of_means.d_w, rtol=1e-10)
    assert torch.equal(of_means.d_w, of_means.d_l)  # and then it is entangled with r = 1


@FEW
@given(batch=batches, b=beta)
def test_identities_inside_the_zoo(batch, b):
    pairs = pairs_of(batch)
    dpo = objective("dpo", beta=b).loss(pairs)
    assert torch.allclose(objective("r-dpo", beta=b, alpha=0.0).loss(pairs), dpo, rtol=1e-12)
    assert torch.allclose(objective("tdpo", variant=2, beta=b, alpha=0.0).loss(pairs), dpo, rtol=1e-12)
    rrhf, slic = objective("rrhf", lam=0.3).loss(pairs), objective("slic-hf", lam=0.3, gamma=0.0).loss(pairs)
    assert torch.equal(rrhf, slic)
    # bpo-lr is dpo where R is not clipped, and departs from it where it is
    free = objective("bpo", kind="lr", beta=b, min_ratio=1e-300, max_ratio=1e300)
    assert torch.allclose(free.loss(pairs), dpo, rtol=1e-12)
    kept = objective("bpo", kind="lr", beta=b)
    inside = ~kept.guarded(pairs)
    assert torch.allclose(kept.loss(pairs)[inside], dpo[inside], rtol=1e-12)


@FEW
@given(batch=batches, b=beta)
def test_identities_of_the_cures_and_of_trls_losses(batch, b):
    pairs = pairs_of(batch)

    def loss(name, **hyperparameters):
        return objective(name, **hyperparameters).loss(pairs)

    def same(one, other):
        return torch.allclose(one, other, rtol=1e-11, atol=1e-12)

    dpo = loss("dpo", beta=b)
    assert same(loss("dpo-shift", beta=b, shift=1.0), dpo)
    assert same(loss("cdpo", beta=b, label_smoothing=0.0), dpo)
    assert same(loss("robust", beta=b, label_smoothing=0.0), dpo)
    assert same(loss("cal-dpo", beta=b), loss("dpo", beta=1.0) + loss("sppo-hard", beta=b) / 2)
    assert same(loss("bco", beta=1.0), loss("dil-bce"))
    assert same(loss("apo-zero", beta=b), loss("kto", beta=b))
    assert same(loss("alphapo", beta=b, alpha=0.0), loss("simpo", beta=b))
    near = loss("alphapo", beta=b, alpha=1e-8)
    assert torch.allclose(near, loss("simpo", beta=b), rtol=1e-4, atol=1e-5)
    above = pairs.zt_w >= 0
    assert same(loss("dpop", beta=b)[above], dpo[above])


@FEW
@given(batch=batches)
def test_a_term_per_token_is_the_same_under_sums_and_means(batch):
    per_token = [{**row, "z_w": row["z_w"] / row["n_w"], "z_l": row["z_l"] / row["n_l"]} for row in batch]
    for name in ("alphapo", "orpo"):
        of_sums, of_means = (objective(name).loss(x) for x in (pairs_of(batch), pairs_of(per_token, "mean")))
        assert torch.allclose(of_sums, of_means, rtol=1e-10), name
    pairs, bound = pairs_of(per_token, "mean"), objective("rpo", alpha=0.5)
    assert torch.allclose(bound.loss(pairs), objective("dpo").loss(pairs) - 0.5 * pairs.z_w, rtol=1e-10)


@pytest.mark.parametrize(
    ("name", "z_l", "guarded"),
    [("ddro", 0.0, False), ("ddro", 0.65, True), ("dil-ukl", 9.0, False), ("dil-ukl", 9.5, True),
     ("dil-lsif", 4.5, False), ("dil-lsif", 4.7, True), ("bpo", 0.0, False), ("bpo", 95.0, True),
     ("bpo", -50.0, True), ("dpo", 1e4, False), ("orpo", -0.01, True), ("alphapo", -30.0, False),
     ("alphapo", -40.0, True), ("f-dpo", -40.0, False)],
)  # fmt: skip
def test_guarded_marks_the_pairs_in_a_continuation(name, z_l, guarded):
    row = {"z_w": 0.0, "z_l": z_l, "ref_w": 0.0, "ref_l": 0.0, "n_w": 1, "n_l": 1, "kl_w": 0.0, "kl_baseline": 0.0}
    assert objective(name).guarded(pairs_of([row])).tolist() == [guarded]


def test_a_guarded_loss_is_continuous_and_goes_on_straight():
    def pairs(z_l):
        zero = torch.zeros_like(z_l)
        return PairLogps(zero, z_l, zero + 1, zero + 1, zero, zero)

    edge = math.log(2 * 10 / 11)
    z_l = torch.tensor([edge - 1e-9, edge + 1e-9, edge + 1.0, edge + 2.0], dtype=torch.float64)
    below, above, one, two = objective("ddro").loss(pairs(z_l)).tolist()
    assert below == pytest.approx(above, abs=1e-7)
    assert two - one == pytest.approx(10.0)


@pytest.mark.parametrize("z", [-60.0, -25.0, 25.0, 60.0])
def test_the_gradient_that_training_sees_in_float32_is_the_one_the_logs_name(z):
    """s(u)(1 - s(u)) is 0 in float32 past u = 17: the calibration would balance an incentive that is not there."""
    for name in ("kto", "dil-bce", "dpo", "bco", "exo", "f-dpo", "apo-down", "bdpo"):
        z_w = torch.tensor([z], requires_grad=True)
        z_l = torch.tensor([z / 2], requires_grad=True)
        one = torch.ones(1)
        pairs = PairLogps(z_w, z_l, one, one, 0 * one, 0 * one)
        bound = objective(name, **({} if name == "dil-bce" else {"beta": 1.0}))
        bound.loss(pairs).sum().backward()
        sides = incentives(bound, pairs)
        assert math.log(abs(z_w.grad.item())) == pytest.approx(sides.log_d_w.item(), rel=1e-5, abs=1e-5), name
        assert math.log(abs(z_l.grad.item())) == pytest.approx(sides.log_d_l.item(), rel=1e-5, abs=1e-5), name


def test_kto_refuses_a_missing_baseline():
    z = torch.zeros(2)
    with pytest.raises(ConfigError, match="kl_baseline"):
        objective("kto", baseline="kl").loss(PairLogps(z, z, z, z, z, z))


def test_kto_baseline_carries_no_gradient():
    z = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    k = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    ref = torch.ones(2, dtype=torch.float64)
    pairs = PairLogps(z, z.detach(), ref, ref, ref, ref, constants={"kl_baseline": k})
    loss = objective("kto", baseline="kl").loss(pairs)
    loss.sum().backward()
    assert k.grad is None and z.grad.abs().sum() > 0


def test_incentives_leave_the_given_graph_alone():
    z_w = torch.tensor([-3.0], requires_grad=True)
    z_l = torch.tensor([-4.0], requires_grad=True)
    incentives(lambda w, lose: (w - lose).square(), PairLogps(z_w, z_l, z_w, z_l))
    assert z_w.grad is None and z_l.grad is None and z_w.dtype == torch.float32


def test_a_loss_of_one_side_only_has_no_incentive_on_the_other():
    z = torch.tensor([-3.0, -2.0])
    sides = incentives(lambda w, lose: -2.0 * w, PairLogps(z, z, z, z))
    assert sides.d_w.tolist() == [2.0, 2.0] and sides.d_l.tolist() == [0.0, 0.0]
    assert sides.log_d_l.tolist() == [-math.inf, -math.inf]


@pytest.mark.parametrize(
    ("own", "bound", "seen"),
    [({}, 10.0, 10.0), ({"max_incentive": 2e6, "rc_max_incentive": 20.0}, 2e6, 20.0)],
    ids=["default", "official"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_ddro_is_bounded_in_the_loss_and_where_calibration_reads_it(own, bound, seen, dtype):
    """The authors' loss grows to 2e6 and their calibration reads 20 at most; both are finite past the singularity."""
    z_l = torch.tensor([-3.0, 0.5, 0.6931, 0.7, 30.0], dtype=dtype)
    zero = torch.zeros_like(z_l)
    ones = torch.ones_like(z_l)
    sides = incentives(objective("ddro", **own), PairLogps(zero, z_l, ones, ones, zero, zero), double=False)
    assert sides.loss.isfinite().all()
    assert sides.d_l[-1].item() == pytest.approx(bound)
    exact = [math.exp(z) / (2 - math.exp(z)) for z in (-3.0, 0.5)]
    assert sides.d_l[:2].tolist() == pytest.approx(exact, rel=1e-5)
    assert (sides.d_l.diff() >= 0).all(), "it grows, and stays at its bound"
    assert sides.log_d_l[:2].tolist() == pytest.approx([math.log(d) for d in exact], rel=1e-5)
    assert sides.log_d_l[-2:].exp().tolist() == pytest.approx([seen, seen])
