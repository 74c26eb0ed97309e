import dataclasses
import math
import re

import formulas
import numpy as np
import pytest

from rcray.aggregate import theory
from rcray.aggregate.estimates import paired_test, t_quantile
from rcray.aggregate.latex import to_latex
from rcray.aggregate.tables import entry_text, to_csv, to_markdown
from rcray.calibration import Statistics, observe, predicted_pathway
from rcray.config.objectives import BUILT_IN, Cpo, Dpo, Formula

#: The paper's table of coefficients: which objectives have d_w = d_l.
EQUAL = {"DPO", "TI-DPO", "IPO", "R-DPO"}
UNEQUAL = {"RRHF", "SLiC-HF", "SimPO", "CPO", "KTO", "DDRO", "DIL-BCE", "DIL-UKL", "DIL-LSIF"}


def test_the_coefficients_are_those_of_the_paper():
    table = theory.coefficients_table()
    rows = {row.entries[0].words: row for row in table.rows}
    assert len(rows) == len(BUILT_IN)
    for title in EQUAL | UNEQUAL:
        assert rows[title].entries[3].words == ("✓" if title in EQUAL else "✗"), title
        assert rows[title].entries[4].words == "≤ 1e-12", title
    assert rows["CPO"].entries[1].words == "β σ(-β m) + λ"
    assert rows["DDRO"].entries[2].latex == (
        r"$\frac{\exp\left(\tilde z_l\right)}{2 - \exp\left(\tilde z_l\right)}$"
    )  # fmt: skip
    assert rows["SimPO"].entries[1].latex == r"$\frac{\beta}{|y_w|} \sigma\left(\gamma - m_{\mathrm{norm}}\right)$"
    assert [row.group for row in table.rows] == sorted((row.group for row in table.rows), reverse=True)


@pytest.mark.parametrize("params", BUILT_IN, ids=lambda params: params.traits.title)
def test_the_printed_formulas_are_those_of_the_loss(params):
    """The text against autograd, the LaTeX against the text, the tick against both."""
    traits, checked = params.traits, formulas.check(params())
    assert checked.error <= traits.precision
    assert checked.equal == (traits.d_w == traits.d_l)
    for formula in (traits.d_w, traits.d_l):
        assert formulas.parse(formula.text).latex() == formula.latex


@pytest.mark.parametrize(
    ("params", "wrong"), [(Dpo, "β σ(β m\u0303)"), (Cpo, "β σ(-β m)"), (Dpo, "2 β σ(-β m\u0303)")]
)  # fmt: skip
def test_a_wrong_formula_is_found(params, wrong, monkeypatch):
    monkeypatch.setattr(params, "traits", dataclasses.replace(params.traits, d_w=Formula(wrong, "")))
    assert formulas.check(params()).error > 1e-3


@pytest.mark.parametrize(
    ("text", "names", "value"),
    [
        ("β σ(-β m\u0303)", {"β": 2.0, "m\u0303": 0.0}, 1.0),
        ("exp(z\u0303_l) / (2 - exp(z\u0303_l))", {"z\u0303_l": 0.0}, 1.0),
        ("1[m < γ] + λ", {"m": 0.5, "γ": 1.0, "λ": 0.25}, 1.25),
        ("2 (t - m\u0303)", {"t": 5.0, "m\u0303": 1.0}, 8.0),
        ("β λ_w σ′(β (K - z\u0303_w))", {"β": 1.0, "λ_w": 2.0, "K": 0.0, "z\u0303_w": 0.0}, 0.5),
        ("-β m - α (|y_w| - |y_l|)", {"β": 1.0, "m": 2.0, "α": 0.5, "|y_w|": 3.0, "|y_l|": 1.0}, -3.0),
    ],
)
def test_formulas_have_their_values(text, names, value):
    assert float(np.asarray(formulas.parse(text).value(names))) == pytest.approx(value)


@pytest.mark.parametrize("text", ["β σ(", "β ]", "", "β $ m", "1[m < γ"])
def test_what_is_no_formula_is_refused(text):
    with pytest.raises(ValueError, match=r"expected|left over|cannot be read|begins nothing"):
        formulas.parse(text)


def test_an_objective_without_a_printed_formula_has_dashes(monkeypatch):
    """A user's own by import path, and one added to the zoo with traits alone or with symbols that nobody knows."""
    monkeypatch.setattr(Dpo, "traits", dataclasses.replace(Dpo.traits, d_w=None, d_l=None))
    monkeypatch.setattr(Cpo, "traits", dataclasses.replace(Cpo.traits, d_w=Formula("?! ξ(", r"\xi")))
    rows = {row.entries[0].words: row for row in theory.coefficients_table(["squared_hinge"]).rows}
    assert [entry.words for entry in rows["DPO"].entries[1:]] == ["–"] * 5
    assert [entry.words for entry in rows["squared_hinge"].entries[1:]] == ["–"] * 5
    assert rows["squared_hinge"].group == "Objectives of your own"
    assert rows["CPO"].entries[1].words == "?! ξ("


def test_a_symbol_that_nobody_knows_breaks_no_table(monkeypatch):
    """Of a zoo with an objective of the user's own: every renderer takes it, and LaTeX has its command."""
    new = dataclasses.replace(
        Cpo.traits, title="Mine", d_w=Formula("ξ ψ(∇)", r"\xi \psi\left(\nabla\right)"), where="ξ = ω z_w, ∇ of you"
    )
    monkeypatch.setattr(Cpo, "traits", new)
    table = theory.coefficients_table()
    row = next(row for row in table.rows if row.entries[0].words == "Mine")
    assert row.entries[5].words == "ξ = ω z_w, ∇ of you"
    for text in (to_markdown(table), to_csv(table)):
        assert "ξ ψ(∇)" in text
    assert r"$\xi$ = $\omega$ $z_w$" in to_latex(table)


def test_a_negative_chosen_incentive_lowers_both():
    """What the note below the regimes says of NCA and of what is past a target."""
    random = np.random.default_rng(2)
    for _ in range(theory.POINTS):
        log_d_w, log_d_l, log_w, log_l = random.uniform(-3, 3, 4)
        update = Statistics(log_d_w, log_d_l, -1, 1, log_w, log_l, random.uniform(0, 1))
        assert predicted_pathway(update) == "ii"
        assert observe(update).skipped == "opposite_signs"


def test_the_regimes_are_those_of_the_paper():
    table = theory.regimes_table()
    assert [row.entries[2].words.partition(" ")[0] for row in table.rows] == ["(ii)", "(iii)", "(i)"]
    assert {entry_text(table.columns[3], row.entries[3]) for row in table.rows} == {"100% of 256"}


@pytest.mark.parametrize("pathway", ["ii", "iii", "i"])
def test_the_band_predicts_the_pathway_of_each_regime(pathway):
    """At every one of the points that the table names."""
    random = np.random.default_rng(1)
    for _ in range(theory.POINTS):
        rho, log_w, log_l = random.uniform(0.02, 0.98), random.uniform(-3, 3), random.uniform(-3, 3)
        centre, half = log_l - log_w, -math.log(rho)
        offset = {
            "ii": -half - random.uniform(0.01, 4),
            "iii": random.uniform(-half, half),
            "i": half + random.uniform(0.01, 4),
        }[pathway]
        log_d_l = random.uniform(-4, 4)
        update = Statistics(centre + offset + log_d_l, log_d_l, 1, 1, log_w, log_l, rho)
        assert predicted_pathway(update) == pathway, update


@pytest.mark.parametrize("build", [theory.coefficients_table, theory.regimes_table])
def test_latex_is_balanced(build):
    text = to_latex(build())
    assert text.isascii()
    assert text.count("$") % 2 == 0
    bare = re.sub(r"\\[{}|]", "", text)
    assert bare.count("{") == bare.count("}")
    assert text.count(r"\left") == text.count(r"\right")


def test_student():
    """Quantiles of every table of the t distribution."""
    for degrees, expected in ((1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (30, 2.042), (1000, 1.962)):
        assert t_quantile(degrees) == pytest.approx(expected, abs=5e-4)
    test = paired_test([1.0, 2.0, 3.0])
    assert (test.n, test.mean, test.std) == (3, 2.0, 1.0)
    assert test.p == pytest.approx(0.0741799, abs=1e-6)  # t = 3.4641 with 2 degrees of freedom
    assert paired_test([1.0]) is None
    assert np.isnan(paired_test([0.5, 0.5, 0.5]).p)
