"""Two tables of theory: the zoo's incentives and the regimes of the ratio axis.

Both only print. That the formulas are those of the losses, and the regimes those of the band's code, is held by the
test suite at as many random points as the tables say.
"""

from collections.abc import Iterable

from rcray.aggregate.tables import Column, Entry, Row, Table
from rcray.config.objectives import BUILT_IN, ObjectiveParams, Traits

POINTS = 256  # of the test suite's check

#: The paper's order; the rest of the zoo follows.
_ORDER = ("dpo", "ti-dpo", "ipo", "r-dpo", "rrhf", "slic-hf", "simpo", "cpo", "kto", "ddro", "dil-bce", "dil-ukl",
          "dil-lsif")  # fmt: skip
_FAMILIES = {
    "entangled": "Entangled objectives",
    "disentangled": "Disentangled objectives",
    "custom": "Objectives of your own",
}
_NO_FORMULA = Entry("–", tone="absent")


def coefficients_table(own: Iterable[str] = ()) -> Table:
    """d_w and d_l of every objective of the zoo; `own` are the names of a user's, which have no printed formula."""
    rows = [_coefficients(params.traits) for params in sorted(BUILT_IN, key=_place)]
    rows += [Row(_FAMILIES["custom"], (Entry(name), *5 * (_NO_FORMULA,))) for name in own]
    paper = ", ".join(sorted((params.traits.title for params in BUILT_IN if _in_paper(params)), key=str.lower))
    return Table(
        title="Incentive coefficients",
        notes=(
            "d_w = -∂L/∂z_w, d_l = ∂L/∂z_l. σ: sigmoid; m = z_w - z_l; a tilde: against the reference; |y|: tokens of "
            "an answer; β, λ, γ, α: hyperparameters; the last column has what else the formulas of a row name. "
            f"In the paper's table: {paper}.",
            f"Checked: largest difference between the formula and autograd on the loss, at {POINTS} random points, "
            "relative to the largest incentive.",
        ),
        columns=(
            Column("method", "Method", align="left"),
            Column("d_w", "Chosen incentive d_w", align="left", latex="Chosen incentive $d_w$"),
            Column("d_l", "Rejected incentive d_l", align="left", latex="Rejected incentive $d_l$"),
            Column("equal", "d_w = d_l", "equal at every point", align="left", latex="$d_w = d_l$"),
            Column("error", "Checked", "formula against autograd"),
            Column("where", "Where", "what the formulas name", align="left"),
        ),
        rows=tuple(rows),
        name="coefficients",
        group_title="Family",
    )


def _in_paper(params: type[ObjectiveParams]) -> bool:
    return params.model_fields["name"].default in _ORDER


def _place(params: type[ObjectiveParams]) -> tuple[int, int]:
    name, family = params.model_fields["name"].default, list(_FAMILIES).index(params.traits.family)
    return family, _ORDER.index(name) if name in _ORDER else len(_ORDER) + BUILT_IN.index(params)


def _coefficients(traits: Traits) -> Row:
    group, d_w, d_l = _FAMILIES[traits.family], traits.d_w, traits.d_l
    if d_w is None or d_l is None:
        return Row(group, (Entry(traits.title), *5 * (_NO_FORMULA,)))
    sides = [Entry(side.text, latex=f"${side.latex}$") for side in (d_w, d_l)]
    equal = Entry("✓", latex=r"$\checkmark$") if d_w == d_l else Entry("✗", latex=r"$\times$")
    error = Entry(f"≤ {traits.precision:.0e}".replace("e-0", "e-"))
    where = Entry(traits.where) if traits.where else _NO_FORMULA
    return Row(group, (Entry(traits.title), *sides, equal, error, where))


def regimes_table() -> Table:
    """The three regimes of the ratio axis for rho > 0."""
    low, high = r"\rho\frac{\|s_l\|}{\|s_w\|}", r"\frac{1}{\rho}\frac{\|s_l\|}{\|s_w\|}"
    plain_low, plain_high = "ρ·|s_l|/|s_w|", "(1/ρ)·|s_l|/|s_w|"
    checked = Entry(f"100% of {POINTS}", value=1.0)
    rows = []
    for words, latex, signs, meaning in (
        (f"(0, {plain_low})", rf"\left(0,\, {low}\right)", "(< 0, < 0)", "(ii) both decrease"),
        (f"[{plain_low}, {plain_high}]", rf"\left[{low},\, {high}\right]", "(≥ 0, ≤ 0)",
         "(iii) suppress z_l, preserve z_w"),
        (f"({plain_high}, +∞)", rf"\left({high},\, +\infty\right)", "(> 0, > 0)", "(i) both increase"),
    ):  # fmt: skip
        latex_signs = signs.replace("<", "$<$").replace(">", "$>$").replace("≥", r"$\ge$").replace("≤", r"$\le$")
        latex_meaning = meaning.replace("z_l", "$z_l$").replace("z_w", "$z_w$")
        regime = Entry(words, latex=f"${latex}$")
        rows.append(Row("", (regime, Entry(signs, latex=latex_signs), Entry(meaning, latex=latex_meaning), checked)))
    return Table(
        title="Regimes of the ratio axis",
        notes=(
            "For ρ > 0 the band's edges part the axis of d_w/d_l into three regimes, which are the pathways. For ρ ≤ 0 "
            "every positive ratio gives (iii). A chosen incentive below 0 (past a target, or of NCA and APO-down) has "
            "no ratio: with d_w < 0 < d_l and ρ ≥ 0 both decrease (ii), and calibration leaves the update alone.",
            f"Checked: share of {POINTS} random updates in the regime for which the program predicts that pathway.",
        ),
        columns=(
            Column("regime", "Regime of d_w/d_l", align="left", latex="Regime of $d_w/d_l$"),
            Column("rates", "(dz_w/dt, dz_l/dt)", align="left", latex=r"$(\dot z_w, \dot z_l)$"),
            Column("pathway", "Pathway", align="left"),
            Column("agreed", "Checked", percent=True, digits=0),
        ),
        rows=tuple(rows),
        name="regimes",
    )
