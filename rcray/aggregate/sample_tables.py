"""Samples on the page: what start and trained models said, side by side, and in numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rcray.aggregate.collect import CellResult
from rcray.aggregate.groups import Comparison, settings_table
from rcray.aggregate.tables import Column, Table
from rcray.config.benchmarks import SAMPLES
from rcray.errors import StoreError
from rcray.records.samples import Sample, read_samples

SHOWN_RUNS = 60  # runs whose texts stand in the page; the others have their files


@dataclass(frozen=True)
class RunSamples:
    """The samples of one run, as the page shows them."""

    run_id: str
    label: str
    samples: tuple[Sample, ...]
    flagged: int  # answers of the trained model


def samples_table(comparisons: Sequence[Comparison]) -> Table | None:
    """Length, repetition and flagged answers of both models; None where no run was asked for samples."""
    columns = tuple(
        Column(f"{name}_{side}", f"{title}, {side}{unit}", help, metric=f"{SAMPLES}/{name}_{side}", digits=1,
               percent=bool(unit), spread=True)
        for name, title, unit, help in (
            ("tokens", "Tokens", "", "mean length of an answer"),
            ("repetition", "Repetition", " (%)", "share of an answer's runs of three tokens that stood in it before"),
            ("flagged", "Flagged", " (%)", "answers that are empty, garbled, a loop, or in another language"),
        )
        for side in ("start", "trained")
    )  # fmt: skip
    finished = [result for c in comparisons for setting in c.settings for result in setting.finished]
    if not any(column.metric in result.metrics for result in finished for column in columns):
        return None
    note = (
        "Every prompt is answered greedily and by one draw at temperature 1, by the start model and by the trained "
        "one. Flagged: no word in it, broken characters, one passage again and again, another script or language than "
        "that of the chosen answer."
    )
    return settings_table("samples", "Answers to held-out prompts, before and after", note, comparisons, columns)


def samples_of_runs(results: Iterable[CellResult]) -> list[RunSamples]:
    """The texts of the first finished runs that have some; a file that cannot be read has none."""
    shown: list[RunSamples] = []
    for result in results:
        if len(shown) == SHOWN_RUNS:
            break
        try:
            samples = read_samples(result.run.samples) if result.ok else ()
        except StoreError:
            continue
        if samples:
            flagged = sum(bool(answer.flags) for sample in samples for answer in sample.trained)
            shown.append(RunSamples(result.cell.run_id, result.cell.label, samples, flagged))
    return shown
