"""Everything that is measured on one finished run: each model loaded once, each number measured once.

STORE/cache/evaluation/KEY.json         rows of one benchmark, by what they depend on; KEY.parquet: what they sum up
STORE/runs/RUN_ID/evaluation.json       all rows of a run, and which keys they came from
STORE/runs/RUN_ID/items/KEY.parquet     every pair or document behind them
STORE/runs/RUN_ID/displaced/KEY.parquet the pairs whose chosen answers fell most, token by token
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rcray.config import RunConfig, run_id
from rcray.config.benchmarks import PREFERENCE, SAMPLES, Benchmark
from rcray.config.evaluation import EvaluationConfig
from rcray.errors import ConfigError, DataError, DegenerateRunError, ModelError, RcrayError
from rcray.evaluate.keys import benchmark_key, preference_key, samples_key
from rcray.evaluate.preference import Shifts, most_displaced, preference_rows
from rcray.files import write_atomic
from rcray.models.chain import read_chain
from rcray.records.displaced import DisplacedPair, write_displaced
from rcray.records.evaluation import (
    Measured,
    MetricRow,
    recover_evaluation,
    recover_measured,
    write_evaluation,
    write_measured,
)
from rcray.records.items import Items, write_items
from rcray.records.progress import EVALUATION, report, reporting
from rcray.records.states import State
from rcray.store import RunDir, Store

_ITEMS, _DISPLACED = ".parquet", ".displaced.parquet"  # in the cache, beside a measurement's rows


@dataclass(frozen=True)
class Measurement:
    """One thing to measure: held-out preference, samples, or a benchmark."""

    name: str
    key: str
    benchmark: Benchmark | None = None  # None: held-out preference, or samples


@dataclass(frozen=True)
class Outcome:
    """What one evaluation did."""

    run_id: str
    rows: tuple[MetricRow, ...]
    measured: tuple[str, ...]  # names measured now; the others were there already
    loads: int  # times the trained model was read
    degenerate: str | None = None  # the model as a whole: no number of it means anything


@dataclass(frozen=True)
class EvaluationStage:
    """The stage after each cell of a sweep: `stage(config, store)`."""

    settings: EvaluationConfig

    def __call__(self, config: RunConfig, store: Store) -> None:
        """Measures in this process; a cell of a worker group, whose process holds no resources, asks Ray for some.

        Raises:
            DegenerateRunError: the model gives non-finite numbers, or answers without reading.
        """
        if config.execution.workers and not self.is_done(config, store):
            from rcray.evaluate.remote import evaluate_remotely

            outcome = evaluate_remotely(config, store, self.settings)
        else:
            outcome = evaluate_run(config, store, self.settings)
        if outcome.degenerate:
            raise DegenerateRunError(outcome.degenerate)

    def is_done(self, config: RunConfig, store: Store) -> bool:
        """Whether everything asked for is in the run's own file, for the weights that are there now."""
        run = store.run(run_id(config))
        if not run.evaluation.is_file():
            return False
        have = recover_evaluation(run.evaluation).keys
        try:
            wanted = wanted_measurements(config, run, self.settings)
        except ModelError:  # an incomplete chain: measuring names the missing piece
            return False
        return all(have.get(m.name) == m.key and not _lacks_texts(m, run) for m in wanted)


def wanted_measurements(config: RunConfig, run: RunDir, settings: EvaluationConfig) -> list[Measurement]:
    """What the settings ask of a run, with the key of each. Raises ModelError for an incomplete adapter chain."""
    weights = read_chain(run.final)["key"]
    wanted = [Measurement(PREFERENCE, preference_key(config, weights))] if settings.preference else []
    if settings.samples:
        wanted.append(Measurement(SAMPLES, samples_key(config, settings, weights)))
    return wanted + [
        Measurement(benchmark.name, benchmark_key(benchmark, settings, weights), benchmark)
        for benchmark in settings.resolved()
    ]


def evaluate_run(config: RunConfig, store: Store, settings: EvaluationConfig | None = None) -> Outcome:
    """Measures what is asked for and not yet known; the rows are kept in the run's directory.

    Raises:
        ConfigError, DataError: a benchmark cannot be asked; what could be measured is kept.
        ModelError: a link of the model's chain is missing.
    """
    settings = settings or EvaluationConfig()
    run = store.run(run_id(config))
    wanted = wanted_measurements(config, run, settings)
    rows: dict[str, Sequence[MetricRow]] = {}
    fault: str | None = None
    for measurement in wanted:
        if _lacks_texts(measurement, run):
            continue
        if known := recover_measured(_cached(store, measurement.key)):
            rows[measurement.name] = known.rows
            fault = fault or known.fault
    todo = [measurement for measurement in wanted if measurement.name not in rows]
    subject = Subject(config, store, settings)
    errors: list[RcrayError] = []
    for i, measurement in enumerate(todo):
        begun = time.time()
        try:
            with reporting(run.path):
                report(EVALUATION, i, len(todo))
                measured = tuple(subject.measure(measurement))
        except (ConfigError, DataError) as error:  # of this benchmark; the model and the others are sound
            errors.append(error)
            continue
        rows[measurement.name] = measured
        fault = subject.fault or fault
        entry = Measured(measurement.name, measured, fault, time.time() - begun)
        if subject.items is not None:
            write_items(_cached(store, measurement.key).with_suffix(_ITEMS), subject.items)
        if subject.displaced:
            write_displaced(_cached(store, measurement.key).with_suffix(_DISPLACED), subject.displaced)
        write_measured(_cached(store, measurement.key), entry)
    keys = {m.name: m.key for m in wanted if m.name in rows}
    _keep_items(run, store, keys.values())
    every = keep_rows(run, keys, rows)
    if errors:
        raise errors[0]
    return Outcome(
        run.run_id,
        every,
        tuple(measurement.name for measurement in todo),
        subject.loads,
        fault,
    )


def _lacks_texts(measurement: Measurement, run: RunDir) -> bool:
    """Whether these are samples whose texts are not in the run's directory: their numbers alone show nothing."""
    return measurement.name == SAMPLES and not run.samples.is_file()


def _cached(store: Store, key: str) -> Path:
    return store.cache / "evaluation" / f"{key}.json"


def _keep_items(run: RunDir, store: Store, keys: Iterable[str]) -> None:
    """Puts what was said of each item beside the run's rows; measurements of earlier versions kept nothing."""
    for key in keys:
        for suffix, target in ((_ITEMS, run.items(key)), (_DISPLACED, run.displaced(key))):
            kept = _cached(store, key).with_suffix(suffix)
            if kept.is_file() and not target.is_file():
                write_atomic(target, kept.read_bytes())


def keep_rows(run: RunDir, keys: Mapping[str, str], rows: Mapping[str, Sequence[MetricRow]]) -> tuple[MetricRow, ...]:
    """Writes the run's own file: what was measured now, and what other settings had measured before."""
    before = recover_evaluation(run.evaluation)
    after = before.updated(keys, rows)
    if after != before:
        write_evaluation(run.evaluation, after)
    return after.rows


class Subject:
    """A trained model under measurement: loaded at the first need, and only once."""

    def __init__(self, config: RunConfig, store: Store, settings: EvaluationConfig):
        self.config, self.store, self.settings = config, store, settings
        self.run = store.run(run_id(config))
        self.loads = 0
        self.fault: str | None = None
        self.items: Items | None = None  # behind the rows of the last measurement
        self.displaced: tuple[DisplacedPair, ...] = ()  # the worst of them, token by token
        self._model: Any = None
        self._harness: Any = None

    def measure(self, measurement: Measurement) -> list[MetricRow]:
        """Rows of one measurement."""
        benchmark, self.items, self.displaced = measurement.benchmark, None, ()
        if measurement.name == SAMPLES:
            return self._samples()
        if benchmark is None:
            data, shifts = self._shifts()
            self.items = shifts.items()
            rows = preference_rows(shifts, is_reference=self.config.is_start_model)
            self.fault = next((row.reason for row in rows if row.status is State.DEGENERATE), None)
            if self.fault is None and not self.config.is_start_model:
                from rcray.evaluate.displaced import displaced_pairs

                worst = most_displaced(shifts.shift_w, self.settings.displaced)
                self.displaced = displaced_pairs(
                    self._loaded(), self._base, [data.pairs[i] for i in worst], self.device
                )
            return rows
        from rcray.evaluate.harness import run_benchmark

        harness = self._open()
        if self.fault is not None:
            return [MetricRow(benchmark.name, benchmark.metric or "score", status=State.DEGENERATE, reason=self.fault)]
        with self._precision():
            return run_benchmark(benchmark, harness, self.settings, self._take_items)

    def _take_items(self, items: Items) -> None:
        self.items = items

    def _open(self) -> Any:
        from rcray.evaluate.backends import open_transformers, open_vllm
        from rcray.evaluate.degenerate import model_fault

        if self._harness is None and self.fault is None:
            if self.settings.backend == "vllm":
                self._model = None  # the device must hold the model once
                self.loads += 1
                dtype = str(self.trained_in.compute).removeprefix("torch.")
                self._harness = open_vllm(self.run.final, self.store.cache, self.settings, dtype)
            else:
                loaded = self._loaded()
                self.fault = model_fault(loaded.model, loaded.tokenizer)
                if self.fault is None:
                    self._harness = open_transformers(loaded, self.settings)
        return self._harness

    def _loaded(self) -> Any:
        from rcray.models.trained import load_trained

        if self._model is None:
            self.loads += 1
            self._model = self._in_precision(load_trained(self.run.final, self.store.cache, device=self.device))
        return self._model

    @cached_property
    def device(self) -> Any:
        """Where it is measured: as the evaluation asks, else as the run was trained."""
        from rcray.models.device import evaluated_on

        return evaluated_on(self.config.execution.gpus_per_worker, self.settings.gpus)

    @cached_property
    def trained_in(self) -> Any:
        """What its products were computed in, and are here."""
        from rcray.models.precision import Precision

        return Precision.of(self.config, self.device, self.run.read_status().device)

    def _precision(self) -> AbstractContextManager[Any]:
        """The context for that; vLLM was told its dtype."""
        from rcray.models.capabilities import capabilities_of

        return nullcontext() if self._model is None else capabilities_of(self._model.model).precision()

    def _in_precision(self, loaded: Any) -> Any:
        """The model, to be run in the precision it was trained in, packed rows by the kernel that is best there."""
        from rcray.models.attention import read_with_attention
        from rcray.models.capabilities import use_precision

        use_precision(loaded.model, self.trained_in)
        read_with_attention(loaded.model, self.device, self.config.execution)
        return loaded

    def _samples(self) -> list[MetricRow]:
        """Both models answer the same prompts; the texts go into the run's directory."""
        from rcray.data.prepare import prepare_data
        from rcray.evaluate.degenerate import model_fault
        from rcray.evaluate.samples import answer_prompts, sample_rows, sampled_pairs, samples_of
        from rcray.models.adapters import adapters_off
        from rcray.records.samples import WAYS, write_samples

        config, cache = self.config, self.store.cache
        trained = self._loaded()
        if fault := model_fault(trained.model, trained.tokenizer):
            self.fault = fault
            return [MetricRow(SAMPLES, "flagged_trained", status=State.DEGENERATE, reason=fault)]
        pairs = sampled_pairs(prepare_data(config.data, trained.tokenizer, cache).held_out.pairs, self.settings.samples)
        half = len(WAYS) * len(pairs)
        say = partial(report, EVALUATION, total=2 * half)
        with self._precision():
            after = answer_prompts(trained.model, trained.tokenizer, pairs, self.settings, say)
        base = self._base()
        with adapters_off(base.model), self._precision():
            before = answer_prompts(base.model, base.tokenizer, pairs, self.settings, lambda done: say(half + done))
        samples = samples_of(trained.tokenizer, pairs, before, after)
        write_samples(self.run.samples, samples)
        return sample_rows(samples)

    def _base(self) -> Any:
        """What training began with: an adapter's model, to be run with it off; else the weights they came from."""
        from rcray.models.load import load_model

        if self.config.model.trains_adapters:
            return self._loaded()
        return self._in_precision(load_model(self.config.model, self.store.cache, device=self.device))

    def _shifts(self) -> tuple[Any, Shifts]:
        """The held-out pairs, and what became of them."""
        from rcray.data.prepare import prepare_data
        from rcray.models.reference import reference_logps, summed_logps

        config, cache, device = self.config, self.store.cache, self.device
        base = self._base()
        data = prepare_data(config.data, base.tokenizer, cache).held_out
        reference = reference_logps(base, data, cache, device)
        del base  # one model at a time on the device
        count = len(data.pairs)
        say = partial(report, EVALUATION, total=count)
        logps = summed_logps(self._loaded().model, data, range(count), device, say)
        return data, Shifts(
            start_w=reference.sum_w.numpy(),
            start_l=reference.sum_l.numpy(),
            trained_w=logps.sum_w.numpy(),
            trained_l=logps.sum_l.numpy(),
            n_w=reference.n_w.numpy(),
            n_l=reference.n_l.numpy(),
            rows=tuple(pair.row for pair in data.pairs),
            per_token=config.likelihood == "mean",
            beta=float(getattr(config.objective, "beta", None) or 1.0),
        )
