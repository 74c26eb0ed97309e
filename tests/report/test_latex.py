"""The LaTeX compiles: every table of a real report and of the published ones, and every printed formula."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rcray.aggregate import latex
from rcray.aggregate.report import write_published
from rcray.config.objectives import BUILT_IN

HERE = Path(__file__).parent
REAL = sorted((HERE / "quickstart-tables").glob("*.tex"))  # held to the code byte by byte in test_report_ledger.py

pytestmark = [
    pytest.mark.latex,
    pytest.mark.skipif(
        shutil.which("pdflatex") is None,
        reason="no pdflatex on the path; Debian's package is `texlive-latex-recommended`",
    ),
]


def compiled(folder: Path, body: str) -> str:
    """Compiles a document of this body with what `to_latex` says it needs; returns the log."""
    head = r"\documentclass{article}\usepackage[T1]{fontenc}\usepackage{booktabs, amssymb}\begin{document}"
    (folder / "document.tex").write_text(f"{head}\n{body}\n\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "document.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=120)
    log = (folder / "document.log").read_text(errors="replace")
    assert done.returncode == 0, "\n".join(re.findall(r"^!.*(?:\n.*){0,6}", log, re.MULTILINE)) or log[-2000:]
    assert (folder / "document.pdf").stat().st_size > 1000
    assert "Missing character" not in log
    return log


def test_tables_of_a_real_report(tmp_path):
    assert len(REAL) > 5
    compiled(tmp_path, "\n\\clearpage\n".join(path.read_text() for path in REAL))


def test_the_papers_own_tables(tmp_path):
    write_published(tmp_path / "published")
    tables = sorted((tmp_path / "published").rglob("*.tex"))
    assert len(tables) > 5
    compiled(tmp_path, "\n\\clearpage\n".join(path.read_text() for path in tables))


def test_every_formula_of_the_zoo(tmp_path):
    formulas = [
        formula.latex
        for params in BUILT_IN
        for formula in (params.traits.d_w, params.traits.d_l)
        if formula is not None
    ]
    assert len(formulas) >= 2 * len(BUILT_IN) - 4
    compiled(tmp_path, "\n\n".join(f"${formula}$" for formula in formulas))


def test_every_sign_that_is_escaped(tmp_path):
    compiled(tmp_path, latex.latex_escape("a_b Δz_w z̃_l m̃ " + " ".join(latex._SIGNS)))


def test_a_fault_is_found(tmp_path):
    with pytest.raises(AssertionError, match="Undefined control sequence"):
        compiled(tmp_path, r"\nosuchcommand")
