"""`rcray plan --measure`: one timed micro-batch of a cell on this machine, and what the whole cell takes by it.

The cell's own step is made on its own data, from the model as it starts: once to warm up, then timed. An objective
without a reference stands in, since the reference is a pass of its own; what is forwarded without a gradient (the
reference, the probes, the evaluation) is timed on the same pairs. Nothing is trained and no run is touched; the model
and the encoded data are cached in the store, as a sweep would.
"""

import tempfile
import time
from dataclasses import dataclass

import psutil

from rcray.config import RunConfig, content_key
from rcray.data.survey import survey
from rcray.store import Store

_STAND_IN = "cpo"  # one forward, one backward, no reference


@dataclass(frozen=True)
class Measured:
    """What was seen."""

    pair_seconds: float  # a pair's share of a step
    forward_seconds: float  # a pair without a gradient
    start_seconds: float  # until the first step: reading the model, finding its data
    pairs: int  # usable ones to train on
    held_out: int
    peak_bytes: float  # of the process, or of its GPU

    def hours(self, config: RunConfig, *, evaluated: bool = True) -> float:
        """The whole cell: steps, reference, probes, and the held-out pairs before and after."""
        train = config.train
        steps = train.epochs * (self.pairs // train.batch_size)
        looks = 1 + -(-steps // train.probe_every)
        forwards = looks * min(train.probe_pairs, self.held_out)
        if config.needs_reference and not config.objective.traits.token_level:
            forwards += self.pairs
        forwards += 2 * self.held_out if evaluated else 0
        seconds = steps * train.batch_size * self.pair_seconds + forwards * self.forward_seconds
        return (self.start_seconds + seconds) / 3600


def measurement_key(config: RunConfig) -> str:
    """Cells with equal keys cost the same per pair: one measurement serves them all."""
    content = config.model_dump(mode="json", include={"model", "data", "likelihood", "execution"})
    train = config.train.model_dump(mode="json", exclude={"seed", "epochs", "learning_rate"})
    return content_key([content, train, config.calibration.scores, config.calibration.record_full])


def measure(config: RunConfig, store: Store) -> Measured:
    """Times one micro-batch of the cell, in this process and on its threads or its GPU."""
    import torch

    from rcray.data.batch import collate
    from rcray.models.inference import pair_sums
    from rcray.train.loop import Job, prepare
    from rcray.train.step import optimizer_step

    content = config.model_dump(mode="json")
    size = config.train.micro_batch_size
    content["objective"] = {"name": _STAND_IN}
    content["train"] |= {"batch_size": size}
    content["execution"] |= {"workers": 0, "parallel": "ddp"}
    stand_in = RunConfig.model_validate(content)
    with tempfile.TemporaryDirectory() as folder:
        aside = Store.open(folder)  # a step leaves no trace in the store, but for what every cell would cache
        store.cache.mkdir(parents=True, exist_ok=True)
        aside.cache.symlink_to(store.cache)
        begun = time.perf_counter()
        training = prepare(Job(stand_in, aside, "measured", "measured"), 0, 1)
        started = time.perf_counter() - begun
        training.state.policy.model.train()
        rows = _typical(training.data.lengths, size)
        batch = collate(training.data.pairs, rows)
        timed = []
        for step in (1, 2):
            begun = time.perf_counter()
            optimizer_step(training.state, [batch], step)
            _wait(torch)
            timed.append(time.perf_counter() - begun)
        policy = training.state.policy
        begun = time.perf_counter()
        pair_sums(policy.model, training.data.pairs, training.data.lengths, rows, policy.device)
        _wait(torch)
        forward = time.perf_counter() - begun
        local = survey(config.data, config.model)
        pairs, held_out = len(training.data.pairs), local.held_out if local else config.data.eval_pairs
    on_gpu = policy.device.type == "cuda"
    peak = float(torch.cuda.max_memory_allocated(policy.device)) if on_gpu else _peak_bytes()
    return Measured(timed[-1] / size, forward / size, started, pairs, held_out, peak)


def _typical(lengths: object, size: int) -> list[int]:
    """Pairs around the mean length, the longest of a step among them: what a step costs on average."""
    import numpy as np

    order = np.argsort(np.asarray(lengths) @ (1, 1, 1), kind="stable")
    places = np.linspace(0, len(order) - 1, num=min(size, len(order)) + 2)[1:-1]
    return [int(order[int(place)]) for place in places]


def _wait(torch: object) -> None:
    cuda = torch.cuda  # type: ignore[attr-defined]
    if cuda.is_available():
        cuda.synchronize()


def _peak_bytes() -> float:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0  # KiB on Linux
    return max(peak, float(psutil.Process().memory_info().rss))
