"""Every table, figure, algorithm and ablation of the paper: how to run it here, where it appears, what differs.

`python -m rcray.aggregate.items` prints the table that stands in experiments/README.md; a test holds the two together.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rcray.aggregate.paper import BENCHMARK_TABLES, RUNTIME_MODELS, RUNTIME_OBJECTIVES, WIN_RATE_OBJECTIVES
from rcray.config.models import model_title

_PRESET = "preset `official`: see the differences below"
_PROBE = "likelihoods of the batches, as the paper draws them (likelihoods-batch-MODEL), and of a fixed probe set"


@dataclass(frozen=True)
class PaperItem:
    """One item of the paper."""

    what: str
    run: str  # a command
    where: str  # a file of the report, or of the package
    differs: str


#: By the name of a benchmark table, which is also its experiment file's.
_TABLES_DIFFER: Mapping[str, str] = {
    "main": f"{_PRESET}; two of the published rows are probably non-finite models",
    "pythia": f"{_PRESET}; one cell is printed with other numbers in the EMA table",
    "hh": _PRESET,
    "ema": f"{_PRESET}; one cell is printed with other numbers in the Pythia table",
    "epochs": f"{_PRESET}; the Baseline is a cell of 0 epochs",
}


def _sweep(name: str) -> str:
    return f"rcray sweep experiments/{name}.yaml"


def _tables() -> list[PaperItem]:
    kinds = {"rc": "Table", "ema": "Ablation", "epochs": "Ablation"}
    return [
        PaperItem(f"{kinds[s.axis]}: {s.title}", _sweep(s.name), f"tables/{s.name}.md", _TABLES_DIFFER[s.name])
        for s in BENCHMARK_TABLES
    ]


def _dynamics(model: str, name: str) -> PaperItem:
    title = f"Figures: dynamics of {model_title(model)}, entangled and disentangled objectives"
    return PaperItem(title, _sweep(name), f"figures/dynamics-{model}-*.svg", _PROBE)


def paper_items() -> tuple[PaperItem, ...]:
    """All of them: theory, figures, tables, ablations."""
    models, objectives = ", ".join(map(model_title, RUNTIME_MODELS)), len(RUNTIME_OBJECTIVES)
    pairs = " and ".join(WIN_RATE_OBJECTIVES)
    return (
        PaperItem(
            "Figure: overview of diagnosis and intervention",
            "rcray report experiments/quickstart.yaml",
            "figures/pathways-and-band-MODEL.svg",
            "a schematic there; here drawn from the numbers of the runs",
        ),
        PaperItem(
            "Table: incentive coefficients",
            "rcray report --published",
            "tables/coefficients.md; `rcray objectives`",
            "fifteen objectives; BPO is entangled as a function of the margin alone",
        ),
        PaperItem(
            "Table: band thresholds and pathways",
            "rcray report --published",
            "tables/regimes.md",
            "rho <= 0 is treated",
        ),
        PaperItem(
            "Table: notation", "rcray objectives", "rcray/records/columns.py", "every symbol with its recorded column"
        ),
        PaperItem(
            "Algorithm: reward calibration; its PyTorch implementation",
            "rcray train experiments/quickstart.yaml --set objective=dpo --set calibration.enabled=true",
            "rcray/calibration/band.py, rcray/calibration/wrap.py",
            "one backward in place of two extra gradients; the clip is centred on the current batch's r*",
        ),
        PaperItem(
            "Figure: likelihoods and margin, DPO and DIL-BCE on Mistral-7B",
            _sweep("main"),
            "figures/likelihoods-mistral-7b.svg",
            _PROBE,
        ),
        PaperItem(
            "Figure: cosine, likelihoods, bands of CPO and DIL-BCE",
            _sweep("main"),
            "figures/cosine-MODEL.svg, figures/likelihoods-MODEL.svg, figures/dynamics-MODEL-*.svg",
            _PROBE,
        ),
        _dynamics("pythia-410m", "dynamics-410m"),
        _dynamics("pythia-2.8b", "pythia"),
        _dynamics("mistral-7b", "main"),
        _dynamics("qwen2.5-7b", "main"),
        PaperItem(
            "Ablation: head-only against full scores, Mistral-7B",
            _sweep("head-vs-full"),
            "figures/head-full-*.svg",
            "without RC: the band of the objective itself; the head is the last adapter layer",
        ),
        *_tables(),
        PaperItem(
            f"Table: training duration, {objectives} objectives on {models}",
            _sweep("runtime"),
            "tables/runtime.md",
            "measured over all steps, not projected from a progress bar",
        ),
        PaperItem(
            f"Text: AlpacaEval, {pairs} with RC against without",
            "rcray alpaca-eval sweep experiments/alpaca-eval.yaml",
            "tables/alpaca-eval.md",
            "the authors' way is a mode of the judge; the length-controlled rate stands beside it",
        ),
    )


def items_markdown() -> str:
    """The table, for experiments/README.md."""
    lines = ["| the paper's | how to run it | where it appears | what differs |", "|---|---|---|---|"]
    lines += [f"| {item.what} | `{item.run}` | {item.where} | {item.differs} |" for item in paper_items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(items_markdown(), end="")
