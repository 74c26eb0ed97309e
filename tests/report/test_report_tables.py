"""Exact text of the tables, from runs with made numbers (see runs.py)."""

import dataclasses
import io
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import runs

from rcray import aggregate
from rcray.aggregate.collect import by_looks, collect
from rcray.aggregate.latex import latex_escape, to_latex
from rcray.aggregate.results import results_table
from rcray.aggregate.tables import (
    Column,
    Entry,
    Row,
    Table,
    number,
    to_csv,
    to_markdown,
    to_rich,
)
from rcray.store import Store

PACKAGE = Path(aggregate.__file__).parent
MARKDOWN = """\
## Three objectives on tiny-neox, calibration off and on

| Objective | RC | Accuracy (%) | Δ RC (points) | Δz_w (nats) | Δz_l (nats) | Margin (nats) | In band, head (%) | i (%) | ii (%) | iii (%) | Realised iii (%) |
| :--- | :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| DPO | w/o | 81.2 ± 2.4 | – | -3.20 ± 0.12 | -9.60 ± 0.25 | +6.40 ± 0.25 | 15.0 | 0.0 | 100.0 | 0.0 | 0.0 |
| DPO | w/ | failed | failed | failed | failed | failed | failed | failed | failed | failed | failed |
| CPO | w/o | degenerate | – | degenerate | degenerate | degenerate | degenerate | degenerate | degenerate | degenerate | degenerate |
| CPO | w/ | 79.3 ± 2.5 | w/o degenerate | +1.90 ± 0.12 | -2.00 ± 0.25 | +3.90 ± 0.25 | 100.0 | 0.0 | 5.3 | 89.5 | 85.0 |
| DIL-BCE | w/o | **84.4 ± 2.3** | – | +1.10 ± 0.12 | -7.30 ± 0.25 | +8.40 ± 0.25 | 100.0 | 0.0 | 15.8 | 84.2 | 80.0 |
| DIL-BCE | w/ | pending | pending | pending | pending | pending | pending | pending | pending | pending | pending |

- Model: tiny-neox.
- Held-out pairs: n = 256; seeds: 42; ± one standard error over held-out pairs.
- Likelihoods: sum of token log-probabilities; fidelity preset: paper.
- Accuracy: held-out pairs whose margin grew against the reference. Δz_w, Δz_l: drift of held-out chosen and rejected answers from the reference. Bold: highest accuracy of a model, whether or not the difference exceeds its error.
- The error of Δ RC adds the two rows' errors as if independent; on the same pairs it is usually smaller.
- Pathways: (i) both likelihoods rise; (ii) both likelihoods fall; (iii) the winner is preserved, the loser suppressed; predicted for fresh pairs by the updates made, realised on the probe set, in shares of intervals. In band: shares of steps, by the paper's band at the head.
- Intervals predicted on no pathway of the three: reversed up to 5.3%.
"""  # noqa: E501

LATEX_BODY = r"""  \begin{tabular}{llrrrrrrrrrr}
    \toprule
    Objective & RC & Accuracy (\%) & $\Delta$ RC (points) & $\Delta z_w$ (nats) & $\Delta z_l$ (nats) & Margin (nats) & In band, head (\%) & i (\%) & ii (\%) & iii (\%) & Realised iii (\%) \\
    \midrule
    DPO & w/o & $81.2 \pm 2.4$ & -- & $-3.20 \pm 0.12$ & $-9.60 \pm 0.25$ & $+6.40 \pm 0.25$ & $15.0$ & $0.0$ & $100.0$ & $0.0$ & $0.0$ \\
     & w/ & failed & failed & failed & failed & failed & failed & failed & failed & failed & failed \\
    CPO & w/o & degenerate & -- & degenerate & degenerate & degenerate & degenerate & degenerate & degenerate & degenerate & degenerate \\
     & w/ & $79.3 \pm 2.5$ & w/o degenerate & $+1.90 \pm 0.12$ & $-2.00 \pm 0.25$ & $+3.90 \pm 0.25$ & $100.0$ & $0.0$ & $5.3$ & $89.5$ & $85.0$ \\
    DIL-BCE & w/o & $\mathbf{84.4 \pm 2.3}$ & -- & $+1.10 \pm 0.12$ & $-7.30 \pm 0.25$ & $+8.40 \pm 0.25$ & $100.0$ & $0.0$ & $15.8$ & $84.2$ & $80.0$ \\
     & w/ & pending & pending & pending & pending & pending & pending & pending & pending & pending & pending \\
    \bottomrule
  \end{tabular}
\end{table}
"""  # noqa: E501

CSV = """\
model,objective,rc,status,seeds,accuracy_percent,accuracy_percent_stderr,accuracy_delta_points,accuracy_delta_points_stderr,drift_w_nats,drift_w_nats_stderr,drift_l_nats,drift_l_nats_stderr,margin_nats,margin_nats_stderr,in_band_percent,pathway_i_percent,pathway_ii_percent,pathway_iii_percent,realised_iii_percent
tiny-neox,DPO,w/o,ok,1,81.25,2.43945,NA,NA,-3.2,0.125,-9.6,0.25,6.4,0.25,15,0,100,0,0
tiny-neox,DPO,w/,ok,1,82.8125,2.35795,1.5625,3.39276,0.4,0.125,-6.1,0.25,6.5,0.25,100,0,31.5789,68.4211,65
tiny-neox,CPO,w/o,ok,1,70.3125,2.85551,NA,NA,6.3,0.125,4.1,0.25,2.2,0.25,3.5,100,0,0,0
tiny-neox,CPO,w/,ok,1,79.2969,2.53236,8.98438,3.81665,1.9,0.125,-2,0.25,3.9,0.25,100,0,5.26316,89.4737,85
tiny-neox,DIL-BCE,w/o,ok,1,84.375,2.26933,NA,NA,1.1,0.125,-7.3,0.25,8.4,0.25,100,0,15.7895,84.2105,80
tiny-neox,DIL-BCE,w/,ok,1,83.9844,2.29219,-0.390625,3.22552,0.9,0.125,-7,0.25,7.9,0.25,100,0,5.26316,94.7368,95
"""


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


@pytest.fixture
def mixed(store):
    """Three cells finished, one failed, one degenerate, one pending."""
    experiment = runs.quickstart()
    cells = runs.cells_of(experiment)
    for i in (0, 3, 4):
        runs.write_ok(store, cells[i])
    runs.make(store, cells[1], "failed", error="the worker was killed", steps=60)
    runs.make(store, cells[2], "degenerate", error="non-finite loss at step 12", steps=12)
    return results_table(experiment.title, collect(store, cells))


def test_markdown(mixed):
    assert to_markdown(mixed) == MARKDOWN


def test_latex(mixed):
    text = to_latex(mixed)
    assert text.startswith(
        "\\begin{table}[ht]\n  \\centering\n  \\small\n  \\caption{Three objectives on tiny-neox, calibration off and "
        "on. Model: tiny-neox. Held-out pairs: n = 256; seeds: 42; $\\pm$ one standard error over held-out pairs."
    )
    assert "$\\Delta z_w$, $\\Delta z_l$: drift" in text
    assert text.endswith(LATEX_BODY)


def test_csv_of_finished_cells(store):
    cells = runs.cells_of(runs.quickstart())
    runs.write_runs(store, cells)
    assert to_csv(results_table("t", collect(store, cells))) == CSV


def test_terminal(mixed):
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=150, color_system=None).print(to_rich(mixed))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert ["DPO", "w/", *["failed"] * 10] in lines
    assert "Held-out pairs: n = 256; seeds: 42" in out.getvalue()


def test_equal_results_give_equal_text(store):
    cells = runs.cells_of(runs.quickstart())
    runs.write_runs(store, cells)
    for render in (to_markdown, to_latex, to_csv):
        first, second = (render(results_table("t", collect(store, cells))) for _ in range(2))
        assert first == second


def test_several_seeds_give_mean_spread_and_n(store):
    cells = runs.cells_of(runs.several_seeds(runs.quickstart()))
    runs.write_runs(store, cells)
    failed = next(
        cell for cell in cells if cell.label.startswith("tiny-neox · cpo · RC") and cell.config.train.seed == 44
    )
    runs.make(store, failed, "oom", error="out of memory")
    table = results_table("seeds", collect(store, cells))
    lines = to_markdown(table).splitlines()
    # Seeds move accuracy by 1/64 without RC and 1/128 with it: mean + 1.5625 points, std 1.5625, and half of that.
    assert lines[4].startswith("| DPO | w/o | 3 | 82.8 ± 1.6 | – | -3.18 ± 0.02 | -9.60 ± 0.00 |")
    assert lines[5].startswith("| DPO | w/ | 3 | 83.6 ± 0.8 | +0.8 ± 0.8 |")
    assert lines[7].startswith("| CPO | w/ | 2 of 3 | 79.7 ± 0.6 | +8.6 ± 0.6 |")
    assert "seeds: 42, 43, 44; mean ± sample standard deviation over seeds." in to_markdown(table)
    header, first = (line.split(",") for line in to_csv(table).splitlines()[:2])
    assert dict(zip(header, first, strict=True))["accuracy_percent_std"] == "1.5625"


def test_one_finished_seed_of_several_has_no_spread(store):
    cells = runs.cells_of(runs.several_seeds(runs.quickstart()))[:3]
    assert [cell.config.train.seed for cell in cells] == [42, 43, 44]
    runs.write_ok(store, cells[0])
    table = results_table("seeds", collect(store, cells))
    assert to_markdown(table).splitlines()[4].startswith("| DPO | w/o | 1 of 3 | 81.2 | – | -3.20 |")
    assert ",81.25,NA," in to_csv(table)


def test_models_are_grouped(store):
    experiment = runs.quickstart()
    grid = {**experiment.grid, "model": ["tiny-neox", "tiny-qwen2"]}  # the model varies fastest in the file
    cells = runs.cells_of(experiment.model_copy(update={"grid": grid}))
    runs.write_runs(store, cells)
    table = results_table("two models", collect(store, cells))
    assert [row.group for row in table.rows] == ["tiny-neox"] * 6 + ["tiny-qwen2"] * 6
    assert sum(entry.best for row in table.rows for entry in row.entries) == 2  # one per model
    assert to_markdown(table).splitlines()[4].startswith("| tiny-neox | DPO | w/o |")
    assert r"\multicolumn{12}{c}{\textbf{tiny-qwen2}} \\" in to_latex(table)


def test_a_finished_run_without_evaluation_says_so(store):
    cells = runs.cells_of(runs.quickstart())[:1]
    run = runs.write_ok(store, cells[0])
    run.evaluation.unlink()
    line = to_markdown(results_table("t", collect(store, cells))).splitlines()[4]
    assert line == (
        "| DPO | w/o | not evaluated | – | not evaluated | not evaluated | not evaluated |"
        " 15.0 | 0.0 | 100.0 | 0.0 | 0.0 |"
    )


def test_hostile_text_is_escaped():
    text = "50% of a_b & {x} | *y* <script> $z$ \\ ^ ~ #"
    table = Table(text, (text,), (Column("a", text, align="left"),), (Row("m", (Entry(text),)),))
    assert latex_escape(text) == (
        r"50\% of a\_b \& \{x\} | *y* \textless{}script\textgreater{} \$z\$ "
        r"\textbackslash{} \textasciicircum{} \textasciitilde{} \#"
    )
    assert r"| 50% of a_b & {x} \| \*y\* \<script\> $z$ \\ ^ ~ # |" in to_markdown(table)
    assert to_latex(table).count(latex_escape(text)) == 4
    lines = to_csv(dataclasses.replace(table, rows=(Row("m", (Entry('a,"b"'),)),))).splitlines()
    assert lines == [f"model,{table.columns[0].key}", 'm,"a,""b"""']


@pytest.mark.parametrize(
    ("value", "sign", "text"),
    [
        (-0.04, True, "0.0"),
        (0.0, True, "0.0"),
        (-0.04, False, "0.0"),
        (1.25, True, "+1.2"),
        (float("nan"), True, "non-finite"),
    ],
)
def test_numbers(value, sign, text):
    assert number(value, 1, sign) == text


def test_percent_is_made_in_one_place():
    files = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".html")]
    places = [path.name for path in files for _ in re.findall(r"\b100(?:\.0)? ?\*|\* ?100\b", path.read_text())]
    assert places == ["tables.py"]


def test_the_note_says_whose_prediction_it_is():
    looked, at_head = (SimpleNamespace(ok=True, recorded=True, predicted_at_head=at_head) for at_head in (False, True))
    assert [by_looks(results, "A", "B") for results in ([], [looked], [at_head])] == ["A", "A", "B"]
    assert by_looks([looked, at_head], "A", "B") == "A (without looks: B)"
