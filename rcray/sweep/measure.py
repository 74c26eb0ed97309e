"""`rcray plan --measure`: one timed micro-batch of a cell on this machine, and what the whole cell takes by it.

The cell's own step is made on its own data, from the model as it starts: once to warm up, then timed, then with a look
at fresh pairs. An objective without a reference stands in, since the reference is a pass of its own; what is forwarded
without a gradient (the reference, the probes, the evaluation) is timed on one forward's worth of pairs. Nothing is
trained and no run is touched; the model and the encoded data are cached in the store, as a sweep would.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import psutil

from rcray.config import RunConfig, content_key
from rcray.data.survey import survey
from rcray.store import Store

Clock = Callable[[], float]  # seconds
_MOMENT, _MOST_CALLS = 0.3, 10  # seconds, calls
_STAND_IN = "cpo"  # one forward, one backward, no reference
_STAND_IN_UNPAIRED = "kto"  # of labelled answers none does without a reference


@dataclass(frozen=True)
class Measured:
    """What was seen."""

    pair_seconds: float  # a pair's share of a step
    look_seconds: float  # what a look adds to its step: its own pairs, and as many of the step with their sides apart
    forward_seconds: float  # a pair without a gradient
    start_seconds: float  # until the first step: reading the model, finding its data
    pairs: int  # usable ones to train on
    fresh: int  # those of the looks, whose likelihoods at the start are known where there is a reference
    held_out: int
    misplaced: int  # pairs that a probe reads beside its own
    peak_bytes: float  # of the process, or of its GPU

    def hours(self, config: RunConfig) -> float:
        """The whole cell: steps and looks, reference, probes, and the held-out pairs before and after."""
        train = config.train
        steps = train.steps(self.pairs)
        looks = self.looks(config)
        probes = 1 + -(-steps // train.probe_every)
        # The first is read before training begins; all of them ask for answers that belong to nothing, too.
        forwards = (probes - 1) * min(train.probe_pairs, self.held_out) + probes * self.misplaced
        forwards += 2 * self.held_out + (self.pairs if config.caches_reference else self.fresh)
        in_steps = steps * train.batch_size * self.pair_seconds + looks * self.look_seconds
        seconds = in_steps + forwards * self.forward_seconds
        return (self.start_seconds + seconds) / 3600

    def looks(self, config: RunConfig) -> int:
        """How many the run takes."""
        if not config.calibration.look_every:
            return 0
        from rcray.data.schedule import LookSchedule, Schedule

        train, calibration = config.train, config.calibration
        schedule = Schedule(self.pairs, train.batch_size, train.micro_batch_size, train.epochs, train.seed)
        plan = LookSchedule(schedule, calibration.look_every, calibration.look_pairs)
        return sum(plan.rows(step) is not None for step in range(schedule.total_steps))


def measurement_key(config: RunConfig) -> str:
    """Cells with equal keys cost the same per pair: one measurement serves them all."""
    content = config.model_dump(mode="json", include={"model", "data", "likelihood", "execution"})
    train = config.train.model_dump(mode="json", exclude={"seed", "epochs", "learning_rate"})
    of_a_step = {"scores", "record_full", "look_every", "look_pairs"}
    return content_key([content, train, config.calibration.model_dump(mode="json", include=of_a_step)])


def measure(config: RunConfig, store: Store, clock: Clock = time.perf_counter) -> Measured:
    """Times one micro-batch of the cell, in this process and on its threads or its GPU.

    `clock`: `time.process_time` leaves the neighbours on a busy machine out, where nothing waits for a GPU.
    """
    import torch

    from rcray.data.batch import collate
    from rcray.data.prepare import prepare_data
    from rcray.models.inference import budget, pair_sums
    from rcray.models.load import tokenizer_of
    from rcray.models.sources import locate
    from rcray.train.loop import Job, prepare
    from rcray.train.step import optimizer_step

    content = config.model_dump(mode="json")
    size = config.train.micro_batch_size
    unpaired = config.data.format == "unpaired"
    content["objective"] = {"name": _STAND_IN_UNPAIRED if unpaired else _STAND_IN}
    content["train"] |= {"batch_size": size}
    content["execution"] |= {"workers": 0, "parallel": "ddp"}
    stand_in = RunConfig.model_validate(content)
    with tempfile.TemporaryDirectory() as folder:
        aside = Store.open(folder)  # a step leaves no trace in the store, but for what every cell would cache
        store.cache.mkdir(parents=True, exist_ok=True)
        aside.cache.symlink_to(store.cache)
        origin = locate(stand_in.model, aside.cache)  # what is made once for all cells is nobody's time
        prepare_data(stand_in.data, tokenizer_of(origin), aside.cache)
        begun = clock()
        training = prepare(Job(stand_in, aside, "measured", "measured"), 0, 1)
        started = clock() - begun
        training.state.policy.model.train()
        rows = _typical(training.data.lengths, size)
        batch = collate(training.data.pairs, rows)
        fresh = training.fresh
        on_gpu = training.state.policy.device.type == "cuda"
        wait: Callable[[], object] = torch.cuda.synchronize if on_gpu else lambda: None  # a CPU is not waited for

        def step(micro_batches: int, *, watched: bool) -> float:
            look = fresh.at(0) if watched and fresh else None
            return _timed(wait, clock, lambda: optimizer_step(training.state, [batch] * micro_batches, 1, look))

        step(1, watched=True)  # warms up
        shown = -(-min(config.calibration.look_pairs, config.train.batch_size) // size)  # micro-batches
        plain, watched = step(1, watched=False), step(shown, watched=True)
        data, policy = training.data, training.state.policy
        room = budget(policy.model, policy.device) / (data.lengths @ (2, 1, 1)).mean()
        many = _typical(data.lengths, max(size, int(room)))
        forward = _timed(wait, clock, lambda: pair_sums(policy.model, data.pairs, data.lengths, many, policy.device))
        forward /= len(many)
        local = survey(config.data, config.model)
        pairs, held_out = len(data.pairs), local.held_out if local else config.data.eval_pairs
        looked_at = len(fresh.start) if fresh else 0
        read = pairs if unpaired else looked_at  # without a reference, the looks' pairs alone
        started = max(started - read * forward, 0.0)
    peak = float(torch.cuda.max_memory_allocated(policy.device)) if on_gpu else _peak_bytes()
    return Measured(
        pair_seconds=plain / size,
        look_seconds=max(watched - shown * plain, 0.0),
        forward_seconds=forward,
        start_seconds=started,
        pairs=pairs,
        fresh=looked_at,
        held_out=held_out,
        misplaced=len(training.probe.misplaced.pairs),
        peak_bytes=peak,
    )


def measure_apart(config: RunConfig, store: Store, clock: Clock = time.perf_counter) -> Measured:
    """The same in a process of its own, as a cell has one: its memory is nobody else's."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, config, store, clock).result()


def _typical(lengths: object, size: int) -> list[int]:
    """Pairs spread evenly over all lengths: what they cost is what pairs cost on average."""
    import numpy as np

    order = np.argsort(np.asarray(lengths) @ (1, 1, 1), kind="stable")
    count = min(size, len(order))
    return [int(order[int((place + 0.5) * len(order) / count)]) for place in range(count)]


def _timed(wait: Callable[[], object], clock: Clock, what: Callable[[], object]) -> float:
    """Seconds of one call, `wait` included; what takes but a moment is made several times."""
    begun, calls = clock(), 0
    while calls == 0 or (clock() - begun < _MOMENT and calls < _MOST_CALLS):
        what()
        wait()
        calls += 1
    return (clock() - begun) / calls


def _peak_bytes() -> float:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0  # KiB on Linux
    return max(peak, float(psutil.Process().memory_info().rss))
