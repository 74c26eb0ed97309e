"""The paper's tables as declarations: which rows, columns, order, labels and rounding each of them has.

A row names the training it stands for by content (model, data, objective, RC, epochs, EMA momentum), so any
experiment file that contains that training fills it. The same layouts serve other models: `rows` follows what a
declaration lists.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from rcray.aggregate.published import BASELINE, Place
from rcray.config.benchmarks import suite
from rcray.config.models import model_title

Group = tuple[str, str]  # model, data

#: What the paper calls them; others go by their own names.
OBJECTIVE_TITLES = {
    "dpo": "DPO", "simpo": "SimPO", "cpo": "CPO", "dil-bce": "BCE", "ddro": "DDRO", "dil-lsif": "LSIF",
    "ti-dpo": "TI-DPO", "ipo": "IPO", "dil-ukl": "UKL",
}  # fmt: skip
DIGITS = 2  # of every score

SIX = tuple(benchmark.name for benchmark in suite("published"))
FOUR = SIX[:4]  # without the two that are generated


@dataclass(frozen=True)
class RowSpec:
    """One row: its labels, its training, and the row its difference is taken against."""

    group: str
    labels: tuple[str, ...]
    place: Place
    against: Place | None = None


@dataclass(frozen=True)
class TableSpec:
    """One benchmark table."""

    name: str
    title: str
    axis: Literal["rc", "ema", "epochs"]
    groups: tuple[Group, ...]
    objectives: tuple[str, ...]
    benchmarks: tuple[str, ...]
    delta: bool = False  # a column for the average's difference with RC
    betas: tuple[float, ...] = ()
    epochs: tuple[int, ...] = (1,)
    paper: bool = True  # one of the paper's own, with published numbers
    published_notes: tuple[str, ...] = ("stderr",)  # of PUBLISHED_NOTES, under the published numbers

    @property
    def heads(self) -> tuple[str, ...]:
        """Titles of the label columns."""
        return {"rc": ("Method", "RC"), "ema": ("EMA",), "epochs": ("Method", "Epoch")}[self.axis]

    def start_rows(self) -> dict[str, RowSpec]:
        """The start model of each group; the ablation of epochs has it among its own rows."""
        if self.axis == "epochs":
            return {}
        labels = ("Baseline", *[""] * (len(self.heads) - 1))
        titles = {pair: group_title(*pair, [known for known, _ in self.groups]) for pair in self.groups}
        return {
            title: RowSpec(title, labels, Place(*pair, BASELINE, rc=False, epochs=0)) for pair, title in titles.items()
        }

    def rows(self) -> list[RowSpec]:
        """Every row, in the paper's order."""
        return [row for model, data in self.groups for objective in self.objectives for row in
                self._rows(Place(model, data, objective, rc=False, epochs=self.epochs[0]))]  # fmt: skip

    def _rows(self, without: Place) -> Iterator[RowSpec]:
        group = group_title(without.model, without.data, [model for model, _ in self.groups])
        if self.axis == "rc":
            name = objective_title(without.objective)
            yield RowSpec(group, (name, "w/o"), without)
            yield RowSpec(group, (name, "w/"), _with_rc(without), without)
            for beta in self.betas:  # other momenta than the usual one
                yield RowSpec(group, (name, f"w/ (ema_beta={beta:g})"), _with_rc(without, ema_beta=beta), without)
        elif self.axis == "ema":
            yield RowSpec(group, ("w/o RC",), without)
            for beta in self.betas:
                yield RowSpec(group, (f"{beta:g}",), _with_rc(without, ema_beta=beta), without)
        else:
            yield RowSpec(group, ("Baseline", ""), replace(without, objective=BASELINE, epochs=0))
            plain = [replace(without, epochs=epochs) for epochs in self.epochs]
            yield from (RowSpec(group, ("w/o RC", str(place.epochs)), place) for place in plain)
            yield from (RowSpec(group, ("w/ RC", str(place.epochs)), _with_rc(place), place) for place in plain)


def _with_rc(place: Place, ema_beta: float | None = None) -> Place:
    return replace(place, rc=True, ema_beta=ema_beta)


def objective_title(name: str) -> str:
    """The paper's short name, or the zoo's, or the function's."""
    from rcray.config.objectives import BY_NAME

    if name in OBJECTIVE_TITLES:
        return OBJECTIVE_TITLES[name]
    return BY_NAME[name].traits.title if name in BY_NAME else name.rpartition(":")[2]


def group_title(model: str, data: str, models: list[str]) -> str:
    """The model; with its data where the same model stands in the table twice."""
    return f"{model_title(model)}, {data}" if models.count(model) > 1 else model_title(model)


MAIN_OBJECTIVES = ("dpo", "simpo", "cpo", "dil-bce", "ddro", "dil-lsif", "ti-dpo")

BENCHMARK_TABLES: tuple[TableSpec, ...] = (
    TableSpec("main", "Evaluation results on benchmarks across models and objectives", "rc",
              groups=(("mistral-7b", "ultrafeedback"), ("qwen2.5-7b", "ultrafeedback")),
              objectives=MAIN_OBJECTIVES, benchmarks=SIX, delta=True, published_notes=("stderr", "degenerate")),
    TableSpec("pythia", "Evaluation results on benchmarks across objectives using Pythia-2.8B", "rc",
              groups=(("pythia-2.8b", "ultrafeedback"),),
              objectives=(*MAIN_OBJECTIVES, "ipo", "dil-ukl"), benchmarks=FOUR, delta=True),
    TableSpec("hh", "Evaluation results on Anthropic-HH, Mistral-7B", "rc",
              groups=(("mistral-7b", "hh"),), objectives=("dpo", "dil-bce"), benchmarks=SIX),
    TableSpec("ema", "Ablation of the EMA momentum used in RC, DPO on Pythia-2.8B", "ema",
              groups=(("pythia-2.8b", "ultrafeedback"),), objectives=("dpo",), benchmarks=FOUR,
              betas=(0.5, 0.9, 0.95, 0.98, 0.999)),
    TableSpec("epochs", "Ablation of training epochs, DPO on Mistral-7B", "epochs",
              groups=(("mistral-7b", "ultrafeedback"),), objectives=("dpo",),
              benchmarks=("arc", "bbh", "musr", "math", "gsm8k", "mmlu_pro"), epochs=(1, 2),
              published_notes=("stderr", "degenerate")),
)  # fmt: skip

#: The runtime table: models as blocks of four rows, objectives as columns.
RUNTIME_MODELS = ("mistral-7b", "pythia-2.8b", "pythia-410m")
RUNTIME_OBJECTIVES = ("dil-bce", "cpo", "ddro", "dpo", "ipo", "dil-lsif", "simpo", "dil-ukl")

#: What a reader of the published numbers should know.
PUBLISHED_NOTES = {
    "stderr": (
        "The published standard errors mix two definitions, even in one table: pooled over documents (BBH near 0.6, "
        "MUSR near 1.7, MATH near 0.4) and the mean of the subtasks' errors (BBH near 2.8, MUSR near 2.9, MATH near "
        "3.0)."
    ),
    "degenerate": (
        "Mistral-7B, DPO and DDRO without RC: MMLU-Pro 11.66, BBH 29.12 and ARC 22.70 ± 1.22 agree to the digit, and "
        "22.70 ± 1.22 is what the harness gives a model whose logits are not finite (the first choice always wins). "
        "Inferred from the figures: these two rows are probably degenerate models, and their differences no effect of "
        "RC."
    ),
    "runtime": (
        "Published: projected from a progress bar, differences and percentages from unrounded times, so some differ by "
        "one minute or a few tenths of a percent from what the printed times give."
    ),
}
