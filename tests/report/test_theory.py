import dataclasses
import re
import sys

import numpy as np
import pytest

from rcray.aggregate import theory
from rcray.aggregate.formulas import parse
from rcray.aggregate.latex import to_latex
from rcray.aggregate.student import paired_test, quantile, two_sided
from rcray.aggregate.tables import entry_text
from rcray.config.objectives import BUILT_IN, Cpo, Dpo

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


@pytest.mark.parametrize(("params", "wrong"), [(Dpo, "b s(b m~)"), (Cpo, "b s(-b m)"), (Dpo, "2 b s(-b m~)")])
def test_a_wrong_formula_is_found(params, wrong, monkeypatch):
    monkeypatch.setattr(params, "traits", dataclasses.replace(params.traits, d_w=wrong))
    assert theory.check(params()).error > 1e-3
    with pytest.raises(AssertionError, match=params.traits.title):
        theory.coefficients_table()


@pytest.mark.parametrize(
    ("text", "names", "value"),
    [
        ("b s(-b m~)", {"b": 2.0, "m~": 0.0}, 1.0),
        ("exp z~_l / (2 - exp z~_l)", {"z~_l": 0.0}, 1.0),
        ("1[m<g] + lam", {"m": 0.5, "g": 1.0, "lam": 0.25}, 1.25),
        ("2 (t - m~)", {"t": 5.0, "m~": 1.0}, 8.0),
        ("b lw s'(b (K - z~_w))", {"b": 1.0, "lw": 2.0, "K": 0.0, "z~_w": 0.0}, 0.5),
        ("-b m - a (n_w - n_l)", {"b": 1.0, "m": 2.0, "a": 0.5, "n_w": 3.0, "n_l": 1.0}, -3.0),
    ],
)
def test_formulas_have_their_values(text, names, value):
    assert float(np.asarray(parse(text).value(names))) == pytest.approx(value)


@pytest.mark.parametrize("text", ["b s(", "b ]", "", "b $ m", "1[m<g"])
def test_what_is_no_formula_is_refused(text):
    with pytest.raises(ValueError, match=r"expected|left over|cannot be read|begins nothing"):
        parse(text)


def test_the_regimes_are_those_of_the_paper(monkeypatch):
    table = theory.regimes_table()
    assert [row.entries[2].words.partition(" ")[0] for row in table.rows] == ["(ii)", "(iii)", "(i)"]
    assert {entry_text(table.columns[3], row.entries[3]) for row in table.rows} == {"100% of 256"}
    monkeypatch.setattr(sys.modules["rcray.calibration.band"], "predicted_pathway", lambda update: "iii")
    with pytest.raises(AssertionError, match=r"regime \(ii\)"):
        theory.regimes_table()


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
        assert quantile(degrees) == pytest.approx(expected, abs=5e-4)
    assert two_sided(0.0, 5) == 1.0
    assert two_sided(2.776445, 4) == pytest.approx(0.05, abs=1e-6)
    test = paired_test([1.0, 2.0, 3.0])
    assert (test.n, test.mean, test.std) == (3, 2.0, 1.0)
    assert test.p == pytest.approx(0.0741799, abs=1e-6)  # t = 3.4641 with 2 degrees of freedom
    assert paired_test([1.0]) is None
    assert np.isnan(paired_test([0.5, 0.5, 0.5]).p)
