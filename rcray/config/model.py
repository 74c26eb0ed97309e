"""Which model a run starts from."""

from typing import Literal

from pydantic import Field

from rcray.config.section import Section


class ModelConfig(Section):
    """Which weights to start from. Weights are read from safetensors only."""

    name: str = Field("tiny-neox", min_length=1, description="embedded tiny model, hub id, or local directory")
    revision: str | None = Field(None, description="hub revision; pin it for a run you want to repeat")
    dtype: Literal["float32", "bfloat16"] = "float32"
    trust_remote_code: bool = Field(False, description="run code that ships with the model; off unless asked")
