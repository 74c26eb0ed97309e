"""The printed formulas of the zoo, read: a text of `rcray.config.objectives` becomes a number and LaTeX.

Names side by side multiply, `σ′` is the sigmoid's derivative, `1[m < γ]` an indicator; `[·]` and `L′(R)` stand for what
the loss defines. `check` compares both incentives of an objective with autograd on its loss.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rcray.aggregate.theory import POINTS
from rcray.calibration import incentives
from rcray.config.objectives import ObjectiveParams
from rcray.objectives import PairLogps, build_objective

_TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|\[·\]|\|y_[wl]\||[^\W\d_]+\u0303?(?:_[a-z]+)?′?|[-+*/()\[\]<])")
_LATEX = {
    "β": r"\beta", "λ": r"\lambda", "γ": r"\gamma", "α": r"\alpha", "λ_w": r"\lambda_w", "λ_l": r"\lambda_l",
    "m\u0303": r"\tilde m", "z\u0303_w": r"\tilde z_w", "z\u0303_l": r"\tilde z_l", "m_norm": r"m_{\mathrm{norm}}",
    "[·]": r"[\,\cdot\,]", "ε": r"\varepsilon",
}  # fmt: skip
_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "σ": lambda x: 1 / (1 + np.exp(-x)),
    "σ′": lambda x: np.exp(-x) / (1 + np.exp(-x)) ** 2,
    "exp": np.exp,
    "log": np.log,
}
_FUNCTION_LATEX = {"σ": r"\sigma", "σ′": r"\sigma'", "exp": r"\exp", "log": r"\log", "L′": "L'", "φ′": r"\varphi'"}


@dataclass(frozen=True)
class Node:
    """Of a formula: its kind and its parts."""

    kind: str  # number, name, call, negative, sum, difference, product, quotient, indicator, group
    parts: tuple[Any, ...]

    def value(self, names: Mapping[str, Any]) -> Any:
        """The number, with `names` for symbols and for functions that the loss defines (`L′`)."""
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
        if self.kind in ("number", "name"):
            return _LATEX.get(self.parts[0], self.parts[0])
        written = [part.latex() for part in self.parts]
        if self.kind == "negative":
            return f"-{written[0]}"
        if self.kind == "group":
            return f"({written[0]})"
        return {"sum": " + ", "difference": " - ", "product": " "}[self.kind].join(written)


def parse(text: str) -> Node:
    """Reads a formula of the zoo."""
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"{text!r} cannot be read from {text[at:]!r} on")
        tokens.append(match.group(1))
        at = match.end()
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

    def sum(self) -> Node:
        left = self.product()
        while self._next() in ("+", "-"):
            kind = "sum" if self._take() == "+" else "difference"
            left = Node(kind, (left, self.product()))
        return left

    def product(self) -> Node:
        if self._next() == "-":
            self._take()
            return Node("negative", (self.product(),))
        left = self.factor()
        while self._next() and self._next() not in ("+", "-", ")", "]", "<"):
            if self._next() in ("/", "*"):
                kind = "quotient" if self._take() == "/" else "product"
                left = Node(kind, (left, self.factor()))
            else:
                left = Node("product", (left, self.factor()))
        return left

    def factor(self) -> Node:
        token = self._take()
        if token == "(":
            inside = self.sum()
            self._take(")")
            return Node("group", (inside,))
        if token == "1" and self._next() == "[":
            self._take()
            left = self.sum()
            self._take("<")
            right = self.sum()
            self._take("]")
            return Node("indicator", (left, right))
        if token in _FUNCTION_LATEX:
            return Node("call", (token, self.factor()))
        if token[0].isdigit():
            return Node("number", (token,))
        if token[0].isalpha() or token == "[·]" or token[0] == "|":
            return Node("name", (token,))
        raise ValueError(f"{self.text!r}: {token!r} begins nothing")


def _bare(node: Node) -> Node:
    """Without the parentheses that a fraction or a function brings itself."""
    return node.parts[0] if node.kind == "group" else node


@dataclass(frozen=True)
class Checked:
    """What the numerical check of one objective gave."""

    error: float  # largest difference between formula and autograd, relative to the largest incentive
    equal: bool  # d_w = d_l at every point


def check(params: ObjectiveParams) -> Checked:
    """The printed formulas against autograd on the objective's own loss."""
    objective = build_objective(params)
    pairs = _points()
    measured = incentives(objective, pairs)
    names = _names(params, pairs, lambda shifted: objective.loss(shifted).numpy())
    errors = []
    for formula, side in ((params.traits.d_w, measured.d_w), (params.traits.d_l, measured.d_l)):
        expected = np.broadcast_to(parse(formula.text).value(names), side.shape)
        scale = max(float(np.abs(expected).max()), 1e-300)
        errors.append(float(np.abs(expected - side.numpy()).max()) / scale)
    return Checked(max(errors), bool(np.abs((measured.d_w - measured.d_l).numpy()).max() <= 1e-12))


def _points() -> PairLogps:
    """Pairs whose normalised likelihoods stay inside every objective's plain region."""
    random = np.random.default_rng(0)

    def uniform(low: float, high: float) -> Any:
        return torch.from_numpy(random.uniform(low, high, POINTS))

    ref_w, ref_l = uniform(-60, -20), uniform(-60, -20)
    n_w, n_l = (torch.from_numpy(random.integers(5, 40, POINTS).astype(float)) for _ in range(2))
    z_w, z_l = ref_w + uniform(-2, 0.4), ref_l + uniform(-2, 0.4)
    return PairLogps(z_w, z_l, n_w, n_l, ref_w, ref_l, constants={"kl_w": uniform(0, 2)})


def _names(params: ObjectiveParams, pairs: PairLogps, loss: Any) -> Mapping[str, Any]:
    given = {name: getattr(params, name, None) for name in ("beta", "lam", "gamma", "alpha", "lam_w", "lam_l", "tau")}
    beta = given["beta"] or 1.0
    arrays = {name: getattr(pairs, name).numpy() for name in ("z_w", "z_l", "n_w", "n_l", "m", "mt", "zt_w", "zt_l")}
    ratio = np.exp(-beta * arrays["mt"])

    def bregman_slope(at: np.ndarray) -> np.ndarray:
        """L'(R) by central differences: the margin is moved so that R is what is asked for."""
        step = 1e-6

        def value(wanted: np.ndarray) -> np.ndarray:
            return np.asarray(loss(replace(pairs, z_w=pairs.z_w + torch.from_numpy(np.log(ratio / wanted) / beta))))

        return (value(at * (1 + step)) - value(at * (1 - step))) / (2 * step * at)

    return {
        "β": beta,
        "λ": given["lam"],
        "γ": given["gamma"],
        "α": given["alpha"],
        "λ_w": given["lam_w"],
        "λ_l": given["lam_l"],
        "t": 1 / (2 * given["tau"]) if given["tau"] else None,
        "m": arrays["m"],
        "m\u0303": arrays["mt"],
        "z\u0303_w": arrays["zt_w"],
        "z\u0303_l": arrays["zt_l"],
        "|y_w|": arrays["n_w"],
        "|y_l|": arrays["n_l"],
        "m_norm": beta * (arrays["z_w"] / arrays["n_w"] - arrays["z_l"] / arrays["n_l"]),
        "K": 0.0,
        "R": ratio,
        "L′": bregman_slope,
        "[·]": arrays["mt"] + (given["alpha"] or 0.0) * pairs.constants["kl_w"].numpy(),
        **_own_names(params, arrays, loss, pairs),
    }


def _own_names(params: Any, arrays: Mapping[str, np.ndarray], loss: Any, pairs: PairLogps) -> Mapping[str, Any]:
    """What the traits' `where` defines, written a second time."""
    zt_w, zt_l, mt = arrays["zt_w"], arrays["zt_l"], arrays["mt"]
    mean_w, mean_l = arrays["z_w"] / arrays["n_w"], arrays["z_l"] / arrays["n_l"]
    p_w, p_l = np.exp(mean_w), np.exp(mean_l)

    def slope_in_margin(at: np.ndarray) -> np.ndarray:
        """L'(u) by central differences in u = β m\u0303."""

        def value(wanted: np.ndarray) -> np.ndarray:
            return np.asarray(loss(replace(pairs, z_w=pairs.z_w + torch.from_numpy(wanted / params.beta - mt))))

        return (value(at + 1e-6) - value(at - 1e-6)) / 2e-6

    match params.name:
        case "dpop":
            return {"u": params.beta * (mt - params.lam * np.maximum(0, -zt_w))}
        case "dpo-shift":
            return {"f": params.shift, "u": params.beta * (zt_w - params.shift * zt_l)}
        case "cal-dpo" | "sppo-hard":
            return {"t": 1 / (2 * params.beta)}
        case "alphapo":
            rewards = (p_l**-params.alpha - p_w**-params.alpha) / params.alpha
            return {"z_w": arrays["z_w"], "z_l": arrays["z_l"], "u": params.beta * rewards - params.gamma}
        case "orpo":
            return {"p_w": p_w, "p_l": p_l, "g": np.log(p_w / (1 - p_w)) - np.log(p_l / (1 - p_l))}
        case "bdpo":
            return {"u": params.beta * (zt_w - np.log(params.lam * np.exp(zt_l) + 1 - params.lam))}
        case "balanced-po":
            return {"u": params.beta * np.minimum(zt_w, -params.alpha * zt_l)}
        case "robust" | "cdpo":
            return {"ε": params.label_smoothing}
        case "exo":
            return {"t": np.log((1 - params.label_smoothing) / params.label_smoothing)}
        case "f-dpo":
            phi = np.log(_FUNCTIONS["σ"](zt_w)) - np.log(_FUNCTIONS["σ"](zt_l))
            return {"u": params.beta * phi, "φ′": lambda ratio: _FUNCTIONS["σ"](-ratio)}
        case "discopop":
            return {"L′": slope_in_margin}
    return {}
