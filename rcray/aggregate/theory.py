"""Two tables of theory, generated from the program itself and checked numerically while they are written.

Incentive coefficients: the zoo's formulas, evaluated at random points against autograd on the losses that train.
Ratio-axis regimes: the three intervals of d_w / d_l, against the pathway that the band's code predicts there.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rcray.aggregate.formulas import parse
from rcray.aggregate.tables import Column, Entry, Row, Table
from rcray.config.objectives import BUILT_IN, ObjectiveParams

if TYPE_CHECKING:
    from rcray.objectives import PairLogps

POINTS = 256
TOLERANCE = 1e-6  # of a formula against autograd, relative; finite differences stand in for L'(R)
_EQUAL = 1e-12
_BOUNDS = (_EQUAL, TOLERANCE)  # what is printed: the digits below depend on the machine

#: The paper's order; the rest of the zoo follows.
_ORDER = ("dpo", "ti-dpo", "ipo", "r-dpo", "rrhf", "slic-hf", "simpo", "cpo", "kto", "ddro", "dil-bce", "dil-ukl",
          "dil-lsif")  # fmt: skip
_FAMILIES = {"entangled": "Entangled objectives", "disentangled": "Disentangled objectives"}


@dataclass(frozen=True)
class Checked:
    """What the numerical check of one objective found."""

    error: float  # largest difference between formula and autograd, relative to the largest incentive
    equal: bool  # d_w = d_l at every point


def coefficients_table() -> Table:
    """d_w and d_l of every objective of the zoo."""
    rows = []
    for params in sorted(BUILT_IN, key=_place):
        traits = params.traits
        formulas = [parse(text) for text in (traits.d_w, traits.d_l)]
        checked = check(params(name=params.model_fields["name"].default))
        if not checked.error <= TOLERANCE:
            raise AssertionError(f"{traits.title}: the zoo's formula is off by {checked.error:.2g}")
        sides = [Entry(formula.signs(), latex=f"${formula.latex()}$") for formula in formulas]
        same = Entry("✓" if checked.equal else "✗", latex=r"$\checkmark$" if checked.equal else r"$\times$")
        error = Entry(next(f"≤ {bound:.0e}".replace("e-0", "e-") for bound in _BOUNDS if checked.error <= bound))
        rows.append(Row(_FAMILIES[traits.family], (Entry(traits.title), *sides, same, error)))
    return Table(
        title="Incentive coefficients",
        notes=(
            "d_w = -∂L/∂z_w, d_l = ∂L/∂z_l. σ: sigmoid; m = z_w - z_l; a tilde: against the reference; |y|: tokens of "
            "an answer; β, λ, γ, α: hyperparameters. IPO: t = 1/(2τ), the paper's λ. KTO: K is 0 in the paper's form. "
            "SimPO: m_norm = β z_w/|y_w| - β z_l/|y_l|. TDPO: [·] is the margin with its KL terms. BPO: R = "
            "exp(-β m\u0303), L its Bregman loss. TDPO and BPO are not in the paper's table.",
            f"Checked: largest difference between the formula and autograd on the loss, at {POINTS} random points, "
            "relative to the largest incentive.",
        ),
        columns=(
            Column("method", "Method", align="left"),
            Column("d_w", "Chosen incentive d_w", align="left", latex="Chosen incentive $d_w$"),
            Column("d_l", "Rejected incentive d_l", align="left", latex="Rejected incentive $d_l$"),
            Column("equal", "d_w = d_l", "equal at every point", align="left", latex="$d_w = d_l$"),
            Column("error", "Checked", "formula against autograd"),
        ),
        rows=tuple(rows),
        name="coefficients",
        group_title="Family",
    )


def _place(params: type[ObjectiveParams]) -> tuple[int, int]:
    name = params.model_fields["name"].default
    family = list(_FAMILIES).index(params.traits.family)
    return family, _ORDER.index(name) if name in _ORDER else len(_ORDER) + BUILT_IN.index(params)


def check(params: ObjectiveParams) -> Checked:
    """The zoo's formula against autograd on the objective's own loss."""
    from rcray.calibration import incentives
    from rcray.objectives import build_objective

    objective = build_objective(params)
    pairs = _points()
    found = incentives(objective, pairs)
    names = _names(params, pairs, lambda shifted: objective.loss(shifted).numpy())
    errors = []
    for text, measured in ((params.traits.d_w, found.d_w), (params.traits.d_l, found.d_l)):
        expected = np.broadcast_to(parse(text).value(names), measured.shape)
        scale = max(float(np.abs(expected).max()), 1e-300)
        errors.append(float(np.abs(expected - measured.numpy()).max()) / scale)
    equal = bool(np.abs((found.d_w - found.d_l).numpy()).max() <= _EQUAL)
    return Checked(max(errors), equal)


def _points() -> "PairLogps":
    """Pairs whose normalised likelihoods stay inside every objective's plain region."""
    import torch

    from rcray.objectives import PairLogps

    random = np.random.default_rng(0)

    def uniform(low: float, high: float) -> Any:
        return torch.from_numpy(random.uniform(low, high, POINTS))

    ref_w, ref_l = uniform(-60, -20), uniform(-60, -20)
    n_w, n_l = (torch.from_numpy(random.integers(5, 40, POINTS).astype(float)) for _ in range(2))
    z_w, z_l = ref_w + uniform(-2, 0.4), ref_l + uniform(-2, 0.4)
    return PairLogps(z_w, z_l, n_w, n_l, ref_w, ref_l, constants={"kl_w": uniform(0, 2)})


def _names(params: ObjectiveParams, pairs: "PairLogps", loss: Any) -> Mapping[str, Any]:
    from dataclasses import replace

    given = {name: getattr(params, name, None) for name in ("beta", "lam", "gamma", "alpha", "lam_w", "lam_l", "tau")}
    beta = given["beta"] or 1.0
    arrays = {name: getattr(pairs, name).numpy() for name in ("z_w", "z_l", "n_w", "n_l", "m", "mt", "zt_w", "zt_l")}
    ratio = np.exp(-beta * arrays["mt"])

    def bregman_slope(at: np.ndarray) -> np.ndarray:
        """L'(R) by central differences: the margin is moved so that R is what is asked for."""
        import torch

        step = 1e-6

        def value(wanted: np.ndarray) -> np.ndarray:
            return np.asarray(loss(replace(pairs, z_w=pairs.z_w + torch.from_numpy(np.log(ratio / wanted) / beta))))

        return (value(at * (1 + step)) - value(at * (1 - step))) / (2 * step * at)

    return {
        "b": beta,
        "lam": given["lam"],
        "g": given["gamma"],
        "a": given["alpha"],
        "lw": given["lam_w"],
        "ll": given["lam_l"],
        "t": 1 / (2 * given["tau"]) if given["tau"] else None,
        "m": arrays["m"],
        "m~": arrays["mt"],
        "z~_w": arrays["zt_w"],
        "z~_l": arrays["zt_l"],
        "n_w": arrays["n_w"],
        "n_l": arrays["n_l"],
        "m_norm": beta * (arrays["z_w"] / arrays["n_w"] - arrays["z_l"] / arrays["n_l"]),
        "K": 0.0,
        "R": ratio,
        "L'": bregman_slope,
        "[.]": arrays["mt"] + (given["alpha"] or 0.0) * pairs.constants["kl_w"].numpy(),
    }


def regimes_table() -> Table:
    """The three regimes of the ratio axis for rho > 0."""
    low, high = r"\rho\frac{\|s_l\|}{\|s_w\|}", r"\frac{1}{\rho}\frac{\|s_l\|}{\|s_w\|}"
    plain_low, plain_high = "ρ·|s_l|/|s_w|", "(1/ρ)·|s_l|/|s_w|"
    rows = []
    for pathway, words, latex, signs, meaning in (
        ("ii", f"(0, {plain_low})", rf"\left(0,\, {low}\right)", "(< 0, < 0)", "(ii) both decrease"),
        ("iii", f"[{plain_low}, {plain_high}]", rf"\left[{low},\, {high}\right]", "(≥ 0, ≤ 0)",
         "(iii) suppress z_l, preserve z_w"),
        ("i", f"({plain_high}, +∞)", rf"\left({high},\, +\infty\right)", "(> 0, > 0)", "(i) both increase"),
    ):  # fmt: skip
        agreed = _regime_agreement(pathway)
        if agreed < 1:
            raise AssertionError(f"regime ({pathway}): the band's code agrees at {agreed:.1%} of the points only")
        latex_signs = signs.replace("<", "$<$").replace(">", "$>$").replace("≥", r"$\ge$").replace("≤", r"$\le$")
        rows.append(
            Row(
                "",
                (
                    Entry(words, latex=f"${latex}$"),
                    Entry(signs, latex=latex_signs),
                    Entry(meaning, latex=meaning.replace("z_l", "$z_l$").replace("z_w", "$z_w$")),
                    Entry(f"{100 * agreed:.0f}% of {POINTS}", value=100 * agreed),
                ),
            )
        )
    return Table(
        title="Regimes of the ratio axis",
        notes=(
            "For ρ > 0 the band's edges part the axis of d_w/d_l into three regimes, which are the pathways. For ρ ≤ 0 "
            "every positive ratio gives (iii).",
            f"Checked: share of {POINTS} random updates in the regime for which the program predicts that pathway.",
        ),
        columns=(
            Column("regime", "Regime of d_w/d_l", align="left", latex="Regime of $d_w/d_l$"),
            Column("rates", "(dz_w/dt, dz_l/dt)", align="left", latex=r"$(\dot z_w, \dot z_l)$"),
            Column("pathway", "Pathway", align="left"),
            Column("agreed", "Checked", digits=0),
        ),
        rows=tuple(rows),
        name="regimes",
    )


def _regime_agreement(pathway: str) -> float:
    from rcray.calibration.band import Statistics, predicted_pathway

    random = np.random.default_rng(1)
    agreed = 0
    for _ in range(POINTS):
        rho, log_w, log_l = random.uniform(0.02, 0.98), random.uniform(-3, 3), random.uniform(-3, 3)
        centre, half = log_l - log_w, -math.log(rho)
        offset = {
            "ii": -half - random.uniform(0.01, 4),
            "iii": random.uniform(-half, half),
            "i": half + random.uniform(0.01, 4),
        }[pathway]
        log_d_l = random.uniform(-4, 4)
        update = Statistics(centre + offset + log_d_l, log_d_l, 1, 1, log_w, log_l, rho)
        agreed += predicted_pathway(update) == pathway
    return agreed / POINTS
