"""Made runs with all that the page to explore shows: bands, probes, held-out pairs, tokens, samples."""

import base64
import json
import re
import zlib

import numpy as np

from rcray.config import Experiment
from rcray.evaluate.preference import Shifts, most_displaced, preference_rows
from rcray.records.displaced import AnswerTokens, DisplacedPair, write_displaced
from rcray.records.evaluation import Evaluation, write_evaluation
from rcray.records.items import write_items
from rcray.records.samples import Answer, Sample, write_samples
from rcray.store import RunDir, Store
from rcray.sweep.grid import Cell
from tests.report import runs

KEY = "made-key"
PAIRS = 64
SEEDS = (42, 43)
HOSTILE = "</script><img src=x onerror=\"document.title='broken in'\">"


def experiment(**grid) -> Experiment:
    """The quickstart with two seeds."""
    made = runs.several_seeds(runs.quickstart(), SEEDS)
    return made.model_copy(update={"grid": {**made.grid, **grid}})


def payload(page: str) -> dict:
    """What a page without a server holds."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL).group(1))


def unpacked(text: str) -> np.ndarray:
    """Numbers as the page unpacks them."""
    return np.frombuffer(base64.b64decode(text), "<f4")


def write_explored(store: Store, cell: Cell, steps: int | None = None, pairs: int = PAIRS) -> RunDir:
    """A finished run; the same cell is made alike every time."""
    run = store.run(cell.run_id)
    total = steps or cell.config.total_steps
    runs.write_status(run, cell, "ok")
    shifts = made_shifts(cell, pairs)
    write_evaluation(run.evaluation, Evaluation(tuple(preference_rows(shifts)), {"preference": KEY}))
    write_items(run.items(KEY), shifts.items())
    write_displaced(run.displaced(KEY), tuple(made_pair(shifts, i) for i in most_displaced(shifts.shift_w, 6)))
    before, after = Answer("ork eth", 2, True, 0.0), Answer(f"ork {HOSTILE}", 9, False, 0.5, ("loop",))
    write_samples(run.samples, (Sample("held-out/0", "render this", "ork", (before, before), (before, after)),))
    runs.write_dynamics(run, cell, total, 1, columns=made_records(cell, total))
    return run


def made_shifts(cell: Cell, pairs: int) -> Shifts:
    rng = np.random.default_rng([cell.config.train.seed, zlib.crc32(cell.label.encode())])
    hard = np.random.default_rng(0).normal(0, 1.0, pairs)  # the same pairs are hard for every run
    _, drift_w, drift_l = runs._outcome(cell)[:3]
    start_w, start_l = np.full(pairs, -30.0), np.full(pairs, -34.0)
    per_token = cell.config.likelihood == "mean"
    longer = np.arange(pairs) % 5 if per_token else 0  # so that sums and means put pairs into different orders
    return Shifts(
        start_w,
        start_l,
        start_w + drift_w + hard + rng.normal(0, 0.3, pairs),
        start_l + drift_l + hard + rng.normal(0, 2.0, pairs),
        np.full(pairs, 6.0) + longer,
        np.full(pairs, 7.0) + longer,
        tuple(f"held-out/{i}" for i in range(pairs)),
        per_token,
    )


def made_pair(shifts: Shifts, i: int) -> DisplacedPair:
    """Tokens whose changes add up to what the pair's item says; one of them is no markup."""

    def answer(start: float, trained: float, words: tuple[str, ...]) -> AnswerTokens:
        count = len(words)
        shares = np.arange(1, count + 1) / sum(range(1, count + 1))
        return AnswerTokens(
            words, np.full(count, start / count), np.full(count, start / count) + shares * (trained - start)
        )

    more = (" orn",) * int(shifts.n_w[i] - 6)
    chosen = ("jork", *more, " weth", " zeth", " ciln", " <b>", "<|end|>")
    rejected = ("gork", *more, " weth", " zeth", " ciln", " viln", " feth", "<|end|>")
    return DisplacedPair(
        shifts.rows[i],
        f"prompt {i} {HOSTILE}",
        answer(shifts.start_w[i], shifts.trained_w[i], chosen),
        answer(shifts.start_l[i], shifts.trained_l[i], rejected),
    )


def made_records(cell: Cell, steps: int) -> dict:
    columns = runs.moved(runs.dynamics(cell, steps))
    looks = (columns["step"] - 1) % 10 == 0
    made, own = sorted(runs.OUTCOMES), (cell.config.objective.name, cell.config.calibration.enabled)
    place = made.index(own) if own in made else zlib.crc32(repr(own).encode()) % 7
    columns["probe_kl"] = columns["probe_kl"] * (0.3 + 0.2 * place)  # each goes another distance
    for name, edge in (("true_band_lower", -0.4), ("true_band_upper", 0.4)):
        columns[name] = np.where(looks, columns["log_r_star"] + edge, np.nan)
    columns["true_band_upper"][10] = np.inf if steps > 10 else columns["true_band_upper"][-1]
    columns["loss"] = np.array(columns["loss"])
    columns["loss"][steps // 3] = 9.0  # a spike that must not be lost
    return columns
