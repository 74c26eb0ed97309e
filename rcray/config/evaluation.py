"""What is measured on a finished run: held-out preference, benchmarks through lm-eval, AlpacaEval.

None of it is part of a run's identity: the same trained model may be measured in many ways.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from rcray.config.alpaca_eval import AlpacaEvalConfig
from rcray.config.section import Section
from rcray.errors import ConfigError

Aggregate = Literal["single", "weighted", "unweighted"]


@dataclass(frozen=True)
class Benchmark:
    """One benchmark: which lm-eval task, how it is asked, and which number of it counts."""

    name: str
    task: str  # a registered name, or the path of a YAML file
    title: str = ""
    shots: int | None = None  # None: as the task says
    metric: str | None = None  # None: every metric the task has, a row each
    filter: str = "none"
    aggregate: Aggregate = "weighted"  # of subtasks; without any it makes no difference
    chat_template: bool = False
    family: str | None = None  # folder of lm-eval's tasks that holds it; None: its whole index is needed
    embedded: bool = False

    @property
    def is_file(self) -> bool:
        """Whether the task is a YAML file of the user's."""
        return is_task_file(self.task)


def is_task_file(name: str) -> bool:
    """Task files are told from registered names by their ending."""
    return name.endswith((".yaml", ".yml"))


#: The benchmarks of the paper's tables, as its authors ran them: no chat template anywhere.
PUBLISHED: tuple[Benchmark, ...] = (
    Benchmark("mmlu_pro", "leaderboard_mmlu_pro", "MMLU-Pro", 5, "acc", aggregate="single", family="leaderboard"),
    Benchmark("bbh", "leaderboard_bbh", "BBH", 3, "acc_norm", aggregate="unweighted", family="leaderboard"),
    Benchmark("musr", "leaderboard_musr", "MuSR", 0, "acc_norm", aggregate="weighted", family="leaderboard"),
    Benchmark("math", "leaderboard_math_hard", "MATH", 4, "exact_match", aggregate="unweighted", family="leaderboard"),
    Benchmark("arc", "arc_challenge", "ARC", 25, "acc_norm", aggregate="single", family="arc"),
    Benchmark("gsm8k", "gsm8k", "GSM8K", 5, "exact_match", "strict-match", aggregate="single", family="gsm8k"),
)
#: Two tasks over the synthetic language, which need no hub and which the tiny models can do.
EMBEDDED: tuple[Benchmark, ...] = (
    Benchmark(
        "rcray_choice", "rcray_choice", "Choice", 0, "acc", aggregate="single", chat_template=True, embedded=True
    ),
    Benchmark(
        "rcray_cloze",
        "rcray_cloze",
        "Cloze",
        0,
        "exact_match",
        "first-word",
        aggregate="single",
        chat_template=True,
        embedded=True,
    ),
)
BY_NAME: Mapping[str, Benchmark] = {benchmark.name: benchmark for benchmark in (*PUBLISHED, *EMBEDDED)}
#: One word for several benchmarks.
SUITES: Mapping[str, tuple[Benchmark, ...]] = {"published": PUBLISHED, "embedded": EMBEDDED}


class EvaluationConfig(Section):
    """The `evaluation:` section of an experiment."""

    preference: bool = Field(True, description="metrics on held-out pairs")
    benchmarks: tuple[str, ...] = Field(
        (), description="published, embedded, names of benchmarks, any lm-eval task, or paths of task files"
    )
    limit: int | None = Field(None, ge=1, description="documents per task, for a first look; null: all of them")
    shots: int | None = Field(None, ge=0, description="examples in the prompt; null: as the benchmark is defined")
    chat_template: bool | None = Field(None, description="null: as the benchmark is defined; published: never")
    data_dir: str | None = Field(None, description="directory with dataset folders OWNER/NAME, read instead of the hub")
    backend: Literal["hf", "vllm"] = Field("hf", description="what runs the model; vllm where it is installed")
    batch_size: int | None = Field(None, ge=1, description="sequences per forward; null: sized to model and device")
    cpus: float = Field(1.0, gt=0, description="CPUs of one evaluation's Ray task")
    gpus: float | None = Field(None, ge=0, description="GPUs of it; null: as one worker of the run had")
    alpaca_eval: AlpacaEvalConfig | None = Field(None, description="answers compared by a judge; see `rcray arena`")

    @field_validator("benchmarks", mode="before")
    @classmethod
    def _one_may_stand_alone(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    @field_validator("benchmarks")
    @classmethod
    def _names_are_told_apart(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        seen: dict[str, str] = {}
        for given in names:
            if not given.strip():
                raise ValueError("an empty name; give a benchmark, an lm-eval task or the path of a task file")
            for benchmark in _benchmarks_of(given):
                if benchmark.name in seen:
                    raise ValueError(f"{benchmark.name!r} is asked for twice ({seen[benchmark.name]!r} and {given!r})")
                seen[benchmark.name] = given
        return names

    def resolved(self) -> tuple[Benchmark, ...]:
        """Every benchmark asked for, with `shots` and `chat_template` of this section where they are given."""
        found = [benchmark for name in self.benchmarks for benchmark in _benchmarks_of(name)]
        if self.shots is not None:
            found = [replace(benchmark, shots=self.shots) for benchmark in found]
        if self.chat_template is not None:
            found = [replace(benchmark, chat_template=self.chat_template) for benchmark in found]
        return tuple(found)

    def beside(self, folder: Path) -> "EvaluationConfig":
        """The same with relative paths taken from the experiment file's folder."""

        def placed(name: str) -> str:
            return str((folder / Path(name).expanduser()).resolve())

        changes: dict[str, Any] = {
            "benchmarks": tuple(placed(name) if is_task_file(name) else name for name in self.benchmarks)
        }
        if self.data_dir is not None:
            changes["data_dir"] = placed(self.data_dir)
        if self.alpaca_eval is not None:
            changes["alpaca_eval"] = self.alpaca_eval.beside(folder)
        return self.model_copy(update=changes)


def _benchmarks_of(name: str) -> tuple[Benchmark, ...]:
    if name in SUITES:
        return SUITES[name]
    if name in BY_NAME:
        return (BY_NAME[name],)
    return (Benchmark(Path(name).stem if is_task_file(name) else name, name),)


def settings_from(section: EvaluationConfig | None, given: Mapping[str, Any], folder: Path) -> EvaluationConfig:
    """A section with options of the command line on top; their relative paths start at `folder`."""
    options = {name: value for name, value in given.items() if value is not None}
    try:
        placed = EvaluationConfig.model_validate(options).beside(folder)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise ConfigError(
            f"--{str(problem['loc'][0]).replace('_', '-')}: {problem['msg'].removeprefix('Value error, ')}"
        ) from None
    return (section or EvaluationConfig()).model_copy(update={name: getattr(placed, name) for name in options})
