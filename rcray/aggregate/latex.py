"""Tables as LaTeX: booktabs, escaped text, spreads as the paper prints them."""

import math
import re

from rcray.aggregate.tables import Column, Entry, Row, Table, entry_text

_SIGNS: dict[str, str] = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "Δ": r"$\Delta$", "±": r"$\pm$", "·": r"$\cdot$", "–": "--", "−": "$-$", "×": r"$\times$", "…": r"\ldots{}",
    "ρ": r"$\rho$", "β": r"$\beta$", "σ": r"$\sigma$", "λ": r"$\lambda$", "γ": r"$\gamma$", "α": r"$\alpha$",
    "τ": r"$\tau$", "≤": r"$\le$", "≥": r"$\ge$", "∞": r"$\infty$", "✓": r"$\checkmark$", "✗": r"$\times$",
    "→": r"$\to$", "∂": r"$\partial$", "≠": r"$\neq$", "ε": r"$\varepsilon$", "φ": r"$\varphi$", "′": "$'$",
    # a formula of a user's own may have any Greek letter
    "δ": r"$\delta$", "ζ": r"$\zeta$", "η": r"$\eta$", "θ": r"$\theta$", "ι": r"$\iota$", "κ": r"$\kappa$",
    "μ": r"$\mu$", "ν": r"$\nu$", "ξ": r"$\xi$", "π": r"$\pi$", "υ": r"$\upsilon$", "χ": r"$\chi$", "ψ": r"$\psi$",
    "ω": r"$\omega$", "Γ": r"$\Gamma$", "Θ": r"$\Theta$", "Λ": r"$\Lambda$", "Ξ": r"$\Xi$", "Π": r"$\Pi$",
    "Σ": r"$\Sigma$", "Φ": r"$\Phi$", "Ψ": r"$\Psi$", "Ω": r"$\Omega$",
}  # fmt: skip
#: A letter with a side, as in Δz_w, or with a tilde.
_SYMBOL = re.compile(r"(?<![\w\\])(Δ?)([A-Za-z])(\u0303?)(_[wl])?(?![\w\u0303])")


def to_latex(table: Table) -> str:
    r"""A booktabs table; the document needs `\usepackage{booktabs, amssymb}`."""
    shown = table.shown()
    aligns = "".join("r" if table.columns[i].align == "right" else "l" for i in shown)
    head = [table.columns[i].latex or latex_escape(table.columns[i].title) for i in shown]
    lines = [
        r"\begin{table}[ht]",
        r"  \centering",
        r"  \small",
        rf"  \caption{{{latex_escape(table.title)}. {latex_escape(' '.join(table.notes))}}}",
        rf"  \label{{tab:{re.sub(r'[^a-z0-9-]', '-', table.name.lower())}}}",
        rf"  \begin{{tabular}}{{{aligns}}}",
        r"    \toprule",
        f"    {' & '.join(head)} \\\\",
    ]
    previous = Row("", ())
    for row in table.rows:
        if row.group != previous.group or not previous.entries:
            lines.append(r"    \midrule")
            if len(table.groups) > 1:
                heading = rf"\multicolumn{{{len(shown)}}}{{c}}{{\textbf{{{latex_escape(row.group)}}}}} \\"
                lines += [f"    {heading}", r"    \midrule"]
        texts = [_entry(table, table.columns[i], row.entries[i]) for i in shown]
        if previous.entries and previous.group == row.group and previous.entries[shown[0]] == row.entries[shown[0]]:
            texts[0] = ""  # the objective is named once, as in the paper's tables
        lines.append(f"    {' & '.join(texts)} \\\\")
        previous = row
    lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def latex_escape(text: str) -> str:
    """Text that LaTeX prints as it stands; the signs our tables use become their commands."""
    text = " ".join(text.split())
    parts, at = [], 0
    for match in _SYMBOL.finditer(text):
        delta, letter, tilde, side = match.groups()
        if tilde or side:
            letter = rf"\tilde {letter}" if tilde else letter
            before = r"\Delta " if delta else ""
            symbol = f"${before}{letter}{side or ''}$"
            parts += [_plain(text[at : match.start()]), symbol]
            at = match.end()
    return "".join([*parts, _plain(text[at:])])


def _plain(text: str) -> str:
    return "".join(_SIGNS.get(sign, sign) for sign in text)


def _entry(table: Table, column: Column, entry: Entry) -> str:
    if entry.latex:
        text = entry.latex
    elif entry.words or entry.value is None or not math.isfinite(entry.value):
        text = latex_escape(entry_text(column, Entry(words=entry.words, value=entry.value)))
    elif table.subscripts and entry.spread is not None and math.isfinite(entry.spread):
        spread = re.sub(r"^0\.", ".", column.text(entry.spread))
        text = f"${column.text(entry.value, column.sign)}_{{{spread}}}$"
    else:
        text = "$" + entry_text(column, Entry(value=entry.value, spread=entry.spread), r" \pm ") + "$"
    if entry.best:
        whole = text.startswith("$") and text.endswith("$") and text.count("$") == 2
        text = rf"$\mathbf{{{text[1:-1]}}}$" if whole else rf"\textbf{{{text}}}"
    return text + (rf"\textsuperscript{{{latex_escape(entry.mark)}}}" if entry.mark else "")
