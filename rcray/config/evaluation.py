"""The section `evaluation:`: held-out preference, benchmarks through lm-eval, AlpacaEval of a finished run.

None of it is part of a run's identity: the same trained model may be measured in many ways.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from rcray.config.alpaca_eval import AlpacaEvalConfig
from rcray.config.benchmarks import Benchmark, benchmarks_of, is_task_file
from rcray.config.section import Section
from rcray.errors import ConfigError


class EvaluationConfig(Section):
    """The `evaluation:` section of an experiment."""

    preference: bool = Field(True, description="metrics on held-out pairs")
    benchmarks: tuple[str, ...] = Field(
        (), description="published, embedded, names of benchmarks, any lm-eval task, or paths of task files"
    )
    samples: int = Field(
        0, ge=0, le=256, description="held-out prompts that start and trained model answer, greedily and by one draw"
    )
    sample_tokens: int = Field(128, ge=1, description="tokens of such an answer at most")
    displaced: int = Field(
        12, ge=0, le=256, description="held-out pairs kept token by token: those whose chosen answers fell most"
    )
    limit: int | None = Field(None, ge=1, description="documents per task, for a first look; null: all of them")
    shots: int | None = Field(None, ge=0, description="examples in the prompt; null: as the benchmark is defined")
    chat_template: bool | None = Field(None, description="null: as the benchmark is defined; published: never")
    data_dir: str | None = Field(None, description="directory with dataset folders OWNER/NAME, read instead of the hub")
    backend: Literal["hf", "vllm"] = Field("hf", description="what runs the model; vllm where it is installed")
    batch_size: int | None = Field(None, ge=1, description="sequences per forward; null: sized to model and device")
    cpus: float = Field(1.0, gt=0, description="CPUs of one evaluation's Ray task")
    gpus: float | None = Field(None, ge=0, description="GPUs of it; null: as one worker of the run had")
    alpaca_eval: AlpacaEvalConfig | None = Field(
        None, description="answers compared by a judge; see `rcray alpaca-eval`"
    )

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
            for benchmark in benchmarks_of(given):
                if benchmark.name in seen:
                    raise ValueError(f"{benchmark.name!r} is asked for twice ({seen[benchmark.name]!r} and {given!r})")
                seen[benchmark.name] = given
        return names

    def resolved(self) -> tuple[Benchmark, ...]:
        """Every benchmark asked for, with `shots` and `chat_template` of this section where they are given."""
        given = {"shots": self.shots, "chat_template": self.chat_template}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return tuple(replace(benchmark, **changes) for name in self.benchmarks for benchmark in benchmarks_of(name))

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
