"""Every objective's hyperparameters and traits, as data: no torch here.

The loss functions stand in `rcray.objectives` and are registered against these classes, so a name, a
default or a trait is written once and the command line can print the zoo without importing torch.

Legend: z_w, z_l log-likelihoods; z~ = z - z_ref; m = z_w - z_l; m~ = z~_w - z~_l; s = sigmoid;
b, lam, g, a = beta, lambda, gamma, alpha; n_w, n_l = response tokens; d_w = -dL/dz_w, d_l = dL/dz_l.
"""

import functools
import json
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from rcray.config.section import Section

Family = Literal["entangled", "disentangled", "custom"]


@dataclass(frozen=True)
class Traits:
    """What the rest of the program must know about an objective before running it."""

    title: str
    family: Family
    needs_reference: bool
    loss: str
    d_w: str
    d_l: str
    source: str
    token_level: bool = False
    needs_reference_distribution: bool = False
    caveats: str = ""


class ObjectiveParams(Section):
    """Base of the hyperparameter classes; `name` is the discriminator."""

    traits: ClassVar[Traits]
    name: str


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Dpo(ObjectiveParams):
    """Direct preference optimization."""

    name: Literal["dpo"] = "dpo"
    beta: Positive = Field(0.1, description="inverse temperature b of the implicit reward")
    traits = Traits(
        title="DPO",
        family="entangled",
        needs_reference=True,
        loss="-log s(b m~)",
        d_w="b s(-b m~)",
        d_l="b s(-b m~)",
        source="Rafailov et al. 2023, arXiv:2305.18290",
    )


class Ipo(ObjectiveParams):
    """Identity preference optimization: a squared distance to a target margin."""

    name: Literal["ipo"] = "ipo"
    tau: Positive = Field(0.1, description="the target margin is t = 1 / (2 tau)")
    traits = Traits(
        title="IPO",
        family="entangled",
        needs_reference=True,
        loss="(m~ - t)^2, t = 1/(2 tau)",
        d_w="2 (t - m~)",
        d_l="2 (t - m~)",
        source="Azar et al. 2024, arXiv:2310.12036",
        caveats="past the target both incentives turn negative together: the update is reversed",
    )


class RDpo(ObjectiveParams):
    """DPO with a length-difference correction in the margin."""

    name: Literal["r-dpo"] = "r-dpo"
    beta: Positive = Field(0.1, description="inverse temperature b of the implicit reward")
    alpha: NonNegative = Field(0.01, description="weight a of the length difference n_w - n_l")
    traits = Traits(
        title="R-DPO",
        family="entangled",
        needs_reference=True,
        loss="-log s(b m~ + a (n_w - n_l))",
        d_w="b s(-b m~ - a (n_w - n_l))",
        d_l="b s(-b m~ - a (n_w - n_l))",
        source="Park et al. 2024, arXiv:2403.19159",
    )


class SimPo(ObjectiveParams):
    """Length-normalised margin with a target, no reference."""

    name: Literal["simpo"] = "simpo"
    beta: Positive = Field(2.0, description="scale b of the length-normalised likelihood")
    gamma: NonNegative = Field(1.0, description="target margin g")
    traits = Traits(
        title="SimPO",
        family="entangled",
        needs_reference=False,
        loss="-log s(b z_w/n_w - b z_l/n_l - g)",
        d_w="(b/n_w) s(g - m_norm)",
        d_l="(b/n_l) s(g - m_norm)",
        source="Meng et al. 2024, arXiv:2405.14734",
        caveats="under `likelihood: mean` z is already divided by n and is not divided again",
    )


class Cpo(ObjectiveParams):
    """Contrastive preference optimization: a margin loss plus a chosen-only likelihood term."""

    name: Literal["cpo"] = "cpo"
    beta: Positive = Field(0.1, description="inverse temperature b of the margin")
    lam: NonNegative = Field(1.0, description="weight lambda of the chosen-only likelihood term")
    traits = Traits(
        title="CPO",
        family="entangled",
        needs_reference=False,
        loss="-log s(b m) - lam z_w",
        d_w="b s(-b m) + lam",
        d_l="b s(-b m)",
        source="Xu et al. 2024, arXiv:2401.08417",
    )


class Rrhf(ObjectiveParams):
    """Rank responses: a hinge at zero margin plus a chosen-only likelihood term."""

    name: Literal["rrhf"] = "rrhf"
    lam: NonNegative = Field(1.0, description="weight lambda of the chosen-only likelihood term")
    traits = Traits(
        title="RRHF",
        family="entangled",
        needs_reference=False,
        loss="max(0, -m) - lam z_w",
        d_w="1[m<0] + lam",
        d_l="1[m<0]",
        source="Yuan et al. 2023, arXiv:2304.05302",
        caveats="an inactive hinge has d_l = 0: nothing to balance, calibration leaves it alone",
    )


class SlicHf(ObjectiveParams):
    """Sequence likelihood calibration: a hinge at margin g plus a chosen-only likelihood term."""

    name: Literal["slic-hf"] = "slic-hf"
    gamma: NonNegative = Field(1.0, description="hinge margin g")
    lam: NonNegative = Field(0.1, description="weight lambda of the chosen-only likelihood term")
    traits = Traits(
        title="SLiC-HF",
        family="entangled",
        needs_reference=False,
        loss="max(0, g - m) - lam z_w",
        d_w="1[m<g] + lam",
        d_l="1[m<g]",
        source="Zhao et al. 2023, arXiv:2305.10425",
        caveats="an inactive hinge has d_l = 0: nothing to balance, calibration leaves it alone",
    )


class TDpo(ObjectiveParams):
    """Token-level DPO: sequential KL to the reference joins the branch statistics."""

    name: Literal["tdpo"] = "tdpo"
    variant: Literal[1, 2] = Field(2, description="1: KL with gradient on both sides; 2: a * KL on the loser")
    beta: Positive = Field(0.1, description="inverse temperature b of the implicit reward")
    alpha: NonNegative = Field(0.5, description="weight a of the sequential KL (variant 2 only)")
    traits = Traits(
        title="TDPO",
        family="entangled",
        needs_reference=True,
        token_level=True,
        needs_reference_distribution=True,
        loss="-log s(b [m~ - a (D_l - sg D_w)]), D = sum_t KL(ref || policy)",
        d_w="b s(-b [.])",
        d_l="b s(-b [.])",
        source="Zeng et al. 2024, arXiv:2404.11999",
        caveats="needs the reference's next-token distribution: the scalar reference cache is not enough",
    )


class TiDpo(ObjectiveParams):
    """Token-importance DPO: importance-weighted token log-probabilities."""

    name: Literal["ti-dpo"] = "ti-dpo"
    beta: Positive = Field(0.1, description="inverse temperature b of the implicit reward")
    importance: Literal["probability", "gradient"] = Field(
        "probability",
        description="probability: 1 - p(y_t), the authors' proxy; gradient: |d top logit / d embedding| and prior",
    )
    lam: float = Field(0.7, ge=0, le=1, description="share of the gradient importance against the prior")
    triplet: bool = Field(False, description="add the triplet term (needs a sampled anchor response)")
    gamma: NonNegative = Field(0.1, description="weight g of the triplet term")
    margin: NonNegative = Field(1.0, description="margin of the triplet term")
    traits = Traits(
        title="TI-DPO",
        family="entangled",
        needs_reference=True,
        token_level=True,
        loss="-log s(b m~) on importance-weighted z (+ g triplet)",
        d_w="b s(-b m~)",
        d_l="b s(-b m~)",
        source="Yang et al. 2026, arXiv:2505.19653",
        caveats="the triplet term is an auxiliary outside the two incentives",
    )


class Bpo(ObjectiveParams):
    """Bregman preference optimization on the ratio R = exp(-b m~)."""

    name: Literal["bpo"] = "bpo"
    kind: Literal["lr", "kliep", "lsif", "ba", "sba"] = Field("sba", description="the Bregman generator")
    beta: Positive = Field(0.1, description="inverse temperature b inside R")
    lam: NonNegative = Field(0.5, description="order lambda of ba and sba (ba needs lambda > 0)")
    scale: Positive = Field(4.0, description="scale s of sba")
    min_ratio: Positive = Field(0.01, description="R below this is clipped: gradient 0")
    max_ratio: Positive = Field(1e4, description="past this R goes on linearly in log R: bounded incentive")
    traits = Traits(
        title="BPO",
        family="entangled",
        needs_reference=True,
        loss="L(R), R = exp(-b m~); lr: log(1+R); kliep: R + log R; lsif: R^2 - 2/R; ba, sba: powers of R",
        d_w="b R L'(R)",
        d_l="b R L'(R)",
        source="Kim et al. 2025, arXiv:2505.19601",
        caveats="the paper lists BPO beside the disentangled methods; as a function of m~ alone it is entangled",
    )

    @model_validator(mode="after")
    def _ba_needs_an_order(self) -> "Bpo":
        if self.kind == "ba" and self.lam == 0:
            raise ValueError("lam must be above 0 for kind 'ba' (its loss divides by lam); kind 'sba' takes 0")
        if self.min_ratio >= self.max_ratio:
            raise ValueError("min_ratio must be below max_ratio")
        return self


class Kto(ObjectiveParams):
    """Kahneman-Tversky optimization: separate sigmoid values for winner and loser."""

    name: Literal["kto"] = "kto"
    lam_w: Positive = Field(1.0, description="weight lambda_w of the winner")
    lam_l: Positive = Field(1.0, description="weight lambda_l of the loser")
    beta: Positive = Field(1.0, description="b; the paper's form has 1, the original 0.1")
    baseline: Literal["none", "kl"] = Field(
        "none", description="none: the paper's form; kl: the original's K from mismatched pairs"
    )
    traits = Traits(
        title="KTO",
        family="disentangled",
        needs_reference=True,
        loss="lw s(b (K - z~_w)) + ll s(b (z~_l - K))",
        d_w="b lw s'(b (K - z~_w))",
        d_l="b ll s'(b (z~_l - K))",
        source="Ethayarajh et al. 2024, arXiv:2402.01306",
        caveats="`baseline: kl` needs micro-batches of at least 2 pairs",
    )


class Ddro(ObjectiveParams):
    """Direct density-ratio optimization."""

    name: Literal["ddro"] = "ddro"
    max_incentive: Positive = Field(10.0, description="d_l is bounded by this: the loss goes on along its tangent")
    traits = Traits(
        title="DDRO",
        family="disentangled",
        needs_reference=True,
        loss="log 2 - z~_w + log 2 - log(2 - exp z~_l)",
        d_w="1",
        d_l="exp z~_l / (2 - exp z~_l)",
        source="Higuchi et al. 2025, arXiv:2505.07558",
        caveats="singular at z~_l = log 2; past d_l = max_incentive the loss continues along its tangent",
    )


class DilBce(ObjectiveParams):
    """Direct imitation learning with the binary cross-entropy density-ratio loss."""

    name: Literal["dil-bce"] = "dil-bce"
    traits = Traits(
        title="DIL-BCE",
        family="disentangled",
        needs_reference=True,
        loss="softplus(-z~_w) + softplus(z~_l)",
        d_w="s(-z~_w)",
        d_l="s(z~_l)",
        source="Xiao et al. 2025 (DIL)",
    )


class DilUkl(ObjectiveParams):
    """Direct imitation learning with the unnormalised KL density-ratio loss."""

    name: Literal["dil-ukl"] = "dil-ukl"
    max_incentive: Positive = Field(1e4, description="d_l is bounded by this: the loss goes on along its tangent")
    traits = Traits(
        title="DIL-UKL",
        family="disentangled",
        needs_reference=True,
        loss="exp z~_l - z~_w",
        d_w="1",
        d_l="exp z~_l",
        source="Xiao et al. 2025 (DIL)",
        caveats="past d_l = max_incentive the loss continues along its tangent",
    )


class DilLsif(ObjectiveParams):
    """Direct imitation learning with the least-squares density-ratio loss."""

    name: Literal["dil-lsif"] = "dil-lsif"
    max_incentive: Positive = Field(
        1e4, description="both incentives are bounded by this: the loss goes on along its tangent"
    )
    traits = Traits(
        title="DIL-LSIF",
        family="disentangled",
        needs_reference=True,
        loss="exp(2 z~_l)/2 - exp z~_w",
        d_w="exp z~_w",
        d_l="exp(2 z~_l)",
        source="Xiao et al. 2025 (DIL)",
        caveats="past max_incentive each side continues along its tangent",
    )


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
        d_w="autograd",
        d_l="autograd",
        source="import path",
    )

    @field_validator("name")
    @classmethod
    def _is_import_path(cls, name: str) -> str:
        module, _, function = name.partition(":")
        if not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
            raise ValueError(f"{name!r} is no import path; an objective of your own is 'package.module:function'")
        return name

    @field_validator("params")
    @classmethod
    def _are_plain_data(cls, params: dict[str, Any]) -> dict[str, Any]:
        try:  # they are part of the run's identity, which is JSON: a nan there would become null
            json.dumps(params, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"only finite numbers, words, lists and mappings have an identity: {error}") from None
        return params


BUILT_IN: tuple[type[ObjectiveParams], ...] = (
    Dpo, Ipo, RDpo, SimPo, Cpo, Rrhf, SlicHf, TDpo, TiDpo, Bpo, Kto, Ddro, DilBce, DilUkl, DilLsif,
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
