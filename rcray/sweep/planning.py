"""`rcray plan`: the unique cells of several files, what is done, what each takes, what contradicts. Nothing runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rcray.config import Experiment, RunConfig
from rcray.config.datasets import SOURCES
from rcray.data.survey import survey
from rcray.errors import ConfigError
from rcray.records.progress import state_now
from rcray.records.states import SETTLED, State
from rcray.store import Store
from rcray.sweep.accelerators import ACCELERATORS, DEFAULT, Accelerator
from rcray.sweep.cost import (
    CPU_FLOPS,
    CPU_FLOPS_WIDE,
    Cost,
    estimate,
    inputs_key,
    longest_sequence,
    reference_hours,
    training_pairs,
)
from rcray.sweep.grid import Cell
from rcray.sweep.memory import Peak, is_measured, pretended_peak, spreads_model, train_memory
from rcray.sweep.placement import NodeKind, demand, knows_memory, places

_TOKENS = " and ".join(f"{source.tokens:g} ({source.title})" for source in SOURCES.values() if source.title)
MEASURED = (
    "Measured here: one micro-batch of each kind of cell, one cell at a time; looks, reference, probes and held-out "
    "pairs are counted, benchmarks are not. Memory is that of the process, or of a step with the longest pairs on a "
    "pretended GPU; hours of GPU cells without a GPU here are estimates."
)
_WIDE = 110  # columns


@dataclass
class PlannedCell:
    """One unique cell and the experiments it stands in."""

    cell: Cell
    status: State
    cost: Cost
    experiments: list[str] = field(default_factory=list)
    steps: int | None = None  # of the encoded data, once that was made
    by_rule: bool = False  # a GPU cell whose memory nobody measured


@dataclass(frozen=True)
class Plan:
    """All of it."""

    cells: Mapping[str, PlannedCell]
    conflicts: Sequence[str]
    later: int = 0  # points that a search will choose when it has seen the first
    measured: bool = False  # by a timed micro-batch on this machine, where the cost says so
    gpu: Accelerator = ACCELERATORS[DEFAULT]  # that GPU cells are assumed to run on

    @property
    def done(self) -> int:
        """Cells that need no more work."""
        return len(self.cells) - len(self._todo)

    @property
    def uses_gpus(self) -> bool:
        """Whether any cell is placed on GPUs."""
        return any(planned.cell.config.execution.gpus_per_worker for planned in self.cells.values())

    @property
    def _todo(self) -> list[PlannedCell]:
        return [planned for planned in self.cells.values() if planned.status not in SETTLED]

    @property
    def gpu_hours(self) -> float:
        """Estimated GPU-hours of what is not done."""
        return sum(planned.cost.gpu_hours or 0.0 for planned in self._todo)

    @property
    def reference_hours(self) -> float:
        """GPU-hours of the references that cells not done read, each counted once."""
        once: dict[str, float] = {}
        for planned in self._todo:
            key = inputs_key(planned.cell.config)
            once[key] = once.get(key) or reference_hours(planned.cell.config, self.gpu) or 0.0
        return sum(once.values())

    @property
    def cpu_hours(self) -> float:
        """Estimated hours of what is not done and needs no GPU."""
        on_cpu = (planned for planned in self._todo if not planned.cell.config.execution.gpus_per_worker)
        return sum(planned.cost.hours or 0.0 for planned in on_cpu)

    @property
    def unknown(self) -> int:
        """Cells to be done whose size cannot be told before a download."""
        return sum(planned.cost.hours is None for planned in self._todo)

    def rows(self) -> list[dict[str, Any]]:
        """For machines."""
        return [
            {
                "run_id": key,
                "label": planned.cell.label,
                "status": planned.status,
                "steps": _steps(planned),
                "pairs": training_pairs(planned.cell.config),
                "tokens": planned.cost.tokens,
                "workers": planned.cell.config.execution.workers,
                "resources": demand(planned.cell.config).text,
                "hours": planned.cost.hours,
                "gpu_hours": planned.cost.gpu_hours,
                "memory_bytes": planned.cost.train_bytes,
                "memory_by_rule": planned.by_rule,
                "experiments": planned.experiments,
            }
            for key, planned in self.cells.items()
        ]


def make_plan(
    files: Sequence[tuple[Path, Experiment, Sequence[Cell]]],
    store: Path,
    nodes: Sequence[NodeKind] | None,
    gpu: Accelerator = ACCELERATORS[DEFAULT],
) -> Plan:
    """The union of all files' cells; `nodes` are those of a cluster file, if one is given; `gpu` the card assumed."""
    cells: dict[str, PlannedCell] = {}
    conflicts = _same_names([(path, experiment.name) for path, experiment, _ in files])
    for _, experiment, expanded in files:
        for cell in expanded:
            known = cells.get(cell.run_id)
            if known is None:
                run = Store.at(store).run(cell.run_id)
                state = state_now(run.path, run.read_status().status)  # as it stands: a plan changes nothing
                by_rule = bool(cell.config.execution.gpus_per_worker) and not is_measured(cell.config)
                known = PlannedCell(cell, state, estimate(cell.config, gpu), by_rule=by_rule)
                cells[cell.run_id] = known
            elif known.cell.config.execution != cell.config.execution:
                theirs, ours = demand(known.cell.config).text, demand(cell.config).text
                conflicts.append(
                    f"{cell.label}: {known.experiments[0]} and {experiment.name} carry it out differently ({theirs} "
                    f"against {ours}, or other checkpoints); whichever runs first decides"
                )
            known.experiments.append(experiment.name)
    conflicts += [text for planned in cells.values() for text in _misfits(planned, nodes, gpu)]
    searches = [experiment.search for _, experiment, _ in files if experiment.search]
    later = sum(search.samples - len(search.points()) for search in searches)
    return Plan(cells, conflicts, later, gpu=gpu)


def measured_plan(plan: Plan, store: Store, say: Callable[[str], None]) -> Plan:
    """The plan with hours and memory from timed micro-batches: one for all cells that cost the same per pair."""
    from rcray.models.device import why_no_gpu
    from rcray.models.sources import with_cached_shape
    from rcray.sweep.measure import Measured, measure_apart, measurement_key

    measured: dict[str, Measured] = {}
    peaks: dict[str, Peak | None] = {}
    no_gpu = why_no_gpu() is not None
    for planned in plan.cells.values():
        config = planned.cell.config
        key = measurement_key(config)
        on_gpu = bool(config.execution.gpus_per_worker)
        if key not in measured and not (on_gpu and no_gpu):
            say(f"measuring a micro-batch of {planned.cell.label}")
            measured[key] = measure_apart(config, store)
        if on_gpu:
            config = with_cached_shape(config)  # of a hub id: a download tells it
            if config is not planned.cell.config:
                planned.cost = estimate(config, plan.gpu)
            memory = _pretended_memory(planned.cell.label, config, peaks, say)
            if memory is not None:
                planned.cost, planned.by_rule = replace(planned.cost, train_bytes=memory), spreads_model(config)
        if key not in measured:
            continue
        seen, cost = measured[key], planned.cost
        hours = seen.hours(config)
        gpus = config.execution.gpus_per_worker * max(1, config.execution.workers)
        planned.steps = config.train.steps(seen.pairs)
        # A card is timed; what it held is that of typical pairs, and the longest must find room, where that is known.
        held = cost.train_bytes if on_gpu and cost.train_bytes is not None else seen.peak_bytes
        planned.cost = replace(cost, hours=hours, gpu_hours=hours * gpus, train_bytes=held)
    return replace(plan, measured=True)


def _pretended_memory(
    label: str, config: RunConfig, peaks: dict[str, Peak | None], say: Callable[[str], None]
) -> float | None:
    """What a cell's own step holds on a pretended GPU, with its longest pairs; None where that cannot be made."""
    from rcray.sweep.measure import measurement_key

    shape = config.model.shape
    if shape is None:
        return None
    key = f"{measurement_key(config)} {config.objective.model_dump_json()}"
    if key not in peaks:
        say(f"making a step of {label} on a pretended GPU")
        try:
            peaks[key] = pretended_peak(config)
        except ConfigError as error:
            say(f"{error.message}; its estimate stays")
            peaks[key] = None
    peak = peaks[key]
    return None if peak is None else train_memory(config, shape, longest_sequence(config), peak)


def _same_names(named: Sequence[tuple[Path, str]]) -> list[str]:
    seen: dict[str, Path] = {}
    conflicts = []
    for path, name in named:
        other = seen.setdefault(name, path)
        if other.resolve() != path.resolve():
            conflicts.append(
                f"{other} and {path} are both named {name!r}: their ledgers and reports share one directory"
            )
    return conflicts


def _misfits(planned: PlannedCell, nodes: Sequence[NodeKind] | None, gpu: Accelerator) -> list[str]:
    config, misfits = planned.cell.config, []
    needed = planned.cost.train_bytes or 0.0
    room = gpu.memory * min(1.0, config.execution.gpus_per_worker)
    if config.execution.gpus_per_worker and needed > room:
        misfits.append(
            f"{planned.cell.label}: about {needed / 1e9:.0f} GB on a worker, its share of a {gpu.name} has "
            f"{room / 1e9:.0f} GB"
        )
    if nodes is not None and not places(demand(config, with_memory=knows_memory(nodes)), nodes):
        misfits.append(f"{planned.cell.label}: needs {demand(config).text}; no node type of the cluster file has room")
    return misfits


def _steps(planned: PlannedCell) -> int | None:
    if planned.steps is not None:
        return planned.steps
    pairs = training_pairs(planned.cell.config)
    return None if pairs is None else planned.cell.config.train.steps(pairs)


def plan_table(plan: Plan, width: int) -> Any:
    """A rich table of the plan; a narrow terminal goes without run ids, which `--json` has."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    wide = width >= _WIDE
    for name in ("cell", "status", "steps", "takes", "GB", "place", *(["run"] if wide else []), "in"):
        right = name in ("steps", "takes", "GB")
        table.add_column(name, justify="right" if right else "left", no_wrap=name not in ("cell", "in"))
    for key, planned in plan.cells.items():
        cost, execution = planned.cost, planned.cell.config.execution
        steps = _steps(planned)
        gpu, workers = execution.gpus_per_worker, max(1, execution.workers)
        each = f"{gpu:g} GPU" if gpu else f"{execution.cpus_per_worker:g} CPU"
        table.add_row(
            Text(planned.cell.label),
            planned.status,
            "?" if steps is None else f"{steps:,}",
            _takes(cost, on_gpu=bool(gpu)),
            "?" if cost.train_bytes is None else f"{'~' * planned.by_rule}{cost.train_bytes / 1e9:.1f}",
            each if workers == 1 else f"{workers} x {each}",
            *([key] if wide else []),
            ", ".join(planned.experiments),
        )
    return table


def _takes(cost: Cost, *, on_gpu: bool) -> str:
    if cost.hours is None or cost.gpu_hours is None:
        return "?"
    return f"{cost.gpu_hours:.1f} GPU-h" if on_gpu else _hours(cost.hours)


def _hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min" if hours >= 1 / 60 else f"{3600 * hours:.0f} s"


def summary(plan: Plan) -> str:
    """The last lines: totals, what is unknown, the assumptions."""
    todo = len(plan.cells) - plan.done
    takes = [f"{plan.gpu_hours:,.0f} GPU-hours"] if plan.uses_gpus else []
    takes += [f"{_hours(plan.cpu_hours)} of CPU cells"] if plan.cpu_hours or not takes else []
    lines = [
        f"{len(plan.cells)} unique cells, {plan.done} done; about {' and '.join(takes)} for the {todo} that are not"
    ]
    if plan.unknown:
        lines.append(f"{plan.unknown} cells are not counted: their size is known after a download")
    if plan.later:
        lines.append(f"{plan.later} more points are chosen when the first have shown what they are worth")
    lines += [text for text in dict.fromkeys(map(_local_text, plan.cells.values())) if text]
    if plan.reference_hours:
        lines.append(f"about {plan.reference_hours:,.1f} GPU-hours for reference likelihoods, computed once and shared")
    if ruled := sum(planned.by_rule for planned in plan.cells.values()):
        lines.append(
            f"~ memory of {ruled} cells is by rule, and may be far off: `rcray plan --measure` makes their step"
        )
    return "\n".join([*lines, MEASURED if plan.measured else assumptions(plan.gpu if plan.uses_gpus else None)])


def assumptions(gpu: Accelerator | None) -> str:
    """What the estimates rest on; None: no cell takes a GPU."""
    if gpu is None:
        return (
            f"Estimates assume {CPU_FLOPS_WIDE / 1e9:g} GFLOP/s of a core ({CPU_FLOPS / 1e9:g} if narrow), one cell "
            "at a time, and memory by rule (rcray/sweep/cost.py, memory.py). Held-out pairs are counted, looks and "
            "benchmarks are not; `rcray plan --measure` times a micro-batch on this machine."
        )
    return (
        f"Estimates assume a {gpu.name} ({gpu.flops / 1e12:g} TFLOP/s in 16 bits, {gpu.utilisation:.0%} of it used, "
        f"{gpu.memory / 1e9:g} GB; --gpu names another), {_TOKENS} tokens a sequence; rcray/sweep/cost.py has all of "
        "them. Held-out pairs are counted, looks and benchmarks are not. Memory is one worker's, on its device, with "
        "the longest pairs: measured on the real shapes of the presets, by rule where marked ~ (rcray/sweep/memory.py)."
    )


def held_out_notes(cells: Sequence[Cell]) -> list[str]:
    """A line for every local file that gives fewer held-out pairs than a cell asks for."""
    notes = []
    for cell in cells:
        data = cell.config.data
        local = survey(data, cell.config.model)
        if local is not None and local.held_out < data.eval_pairs:
            notes.append(
                f"{data.name}: data.eval_pairs {data.eval_pairs}: {local.held_out} of {local.rows} rows are held out, "
                "a tenth at the most; give an eval_split for more"
            )
    return list(dict.fromkeys(notes))


def _local_text(planned: PlannedCell) -> str:
    """What was seen in a local file: rows, what is held out of them, their lengths."""
    data = planned.cell.config.data
    local = survey(data, planned.cell.config.model)
    if local is None:
        return ""
    said = f"{data.name}: {local.rows:,} rows, {local.train:,} to train on, {local.held_out:,} held out"
    if local.held_out < data.eval_pairs:
        said += f" (eval_pairs {data.eval_pairs} asks for more than a tenth)"
    how = "" if local.counted else ", by a rule of thumb"
    return f"{said}; {local.tokens:.0f} tokens a sequence, at most {local.longest}{how}"
