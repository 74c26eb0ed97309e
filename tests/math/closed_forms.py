"""Every objective's incentives in closed form, in plain floats: a second writing of what the package computes.

Legend: z~ = z - z_ref; m = z_w - z_l; m~ = z~_w - z~_l; s = sigmoid; d_w = -dL/dz_w, d_l = dL/dz_l.
"""

import math

import torch
from hypothesis import strategies as st

from rcray.objectives import PairLogps

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


def d_dpop(r, p):
    pull = p["beta"] * s(-p["beta"] * (r.mt - p["lam"] * max(0.0, -r.zt_w)))
    return pull * (1 + p["lam"] * (r.zt_w < 0)), pull


def d_dpo_shift(r, p):
    pull = p["beta"] * s(-p["beta"] * (r.zt_w - p["shift"] * r.zt_l))
    return pull, p["shift"] * pull


def d_cal_dpo(r, p):
    target = 1 / (2 * p["beta"])
    return s(-r.mt) + target - r.zt_w, s(-r.mt) + target + r.zt_l


def d_rpo(r, p):
    pull = p["beta"] * s(-p["beta"] * r.mt)
    return pull + p["alpha"] / r.n_w, pull


def alphapo_side(mean, p):
    """Reward and its slope; a straight line from the slope max_slope on."""
    if p["alpha"] == 0:
        return mean, 1.0
    power, edge = -p["alpha"] * mean, math.log(p["max_slope"])
    grown = math.expm1(power) if power <= edge else p["max_slope"] - 1 + p["max_slope"] * (power - edge)
    return -grown / p["alpha"], min(math.exp(power), p["max_slope"])


def d_alphapo(r, p):
    (reward_w, slope_w), (reward_l, slope_l) = alphapo_side(r.z_w / r.n_w, p), alphapo_side(r.z_l / r.n_l, p)
    pull = p["beta"] * s(p["gamma"] - p["beta"] * (reward_w - reward_l))
    return pull * slope_w / r.n_w, pull * slope_l / r.n_l


def orpo_side(mean, p):
    """Log-odds and their slope 1/(1 - p); a straight line from the slope max_slope on."""
    edge = math.log1p(-1 / p["max_slope"])
    if mean > edge:
        return edge - math.log(-math.expm1(edge)) + p["max_slope"] * (mean - edge), p["max_slope"]
    return mean - math.log(-math.expm1(mean)), -1 / math.expm1(mean)


def d_orpo(r, p):
    (odds_w, slope_w), (odds_l, slope_l) = orpo_side(r.z_w / r.n_w, p), orpo_side(r.z_l / r.n_l, p)
    pull = p["lam"] * s(odds_l - odds_w)
    return (1 + pull * slope_w) / r.n_w, pull * slope_l / r.n_l


def d_bdpo(r, p):
    mixture = p["lam"] * math.exp(r.zt_l) + 1 - p["lam"]
    pull = p["beta"] * s(-p["beta"] * (r.zt_w - math.log(mixture)))
    return pull, pull * p["lam"] * math.exp(r.zt_l) / mixture


def d_balanced(r, p):
    chosen = r.zt_w < -p["alpha"] * r.zt_l
    pull = p["beta"] * s(-p["beta"] * min(r.zt_w, -p["alpha"] * r.zt_l))
    return pull * chosen, p["alpha"] * pull * (not chosen)


def d_robust(r, p):
    u, e = p["beta"] * r.mt, p["label_smoothing"]
    return both(p["beta"] * ((1 - e) * s(-u) + e * s(u)) / (1 - 2 * e))


def d_exo(r, p):
    u, e = p["beta"] * r.mt, p["label_smoothing"]
    return both(p["beta"] * slope(u) * (math.log((1 - e) / e) - u))


def d_discopop(r, p):
    u, t = p["beta"] * r.mt, p["tau"]
    blend = slope(u / t) / t * (math.log1p(math.exp(-u)) - math.exp(-u))
    return both(p["beta"] * (s(-u / t) * s(-u) + blend + s(u / t) * math.exp(-u)))


def d_f_dpo(r, p):
    def side(ratio):
        if p["divergence"] == "js_divergence":
            return math.log(s(ratio)), s(-ratio)
        top = p["max_slope"]
        grown = math.exp(-ratio) if math.exp(-ratio) < top else top * (1 - ratio - math.log(top))
        return -grown, min(math.exp(-ratio), top)

    (phi_w, slope_w), (phi_l, slope_l) = side(r.zt_w), side(r.zt_l)
    pull = p["beta"] * s(-p["beta"] * (phi_w - phi_l))
    return pull * slope_w, pull * slope_l


def d_sppo(r, p):
    target = 1 / (2 * p["beta"])
    return 2 * (target - r.zt_w), 2 * (target + r.zt_l)


def d_apo_down(r, p):
    b = p["beta"]
    return b * (slope(b * r.mt) - slope(b * r.zt_w)), b * slope(b * r.mt)


def f_dpo_case(divergence):
    # a small beta: the loss is steep, and plain floats end at exp(709)
    drawn = {"divergence": st.just(divergence), "beta": st.floats(0.02, 0.5), "max_slope": st.floats(2, 20)}
    return "f-dpo", drawn, d_f_dpo


smoothing = st.floats(0.01, 0.45)
shape = st.just(0.0) | st.floats(0.01, 0.1) | st.floats(-0.1, -0.01)


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
    "dpop": ("dpop", {"beta": beta, "lam": st.floats(0.5, 500)}, d_dpop),
    "dpo-shift": ("dpo-shift", {"beta": beta, "shift": st.floats(0.05, 1)}, d_dpo_shift),
    "cal-dpo": ("cal-dpo", {"beta": beta}, d_cal_dpo),
    "rpo": ("rpo", {"beta": beta, "alpha": weight}, d_rpo),
    "alphapo": (
        "alphapo",
        {"beta": beta, "gamma": st.floats(0, 3), "alpha": shape, "max_slope": st.floats(2, 50)},
        d_alphapo,
    ),
    "orpo": ("orpo", {"lam": weight, "max_slope": st.floats(2, 1e4)}, d_orpo),
    "bdpo": ("bdpo", {"beta": beta, "lam": st.floats(0.05, 0.95)}, d_bdpo),
    "balanced-po": ("balanced-po", {"beta": beta, "alpha": weight}, d_balanced),
    "hinge": ("hinge", {"beta": beta}, lambda r, p: both(p["beta"] * (p["beta"] * r.mt < 1))),
    "robust": ("robust", {"beta": beta, "label_smoothing": smoothing | st.just(0.0)}, d_robust),
    "cdpo": (
        "cdpo",
        {"beta": beta, "label_smoothing": smoothing},
        lambda r, p: both(p["beta"] * (s(-p["beta"] * r.mt) - p["label_smoothing"])),
    ),
    "exo": ("exo", {"beta": beta, "label_smoothing": smoothing}, d_exo),
    "discopop": ("discopop", {"beta": st.floats(0.02, 0.3), "tau": st.floats(0.05, 0.9)}, d_discopop),
    "f-dpo-forward": f_dpo_case("forward_kl"),
    "f-dpo-js": f_dpo_case("js_divergence"),
    "sppo-hard": ("sppo-hard", {"beta": beta}, d_sppo),
    "nca": (
        "nca",
        {"beta": beta},
        lambda r, p: (p["beta"] * (1 - 1.5 * s(p["beta"] * r.zt_w)), p["beta"] * s(p["beta"] * r.zt_l) / 2),
    ),
    "bco": (
        "bco",
        {"beta": beta},
        lambda r, p: (p["beta"] * s(-p["beta"] * r.zt_w), p["beta"] * s(p["beta"] * r.zt_l)),
    ),
    "apo-down": ("apo-down", {"beta": beta}, d_apo_down),
}


def pairs_of(batch, reduction="sum"):
    column = {key: torch.tensor([float(row[key]) for row in batch], dtype=torch.float64) for key in KEYS}
    constants = {"kl_w": column.pop("kl_w"), "kl_baseline": column.pop("kl_baseline")}
    return PairLogps(**column, reduction=reduction, constants=constants)


def at_a_corner(name, r, p):
    """Where a loss has a kink or starts its continuation, one side's derivative is as good as the other's.

    And where an incentive changes its sign: what is left of a difference has no relative precision.
    """
    edges = {
        "bpo": lambda: (-p["beta"] * r.mt - math.log(0.01), -p["beta"] * r.mt - math.log(1e4)),
        "rrhf": lambda: (r.m,),
        "slic-hf": lambda: (r.m - p["gamma"],),
        "ipo": lambda: (1 / (2 * p["tau"]) - r.mt,),
        "dpop": lambda: (r.zt_w,),
        "balanced-po": lambda: (r.zt_w + p["alpha"] * r.zt_l,),
        "hinge": lambda: (1 - p["beta"] * r.mt,),
        "cal-dpo": lambda: d_cal_dpo(r, p),
        "sppo-hard": lambda: d_sppo(r, p),
        "cdpo": lambda: (s(-p["beta"] * r.mt) - p["label_smoothing"],),
        "exo": lambda: (math.log(1 / p["label_smoothing"] - 1) - p["beta"] * r.mt,),
        "nca": lambda: (1 - 1.5 * s(p["beta"] * r.zt_w),),
        "apo-down": lambda: (1 - slope(p["beta"] * r.mt) / slope(p["beta"] * r.zt_w),),
        "discopop": lambda: (d_discopop(r, p)[0],),
    }
    return name in edges and any(abs(edge) < 1e-5 for edge in edges[name]())
