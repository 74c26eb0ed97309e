"""Every objective's incentives against its closed form, written out here a second time, in plain floats.

Legend: z~ = z - z_ref; m = z_w - z_l; m~ = z~_w - z~_l; s = sigmoid; d_w = -dL/dz_w, d_l = dL/dz_l.
"""

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

FEW = settings(max_examples=60, deadline=None)
KEYS = ("z_w", "z_l", "ref_w", "ref_l", "n_w", "n_l", "kl_w", "kl_baseline")

likelihood = st.floats(-30, 0)
length = st.integers(1, 60)
beta = st.floats(0.02, 2.5)
weight = st.floats(0.05, 3)
rows = st.fixed_dictionaries(
    {
        **{name: likelihood for name in ("z_w", "z_l", "ref_w", "ref_l")},
        "n_w": length,
        "n_l": length,
        "kl_w": st.floats(0, 6),
        "kl_baseline": st.floats(0, 4),
    }
)
batches = st.lists(rows, min_size=1, max_size=3)


def s(u):
    return 1 / (1 + math.exp(-u))


def slope(u):
    return s(u) * s(-u)


class Row:
    """One pair with the paper's derived quantities, all floats."""

    def __init__(self, row):
        self.__dict__.update(row)
        self.zt_w, self.zt_l = self.z_w - self.ref_w, self.z_l - self.ref_l
        self.m, self.mt = self.z_w - self.z_l, self.zt_w - self.zt_l
        self.dn = self.n_w - self.n_l


def both(d):
    return d, d


def d_simpo(r, p):
    shared = p["beta"] * s(p["gamma"] - (p["beta"] * r.z_w / r.n_w - p["beta"] * r.z_l / r.n_l))
    return shared / r.n_w, shared / r.n_l


def d_hinge(r, p, gamma):
    active = float(r.m < gamma)
    return active + p["lam"], active


def d_bpo(r, p):
    ratio = math.exp(-p["beta"] * r.mt)
    if ratio < 0.01:
        return both(0.0)
    ratio, b, lam = min(ratio, 1e4), p["beta"], p["lam"]
    return both(
        {
            "lr": b * ratio / (1 + ratio),
            "kliep": b * (ratio + 1),
            "lsif": 2 * b * (ratio**2 + 1 / ratio),
            "ba": b * (lam + 1) * (ratio ** (lam + 1) + ratio**-lam),
            "sba": b / p["scale"] * (ratio ** (lam + 1) + ratio**-lam),
        }[p["kind"]]
    )


def d_kto(r, p):
    k = r.kl_baseline if p["baseline"] == "kl" else 0.0
    return (
        p["beta"] * p["lam_w"] * slope(p["beta"] * (k - r.zt_w)),
        p["beta"] * p["lam_l"] * slope(p["beta"] * (r.zt_l - k)),
    )


def d_ddro(r, p):
    e = math.exp(min(r.zt_l, 50.0))
    return 1.0, (e / (2 - e) if e < 2 and e / (2 - e) < p["max_incentive"] else p["max_incentive"])


def bpo_case(kind, lam):
    return "bpo", {"kind": st.just(kind), "beta": beta, "lam": lam, "scale": st.floats(0.5, 8)}, d_bpo


def kto_case(baseline):
    return "kto", {"baseline": st.just(baseline), "beta": beta, "lam_w": weight, "lam_l": weight}, d_kto


# name of the case: (objective, strategies of its hyperparameters, closed form)
CASES = {
    "dpo": ("dpo", {"beta": beta}, lambda r, p: both(p["beta"] * s(-p["beta"] * r.mt))),
    "ipo": ("ipo", {"tau": st.floats(0.02, 2)}, lambda r, p: both(2 * (1 / (2 * p["tau"]) - r.mt))),
    "r-dpo": (
        "r-dpo",
        {"beta": beta, "alpha": st.floats(0, 0.3)},
        lambda r, p: both(p["beta"] * s(-p["beta"] * r.mt - p["alpha"] * r.dn)),
    ),
    "simpo": ("simpo", {"beta": beta, "gamma": st.floats(0, 3)}, d_simpo),
    "cpo": (
        "cpo",
        {"beta": beta, "lam": st.floats(0, 2)},
        lambda r, p: (p["beta"] * s(-p["beta"] * r.m) + p["lam"], p["beta"] * s(-p["beta"] * r.m)),
    ),
    "rrhf": ("rrhf", {"lam": st.floats(0, 2)}, lambda r, p: d_hinge(r, p, 0.0)),
    "slic-hf": (
        "slic-hf",
        {"gamma": st.floats(0, 3), "lam": st.floats(0, 2)},
        lambda r, p: d_hinge(r, p, p["gamma"]),
    ),
    "tdpo-1": ("tdpo", {"variant": st.just(1), "beta": beta}, lambda r, p: both(p["beta"] * s(-p["beta"] * r.mt))),
    "tdpo-2": (
        "tdpo",
        {"variant": st.just(2), "beta": beta, "alpha": st.floats(0, 1)},
        lambda r, p: both(p["beta"] * s(-p["beta"] * (r.mt + p["alpha"] * r.kl_w))),
    ),
    "ti-dpo": ("ti-dpo", {"beta": beta}, lambda r, p: both(p["beta"] * s(-p["beta"] * r.mt))),
    "bpo-lr": bpo_case("lr", st.just(0.5)),
    "bpo-kliep": bpo_case("kliep", st.just(0.5)),
    "bpo-lsif": bpo_case("lsif", st.just(0.5)),
    "bpo-ba": bpo_case("ba", st.floats(0.1, 1.5)),
    "bpo-sba": bpo_case("sba", st.floats(0.1, 1.5)),
    "bpo-sba-0": bpo_case("sba", st.just(0.0)),
    "kto-none": kto_case("none"),
    "kto-kl": kto_case("kl"),
    "ddro": ("ddro", {"max_incentive": st.floats(0.5, 50)}, d_ddro),
    "dil-bce": ("dil-bce", {}, lambda r, p: (s(-r.zt_w), s(r.zt_l))),
    "dil-ukl": (
        "dil-ukl",
        {"max_incentive": st.floats(0.5, 1e4)},
        lambda r, p: (1.0, min(math.exp(r.zt_l), p["max_incentive"])),
    ),
    "dil-lsif": (
        "dil-lsif",
        {"max_incentive": st.floats(0.5, 1e4)},
        lambda r, p: (min(math.exp(r.zt_w), p["max_incentive"]), min(math.exp(2 * r.zt_l), p["max_incentive"])),
    ),
}


def pairs_of(batch, reduction="sum"):
    column = {key: torch.tensor([float(row[key]) for row in batch], dtype=torch.float64) for key in KEYS}
    constants = {"kl_w": column.pop("kl_w"), "kl_baseline": column.pop("kl_baseline")}
    return PairLogps(**column, reduction=reduction, constants=constants)


def at_a_corner(name, r, p):
    """Where a loss has a kink or starts its continuation, one side's derivative is as good as the other's."""
    if name == "bpo":
        edges = (-p["beta"] * r.mt - math.log(0.01), -p["beta"] * r.mt - math.log(1e4))
    elif name in ("rrhf", "slic-hf"):
        edges = (r.m - p.get("gamma", 0.0),)
    elif name == "ipo":  # cancellation: no relative precision left
        edges = (1 / (2 * p["tau"]) - r.mt,)
    else:
        return False
    return any(abs(edge) < 1e-6 for edge in edges)


def test_the_cases_cover_every_built_in_objective():
    assert {name for name, _, _ in CASES.values()} == set(BY_NAME)
    assert len(BY_NAME) == 15


@pytest.mark.parametrize("case", CASES)
@FEW
@given(data=st.data(), batch=batches)
def test_incentives_equal_the_closed_form(case, data, batch):
    name, strategies, oracle = CASES[case]
    p = data.draw(st.fixed_dictionaries(strategies))
    chosen = [Row(row) for row in batch]
    assume(not any(at_a_corner(name, r, p) for r in chosen))
    found = incentives(objective(name, **p), pairs_of(batch))
    expected_w, expected_l = zip(*(oracle(r, p) for r in chosen), strict=True)
    assert found.d_w.tolist() == pytest.approx(expected_w, rel=1e-9)
    assert found.d_l.tolist() == pytest.approx(expected_l, rel=1e-9)
    for log_d, expected in ((found.log_d_w, expected_w), (found.log_d_l, expected_l)):
        logs = [math.log(abs(d)) if d else -math.inf for d in expected]
        assert log_d.tolist() == pytest.approx(logs, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - {"ipo", "rrhf", "slic-hf", "bpo"}))
@FEW
@given(batch=batches)
def test_closed_logs_equal_logs_of_autograd(name, batch):
    """The log side of `incentives` is a second formula in the code; at default settings it must be the same one."""
    bound, pairs = objective(name), pairs_of(batch)
    assert bound.formula.log_incentives is not None
    closed = bound.formula.log_incentives(pairs, bound.params)
    found = incentives(bound, pairs)
    for log_d, d in zip(closed, (found.d_w, found.d_l), strict=True):
        assert log_d.tolist() == pytest.approx(d.abs().log().tolist(), rel=1e-9, abs=1e-9)


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
        expected = {
            "dpo": (log_s(-m), log_s(-m)),
            "r-dpo": (log_s(-m - mpmath.mpf("0.01") * 4), log_s(-m - mpmath.mpf("0.01") * 4)),
            "simpo": (log_s(1 - norm) - mpmath.log(7), log_s(1 - norm) - mpmath.log(3)),
            "cpo": (mpmath.log(mpmath.exp(log_s(-m)) + 1), log_s(-m)),
            "tdpo": (log_s(-m), log_s(-m)),
            "ti-dpo": (log_s(-m), log_s(-m)),
            "kto": (log_s(-w) + log_s(w), log_s(l) + log_s(-l)),
            "dil-bce": (log_s(-w), log_s(l)),
        }
        for name, (log_w, log_l) in expected.items():
            settable = {"beta": 1.0} if "beta" in BY_NAME[name].model_fields else {}
            found = incentives(objective(name, **settable), pairs_of([row]))
            assert found.log_d_w.item() == pytest.approx(float(log_w), rel=1e-12), name
            assert found.log_d_l.item() == pytest.approx(float(log_l), rel=1e-12), name


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

    found = incentives(bound, pairs_of([row]))
    scale = 1 + abs(value(0, 0))
    slope_w = (value(h, 0) - value(-h, 0)) / (2 * h)
    slope_l = (value(0, h) - value(0, -h)) / (2 * h)
    assert found.d_w.item() == pytest.approx(-slope_w, rel=1e-4, abs=1e-8 * scale)
    assert found.d_l.item() == pytest.approx(slope_l, rel=1e-4, abs=1e-8 * scale)


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


@pytest.mark.parametrize(
    ("name", "z_l", "guarded"),
    [("ddro", 0.0, False), ("ddro", 0.65, True), ("dil-ukl", 9.0, False), ("dil-ukl", 9.5, True),
     ("dil-lsif", 4.5, False), ("dil-lsif", 4.7, True), ("bpo", 0.0, False), ("bpo", 95.0, True),
     ("bpo", -50.0, True), ("dpo", 1e4, False)],
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
    for name in ("kto", "dil-bce", "dpo"):
        z_w = torch.tensor([z], requires_grad=True)
        z_l = torch.tensor([z / 2], requires_grad=True)
        one = torch.ones(1)
        pairs = PairLogps(z_w, z_l, one, one, 0 * one, 0 * one)
        objective(name).loss(pairs).sum().backward()
        found = incentives(objective(name), pairs)
        assert math.log(-z_w.grad.item()) == pytest.approx(found.log_d_w.item(), rel=1e-5, abs=1e-5), name
        assert math.log(z_l.grad.item()) == pytest.approx(found.log_d_l.item(), rel=1e-5, abs=1e-5), name


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
    found = incentives(lambda w, lose: -2.0 * w, PairLogps(z, z, z, z))
    assert found.d_w.tolist() == [2.0, 2.0] and found.d_l.tolist() == [0.0, 0.0]
    assert found.log_d_l.tolist() == [-math.inf, -math.inf]
