"""What the classes of the zoo have in common, and the one for a user's own objective."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from rcray.config.section import Section

Family = Literal["entangled", "disentangled", "custom"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Formula:
    """An incentive as it is printed; the tests evaluate the text, and derive the LaTeX from it."""

    text: str
    latex: str  # for math mode


@dataclass(frozen=True)
class Traits:
    """What the rest of the program must know about an objective before running it."""

    title: str
    family: Family
    needs_reference: bool
    loss: str
    source: str
    d_w: Formula | None = None  # without one, tables have a dash
    d_l: Formula | None = None
    where: str = ""  # what the symbols of both formulas stand for, beside those of the legend
    precision: float = 1e-12  # to which the tests hold both formulas, relative
    token_level: bool = False
    needs_reference_distribution: bool = False
    separates: bool = False  # a sum of one term per side: takes unpaired rows, too
    caveats: str = ""


class ObjectiveParams(Section):
    """Base of the hyperparameter classes; `name` is the discriminator."""

    traits: ClassVar[Traits]
    name: str


class Custom(ObjectiveParams):
    """A user's own objective, named by its import path `package.module:function`."""

    name: str
    params: dict[str, Any] = Field(default_factory=dict, description="keyword arguments given to the function")
    needs_reference: bool = Field(True, description="whether the function reads ref_w and ref_l")
    traits = Traits(
        title="custom",
        family="custom",
        needs_reference=True,
        loss="user code",
        source="import path",
    )

    @field_validator("name")
    @classmethod
    def _is_import_path(cls, name: str) -> str:
        module, _, function = name.partition(":")
        if not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
            raise ValueError(f"{name!r} is not an import path; an objective of your own is 'package.module:function'")
        return name

    @field_validator("params")
    @classmethod
    def _are_plain_data(cls, params: dict[str, Any]) -> dict[str, Any]:
        try:  # they are part of the run's identity, which is JSON: a nan there would become null
            json.dumps(params, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"only finite numbers, words, lists and mappings have an identity: {error}") from None
        return params
