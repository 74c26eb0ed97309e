"""The benchmarks rcray knows by name, each declared once: title, task, how it is asked, which number of it counts.

Another one is one more entry of `BENCHMARKS`. Any other task of lm-eval, or a task file, needs none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Aggregate = Literal["single", "weighted", "unweighted"]
Suite = Literal["published", "embedded"]

#: Measured by rcray itself; rows under these names stand beside those of benchmarks.
PREFERENCE = "preference"
PREFERENCE_ACCURACY = f"{PREFERENCE}/accuracy"  # what makes a run the best unless something else is asked for
SAMPLES = "samples"  # answers of start and trained model; not a benchmark either
ALPACA_EVAL = "alpaca_eval"

#: Metrics of lm-eval's tasks that lie between 0 and 1, so that they are printed in percent and enter an average. Any
#: other (perplexities, bits per byte, BLEU, which is in percent by itself) is a plain number.
SHARES = frozenset((
    "acc", "acc_norm", "acc_bytes", "acc_mutual_info", "acc_all", "exact_match", "em", "f1", "f1_macro", "mc1", "mc2",
    "pass@1", "pass_at_1", "pct_stereotype", "prompt_level_strict_acc", "prompt_level_loose_acc",
    "inst_level_strict_acc", "inst_level_loose_acc",
))  # fmt: skip


@dataclass(frozen=True)
class Benchmark:
    """One benchmark."""

    name: str
    task: str  # of lm-eval: a registered name, or the path of a YAML file
    shots: int | None = None  # None: as the task says
    metric: str | None = None  # None: every metric the task has, a row each
    filter: str = "none"
    aggregate: Aggregate = "weighted"  # of subtasks; without any it makes no difference
    chat_template: bool = False
    suite: Suite | None = None  # one word for several benchmarks
    family: str | None = None  # folder of lm-eval's tasks that holds it; None: its whole index is needed
    title: str = ""  # as the paper prints it; empty: the name
    tiny: str = "embedded"  # what `--tiny` asks in its place: a suite or a benchmark that needs no hub

    @property
    def embedded(self) -> bool:
        """Whether the task is one of our own."""
        return self.suite == "embedded"

    @property
    def is_file(self) -> bool:
        """Whether the task is a YAML file of the user's."""
        return is_task_file(self.task)


def is_task_file(name: str) -> bool:
    """Task files are told from registered names by their ending."""
    return name.endswith((".yaml", ".yml"))


def _published(
    name: str, task: str, title: str, family: str, shots: int, metric: str, aggregate: Aggregate, filter: str = "none"
) -> Benchmark:
    """As the paper's authors ran it: no chat template anywhere."""
    return Benchmark(name, task, shots, metric, filter, aggregate, suite="published", family=family, title=title)


def _embedded(name: str, metric: str, filter: str = "none") -> Benchmark:
    """Over the synthetic language: needs no hub, and the tiny models can do it."""
    return Benchmark(name, name, 0, metric, filter, "single", chat_template=True, suite="embedded")


#: The paper's in the order of its main table.
BENCHMARKS: Mapping[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        _published("mmlu_pro", "leaderboard_mmlu_pro", "MMLU-Pro", "leaderboard", 5, "acc", "single"),
        _published("bbh", "leaderboard_bbh", "BBH", "leaderboard", 3, "acc_norm", "unweighted"),
        _published("musr", "leaderboard_musr", "MUSR", "leaderboard", 0, "acc_norm", "weighted"),
        _published("arc", "arc_challenge", "ARC", "arc", 25, "acc_norm", "single"),
        _published("math", "leaderboard_math_hard", "MATH", "leaderboard", 4, "exact_match", "unweighted"),
        _published("gsm8k", "gsm8k", "GSM8K", "gsm8k", 5, "exact_match", "single", "strict-match"),
        _embedded("rcray_choice", "acc"),
        _embedded("rcray_cloze", "exact_match", "first-word"),
    )
}


def suite(name: str) -> tuple[Benchmark, ...]:
    """The benchmarks of `published` or `embedded`; none for another word."""
    return tuple(benchmark for benchmark in BENCHMARKS.values() if benchmark.suite == name)


def benchmarks_of(name: str) -> tuple[Benchmark, ...]:
    """What a name in `evaluation.benchmarks` stands for: a suite, a known benchmark, a task, a task file."""
    if name in BENCHMARKS:
        return (BENCHMARKS[name],)
    return suite(name) or (Benchmark(Path(name).stem if is_task_file(name) else name, name),)


def is_share(metric: str) -> bool:
    """Whether a metric is a share: by its own name, without the benchmark before it or the filter behind it."""
    return metric.rpartition("/")[2].partition(",")[0].partition(".")[0] in SHARES


def benchmark_title(name: str) -> str:
    """What the paper calls a benchmark, or its own name; `name` may end on `/metric`."""
    known = BENCHMARKS.get(name.partition("/")[0])
    return (known.title if known else "") or name
