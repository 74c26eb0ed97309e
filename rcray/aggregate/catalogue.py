"""Every table of a report, in the order of the page: results, the paper's tables, ours beside published, dynamics."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rcray.aggregate.benchmark_tables import table_of_published, table_of_runs
from rcray.aggregate.collect import CellResult
from rcray.aggregate.comparison import Beside, beside_published
from rcray.aggregate.displacement import displacement_table
from rcray.aggregate.dynamics_tables import agreement_table, confusion_table, head_full_table, pathways_table
from rcray.aggregate.estimators import EstimatorPair
from rcray.aggregate.frame import is_benchmark, likelihood_unit
from rcray.aggregate.groups import Comparison
from rcray.aggregate.movement_tables import frontier_table, movement_table
from rcray.aggregate.paper import BENCHMARK_TABLES, SIX, TableSpec
from rcray.aggregate.places import DEFAULT_BETA, Places, momentum
from rcray.aggregate.results import results_table
from rcray.aggregate.runtime import runtime_of_published, runtime_of_runs
from rcray.aggregate.sample_tables import samples_table
from rcray.aggregate.tables import Table, slug
from rcray.aggregate.theory import coefficients_table, regimes_table
from rcray.aggregate.win_rates import win_rates_of_published, win_rates_of_runs
from rcray.config.benchmarks import ALPACA_EVAL
from rcray.config.models import model_title
from rcray.config.objectives import Custom


@dataclass(frozen=True)
class Chapter:
    """Tables under one heading of the page."""

    title: str
    anchor: str
    intro: str
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Catalogue:
    """All chapters, and the comparisons with the paper."""

    chapters: tuple[Chapter, ...]
    beside: tuple[Beside, ...] = ()

    @property
    def tables(self) -> list[Table]:
        """Every table."""
        return [table for chapter in self.chapters for table in chapter.tables]


def catalogue_of_runs(
    title: str, results: Sequence[CellResult], comparisons: Sequence[Comparison], pairs: Sequence[EstimatorPair]
) -> Catalogue:
    """The tables that these runs fill."""
    places = Places.of(results)
    covered = [spec for spec in BENCHMARK_TABLES if places.covers(spec)]
    specs = [*covered, *other_specs(results, places)]
    beside = [one for spec in covered if (one := beside_published(spec, places))]
    chapters = [
        _chapter("Results", "results", "Held-out preference pairs and step records.",
                 results_table(title, results, comparisons),
                 displacement_table(comparisons, likelihood_unit(result.cell.config for result in results))),
        _chapter("Benchmarks, runtime and win rates", "benchmarks",
                 "In the layout of the paper's tables; cells without a score say why.",
                 *(table_of_runs(spec, places) for spec in specs), runtime_of_runs(comparisons),
                 win_rates_of_runs(comparisons)),
        _chapter("Ours beside published", "published", "Every score that the paper prints and these runs have.",
                 *(one.table for one in beside)),
        _chapter("Band and pathways", "dynamics", "What the step records say of every cell.",
                 pathways_table(comparisons), agreement_table(comparisons), confusion_table(results),
                 head_full_table(pairs)),
        _chapter("How far, where to, for what", "movement", "What the probe set says of every cell, per token.",
                 movement_table(comparisons), frontier_table(comparisons)),
        _chapter("What it says now", "answers", "The texts stand below the figures.", samples_table(comparisons)),
        _theory(results),
    ]  # fmt: skip
    return Catalogue(tuple(chapter for chapter in chapters if chapter.tables), tuple(beside))


def catalogue_of_published() -> Catalogue:
    """The paper's own tables, from data alone."""
    intro = "Rebuilt from the numbers in the package; averages and differences are recomputed in the test suite."
    tables = (*map(table_of_published, BENCHMARK_TABLES), runtime_of_published(), win_rates_of_published())
    return Catalogue((_chapter("The paper's tables", "results", intro, *tables), _theory()))


def _chapter(title: str, anchor: str, intro: str, *tables: Table | None) -> Chapter:
    return Chapter(title, anchor, intro, tuple(table for table in tables if table))


def _theory(results: Sequence[CellResult] = ()) -> Chapter:
    """The zoo, and below it the objectives of a user's own that these runs have."""
    configs = [result.cell.config for result in results]
    own = dict.fromkeys(c.objective_title for c in configs if isinstance(c.objective, Custom))
    intro = "The formulas of the objective zoo and the regimes of the band, checked numerically by the test suite."
    return _chapter("Theory", "theory", intro, coefficients_table(own), regimes_table())


Training = tuple[str, str, str]  # model, data, objective


def other_specs(results: Sequence[CellResult], places: Places) -> list[TableSpec]:
    """The paper's layouts for trainings that none of its tables has, where benchmarks were measured.

    A table for all of them, or one for each number of epochs, so that no training goes unprinted; then ablations.
    """
    trainings = _other_trainings(results)
    benchmarks = measured_benchmarks([result for group in trainings.values() for result in group])
    if not benchmarks:
        return []
    base = replace(BENCHMARK_TABLES[0], benchmarks=benchmarks, delta=True, paper=False)
    by_epochs: dict[int, list[Training]] = {}
    unusual: set[float] = set()  # momenta of trainings that have none with the usual one
    ablations: list[TableSpec] = []
    for training, group in trainings.items():
        configs = [result.cell.config for result in group]
        epochs = tuple(sorted({config.train.epochs for config in configs}))
        betas = tuple(sorted({momentum(config) for config in configs if config.calibration.averages}))
        by_epochs.setdefault(epochs[0], []).append(training)
        unusual |= set(betas) if DEFAULT_BETA not in betas else set()
        ablations += _ablations(base, training, betas, epochs)
    title = "Evaluation results on benchmarks, other models and objectives"
    first = min(by_epochs)
    specs = [
        replace(
            base,
            name="benchmarks" if epochs_of_all == first else f"benchmarks-{epochs_of_all}-epochs",
            title=title if len(by_epochs) == 1 else f"{title}, {epochs_of_all} epochs",
            groups=tuple(dict.fromkeys((model, data) for model, data, _ in own)),
            objectives=tuple(dict.fromkeys(objective for _, _, objective in own)),
            betas=tuple(sorted(unusual)),
            epochs=(epochs_of_all,),
        )
        for epochs_of_all, own in sorted(by_epochs.items())
    ]
    return [spec for spec in (*specs, *ablations) if any(places.settings(row.place) for row in spec.rows())]


def _other_trainings(results: Sequence[CellResult]) -> dict[Training, list[CellResult]]:
    """Results that are no row of the paper's tables, by what was trained on what."""
    rows = [row.place for spec in BENCHMARK_TABLES for row in spec.rows()]
    known = {(p.model, p.data, p.objective, p.epochs, p.ema_beta or DEFAULT_BETA) for p in rows}
    other: dict[Training, list[CellResult]] = {}
    for result in results:
        config = result.cell.config
        training = (config.model.name, config.data.name, config.objective.name)
        is_known = (*training, config.train.epochs, momentum(config)) in known
        if not is_known and not config.is_start_model:  # that is a row of the others' tables
            other.setdefault(training, []).append(result)
    return other


def _ablations(
    base: TableSpec, training: Training, betas: tuple[float, ...], epochs: tuple[int, ...]
) -> list[TableSpec]:
    model, data, objective = training
    one = replace(base, groups=((model, data),), objectives=(objective,), delta=False)
    named, where = f"{model}-{objective}", f"{objective} on {model_title(model)}"
    specs = []
    if len(betas) > 1:
        title = f"Ablation of the EMA momentum, {where}"
        specs.append(replace(one, name=slug(f"ema-{named}"), title=title, axis="ema", betas=betas))
    if len(epochs) > 1:
        title = f"Ablation of training epochs, {where}"
        specs.append(replace(one, name=slug(f"epochs-{named}"), title=title, axis="epochs", epochs=epochs))
    return specs


def measured_benchmarks(results: Sequence[CellResult]) -> tuple[str, ...]:
    """Benchmarks that any finished run has: the paper's first, in its order; several metrics of one stand apart."""
    metrics: dict[str, list[str]] = {}
    for key in dict.fromkeys(key for r in results if r.ok for key in r.metrics if is_benchmark(key)):
        metrics.setdefault(key.partition("/")[0], []).append(key)
    metrics.pop(ALPACA_EVAL, None)
    ordered = [*(name for name in SIX if name in metrics), *(name for name in metrics if name not in SIX)]
    return tuple(
        key for name in ordered for key in ([name] if len(metrics[name]) == 1 or name in SIX else metrics[name])
    )
