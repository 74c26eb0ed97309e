"""AlpacaEval: instructions, answers, and a judge that compares them in pairs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from rcray.config.section import Section

Order = Literal["both", "second", "random"]
Vote = Literal["logprobs", "text"]


@dataclass(frozen=True)
class JudgingMode:
    """Who stands where, how a verdict is read, and what a failed one counts."""

    orders: Order
    vote: Vote
    failures: Literal["exclude", "half"]


#: both_orders: ours. alpaca_eval_2: Dubois et al. 2024 (one call in random order, log-probabilities, length control).
#: published: what the paper's authors ran (one call, the candidate always second, no length control).
MODES: Mapping[str, JudgingMode] = {
    "both_orders": JudgingMode("both", "logprobs", "exclude"),
    "alpaca_eval_2": JudgingMode("random", "logprobs", "exclude"),
    "published": JudgingMode("second", "text", "half"),
}


class JudgeConfig(Section):
    """A judge behind an OpenAI-compatible endpoint. Its key is read from the environment and written nowhere."""

    base_url: str = Field("https://api.deepseek.com/v1", description="what stands before /chat/completions")
    model: str = Field("deepseek-chat", min_length=1, description="the judge, as its endpoint calls it")
    key_env: str | None = Field("DEEPSEEK_API_KEY", description="variable that holds the key; null: no key")
    mode: Literal["both_orders", "alpaca_eval_2", "published"] = Field(
        "both_orders", description="both orders; one in random order; as the paper's authors ran it"
    )
    vote: Vote | None = Field(None, description="null: as the mode says; text where no log-probabilities are given")
    concurrency: int = Field(8, ge=1, le=256, description="calls at once")
    timeout: float = Field(60.0, gt=0, description="seconds a call may take")
    retries: int = Field(6, ge=0, description="after a refusal for load, a server's error or silence")
    price_in: float | None = Field(None, ge=0, description="per million tokens read, for the cost estimate")
    price_out: float | None = Field(None, ge=0, description="per million tokens written")
    max_cost: float | None = Field(None, ge=0, description="refuse to start above this estimate")

    @field_validator("base_url")
    @classmethod
    def _is_an_endpoint(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")) or "@" in url:
            raise ValueError(f"{url!r} is not an endpoint; give http(s)://host/v1, and the key in the environment")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _a_limit_needs_prices(self) -> "JudgeConfig":
        if self.max_cost is not None and (self.price_in is None or self.price_out is None):
            raise ValueError("max_cost needs price_in and price_out, per million tokens")
        return self

    @property
    def judging(self) -> JudgingMode:
        """The mode, with the vote given here."""
        mode = MODES[self.mode]
        return mode if self.vote is None else replace(mode, vote=self.vote)


class GenerationConfig(Section):
    """How answers to instructions are written."""

    max_new_tokens: int = Field(1024, ge=1, description="of an answer, at most")
    temperature: float = Field(0.0, ge=0, description="0: greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="share of the probability that is drawn from")
    seed: int = Field(0, ge=0, description="of the draws")
    batch_size: int = Field(8, ge=1, description="instructions answered at once")


class AlpacaEvalConfig(Section):
    """Answers to a file of instructions, compared in pairs by a judge."""

    instructions: str = Field(description="JSON or JSONL with a field `instruction`, such as AlpacaEval's 805")
    reference: str | None = Field(None, description="outputs file to compare with; null: the same objective without RC")
    limit: int | None = Field(None, ge=1, description="instructions, for a first look")
    generation: GenerationConfig = Field(default_factory=GenerationConfig)
    judge: JudgeConfig = Field(default_factory=JudgeConfig)

    def beside(self, folder: Path) -> "AlpacaEvalConfig":
        """The same with relative paths taken from the experiment file's folder."""
        files = {name: getattr(self, name) for name in ("instructions", "reference")}
        placed = {name: str((folder / Path(file).expanduser()).resolve()) for name, file in files.items() if file}
        return self.model_copy(update=placed)
