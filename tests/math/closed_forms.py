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
