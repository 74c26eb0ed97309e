"""What every section of a configuration has in common."""

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Section(BaseModel):
    """A frozen section that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _a_number_is_not_a_switch(cls, value: Any, info: ValidationInfo) -> Any:
        # Python counts true as 1, so `batch_size: true` and `beta: yes` would train something nobody asked for.
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation in (int, float):
            raise ValueError(f"{str(value).lower()} is not a number")
        return value
