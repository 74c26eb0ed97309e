"""What every section of a configuration has in common."""

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Section(BaseModel):
    """A frozen section that refuses unknown fields."""

    # No setting means anything at infinity, and a nan would pass every comparison.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _a_number_is_not_a_switch(cls, value: Any, info: ValidationInfo) -> Any:
        # Python counts true as 1, so `batch_size: true` and `beta: yes` would train something nobody asked for.
        annotation = cls.model_fields[str(info.field_name)].annotation
        taken = {annotation, *get_args(annotation)}
        if isinstance(value, bool) and taken & {int, float} and bool not in taken:
            raise ValueError(f"{str(value).lower()} is not a number")
        return value
