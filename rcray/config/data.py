"""Which preference pairs a run sees."""

from typing import Literal

from pydantic import Field, model_validator

from rcray.config.section import Section


class DataConfig(Section):
    """Which preference pairs, and how long they may be."""

    name: Literal["synthetic"] = Field("synthetic", description="where the pairs come from")
    difficulty: Literal["easy", "medium", "hard"] = Field(
        "medium", description="synthetic: how many words of the rejected answer are wrong"
    )
    train_pairs: int = Field(1600, ge=1)
    eval_pairs: int = Field(128, ge=2, description="held-out pairs for the preference metrics and the probe")
    seed: int = Field(0, ge=0, description="seed of the generator; not the training seed")
    max_length: int = Field(1024, ge=8, description="tokens of prompt and response together")
    max_prompt_length: int = Field(512, ge=4, description="the prompt keeps its end")

    @model_validator(mode="after")
    def _prompt_leaves_room(self) -> "DataConfig":
        if self.max_prompt_length >= self.max_length:
            raise ValueError(
                f"max_prompt_length {self.max_prompt_length} leaves no room for a response in "
                f"max_length {self.max_length}"
            )
        return self
