"""The zoo: every objective's hyperparameters, traits and printed formulas, as data: no torch here.

The loss functions stand in `rcray.objectives` and are registered against these classes, so a name, a default or a
trait is written once and the command line can print the zoo without importing torch.

Legend: z_w, z_l log-likelihoods; z̃ = z - z_ref; m = z_w - z_l; m̃ = z̃_w - z̃_l; σ = sigmoid; β, λ, γ, α = beta, lam,
gamma, alpha; |y_w|, |y_l| = response tokens; d_w = -∂L/∂z_w, d_l = ∂L/∂z_l.
"""

import functools
import operator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Discriminator, Tag

from rcray.config.objectives.base import Custom, Formula, NonNegative, ObjectiveParams, Positive, Traits
from rcray.config.objectives.cures import AlphaPo, BalancedPo, BDpo, CalDpo, DpoP, DpoShift, Orpo, Rpo
from rcray.config.objectives.margin import Bpo, Cpo, Dpo, Ipo, RDpo, Rrhf, SimPo, SlicHf
from rcray.config.objectives.ratio import Ddro, DilBce, DilLsif, DilUkl, Kto
from rcray.config.objectives.token import TDpo, TiDpo
from rcray.config.objectives.trl import ApoDown, Bco, CDpo, DiscoPop, Exo, FDpo, Hinge, Nca, Robust, SppoHard

__all__ = [
    "BUILT_IN", "BY_NAME", "AlphaPo", "AnyObjective", "ApoDown", "BDpo", "BalancedPo", "Bco", "Bpo", "CDpo",
    "CalDpo", "Cpo", "Custom", "Ddro", "DilBce", "DilLsif", "DilUkl", "DiscoPop", "Dpo", "DpoP", "DpoShift", "Exo",
    "FDpo", "Formula", "Hinge", "Ipo", "Kto", "Nca", "NonNegative", "ObjectiveParams", "Orpo", "Positive", "RDpo",
    "Robust", "Rpo", "Rrhf", "SimPo", "SlicHf", "SppoHard", "TDpo", "TiDpo", "Traits", "objective_tag",
]  # fmt: skip

BUILT_IN: tuple[type[ObjectiveParams], ...] = (
    Dpo, Ipo, RDpo, SimPo, Cpo, Rrhf, SlicHf, TDpo, TiDpo, Bpo, Kto, Ddro, DilBce, DilUkl, DilLsif,
    DpoP, DpoShift, CalDpo, Rpo, AlphaPo, Orpo, BDpo, BalancedPo,
    Hinge, Robust, CDpo, Exo, DiscoPop, FDpo, SppoHard, Nca, Bco, ApoDown,
)  # fmt: skip
BY_NAME: dict[str, type[ObjectiveParams]] = {cls.model_fields["name"].default: cls for cls in BUILT_IN}


def objective_tag(value: Any) -> str:
    """The union's discriminator: an import path (with a colon) is the user's own objective."""
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return "custom" if isinstance(name, str) and ":" in name else str(name)


if TYPE_CHECKING:
    AnyObjective = ObjectiveParams
else:
    _tagged = [Annotated[cls, Tag(name)] for name, cls in BY_NAME.items()]
    AnyObjective = Annotated[
        functools.reduce(operator.or_, [*_tagged, Annotated[Custom, Tag("custom")]]),
        Discriminator(objective_tag),
    ]
