"""The zoo's incentive formulas, read: one text becomes a number, LaTeX and plain signs.

The grammar is that of `rcray.config.objectives`: names side by side multiply, `s` is the sigmoid, `s'` its derivative,
`exp` takes what follows, `1[m<g]` is an indicator, `[.]` and `L'(R)` stand for what the loss defines.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?)|(\[\.\])|([A-Za-z]+~?(?:_[a-z]+)?'?)|([-+*/()\[\]<]))")

_LATEX = {
    "b": r"\beta", "lam": r"\lambda", "g": r"\gamma", "a": r"\alpha", "lw": r"\lambda_w", "ll": r"\lambda_l",
    "m": "m", "m~": r"\tilde m", "z~_w": r"\tilde z_w", "z~_l": r"\tilde z_l", "n_w": "|y_w|", "n_l": "|y_l|",
    "m_norm": r"m_{\mathrm{norm}}", "t": "t", "K": "K", "R": "R", "[.]": r"[\,\cdot\,]",
}  # fmt: skip
_SIGNS = {
    "b": "β", "lam": "λ", "g": "γ", "a": "α", "lw": "λ_w", "ll": "λ_l", "m~": "m\u0303", "z~_w": "z\u0303_w",
    "z~_l": "z\u0303_l", "n_w": "|y_w|", "n_l": "|y_l|", "[.]": "[·]",
}  # fmt: skip
_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "s": lambda x: 1 / (1 + np.exp(-x)),
    "s'": lambda x: np.exp(-x) / (1 + np.exp(-x)) ** 2,
    "exp": np.exp,
}
_FUNCTION_LATEX = {"s": r"\sigma", "s'": r"\sigma'", "exp": r"\exp", "L'": "L'"}
_FUNCTION_SIGNS = {"s": "σ", "s'": "σ′", "exp": "exp", "L'": "L′"}


@dataclass(frozen=True)
class Formula:
    """A node: its kind and its parts."""

    kind: str  # number, name, call, negative, sum, difference, product, quotient, indicator, group
    parts: tuple[Any, ...]

    def value(self, names: Mapping[str, Any]) -> Any:
        """The number, with `names` for symbols and for functions that the loss defines (`L'`)."""
        if self.kind == "number":
            return float(self.parts[0])
        if self.kind == "name":
            return names[self.parts[0]]
        if self.kind == "call":
            function = _FUNCTIONS.get(self.parts[0]) or names[self.parts[0]]
            return function(self.parts[1].value(names))
        values = [part.value(names) for part in self.parts]
        if self.kind == "negative":
            return -values[0]
        if self.kind == "indicator":
            return np.asarray(values[0] < values[1], dtype=float)
        if self.kind == "group":
            return values[0]
        operations: Mapping[str, Callable[[Any, Any], Any]] = {
            "sum": lambda a, b: a + b,
            "difference": lambda a, b: a - b,
            "product": lambda a, b: a * b,
            "quotient": lambda a, b: a / b,
        }
        return operations[self.kind](*values)

    def latex(self) -> str:
        """For math mode."""
        if self.kind == "quotient":
            top, bottom = (_bare(part).latex() for part in self.parts)
            return rf"\frac{{{top}}}{{{bottom}}}"
        if self.kind == "call":
            return rf"{_FUNCTION_LATEX[self.parts[0]]}\left({_bare(self.parts[1]).latex()}\right)"
        if self.kind == "group" and self.parts[0].kind == "quotient":
            return self.parts[0].latex()
        if self.kind == "indicator":
            return rf"\mathbb{{1}}[{self.parts[0].latex()} < {self.parts[1].latex()}]"
        return self._text(lambda part: part.latex(), _LATEX, " ")

    def signs(self) -> str:
        """With Greek letters, for text."""
        if self.kind == "quotient":
            top, bottom = (_bare(part).signs() for part in self.parts)
            return " / ".join(
                f"({side})" if part.kind in ("sum", "difference", "product", "group") and " " in side else side
                for part, side in zip(self.parts, (top, bottom), strict=True)
            )
        if self.kind == "call":
            return f"{_FUNCTION_SIGNS[self.parts[0]]}({_bare(self.parts[1]).signs()})"
        if self.kind == "indicator":
            return f"1[{self.parts[0].signs()} < {self.parts[1].signs()}]"
        return self._text(lambda part: part.signs(), _SIGNS, " ")

    def _text(self, write: "Callable[[Formula], str]", names: Mapping[str, str], space: str) -> str:
        if self.kind in ("number", "name"):
            return names.get(self.parts[0], self.parts[0])
        written = [write(part) for part in self.parts]
        if self.kind == "negative":
            return f"-{written[0]}"
        if self.kind == "group":
            return f"({written[0]})"
        return {"sum": " + ", "difference": " - ", "product": space}[self.kind].join(written)


def parse(text: str) -> Formula:
    """Reads a formula of the zoo."""
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"{text!r} cannot be read from {text[at:]!r} on")
        tokens.append(next(filter(None, found.groups())))
        at = found.end()
    reader = _Reader(text, tokens)
    formula = reader.sum()
    if reader.rest:
        raise ValueError(f"{text!r}: {reader.rest[0]!r} is left over")
    return formula


class _Reader:
    def __init__(self, text: str, tokens: list[str]):
        self.text, self.rest = text, tokens

    def _next(self) -> str:
        return self.rest[0] if self.rest else ""

    def _take(self, wanted: str = "") -> str:
        if not self.rest or (wanted and self.rest[0] != wanted):
            raise ValueError(f"{self.text!r}: expected {wanted or 'more'}, found {self._next() or 'its end'}")
        return self.rest.pop(0)

    def sum(self) -> Formula:
        left = self.product()
        while self._next() in ("+", "-"):
            kind = "sum" if self._take() == "+" else "difference"
            left = Formula(kind, (left, self.product()))
        return left

    def product(self) -> Formula:
        if self._next() == "-":
            self._take()
            return Formula("negative", (self.product(),))
        left = self.factor()
        while self._next() and self._next() not in ("+", "-", ")", "]", "<"):
            if self._next() in ("/", "*"):
                kind = "quotient" if self._take() == "/" else "product"
                left = Formula(kind, (left, self.factor()))
            else:
                left = Formula("product", (left, self.factor()))
        return left

    def factor(self) -> Formula:
        token = self._take()
        if token == "(":
            inside = self.sum()
            self._take(")")
            return Formula("group", (inside,))
        if token == "1" and self._next() == "[":
            self._take()
            left = self.sum()
            self._take("<")
            right = self.sum()
            self._take("]")
            return Formula("indicator", (left, right))
        if token in _FUNCTION_LATEX:
            return Formula("call", (token, self.factor()))
        if token[0].isdigit():
            return Formula("number", (token,))
        if token[0].isalpha() or token == "[.]":
            return Formula("name", (token,))
        raise ValueError(f"{self.text!r}: {token!r} begins nothing")


def _bare(formula: Formula) -> Formula:
    """Without the parentheses that a fraction or a function brings itself."""
    return formula.parts[0] if formula.kind == "group" else formula
