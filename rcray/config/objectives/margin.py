"""Objectives of the margin between the two likelihoods, as data."""

from typing import Literal

from pydantic import Field, model_validator

from rcray.config.objectives.base import Formula, NonNegative, ObjectiveParams, Positive, Traits


class Dpo(ObjectiveParams):
    """Direct preference optimization."""

    name: Literal["dpo"] = "dpo"
    beta: Positive = Field(0.1, description="inverse temperature β of the implicit reward")
    traits = Traits(
        title="DPO",
        family="entangled",
        needs_reference=True,
        loss="-log σ(β m̃)",
        d_w=Formula("β σ(-β m̃)", r"\beta \sigma\left(-\beta \tilde m\right)"),
        d_l=Formula("β σ(-β m̃)", r"\beta \sigma\left(-\beta \tilde m\right)"),
        source="Rafailov et al. 2023, arXiv:2305.18290",
    )


class Ipo(ObjectiveParams):
    """Identity preference optimization: a squared distance to a target margin."""

    name: Literal["ipo"] = "ipo"
    tau: Positive = Field(0.1, description="the target margin is t = 1 / (2 τ)")
    traits = Traits(
        title="IPO",
        family="entangled",
        needs_reference=True,
        loss="(m̃ - t)^2, t = 1/(2τ)",
        d_w=Formula("2 (t - m̃)", r"2 (t - \tilde m)"),
        d_l=Formula("2 (t - m̃)", r"2 (t - \tilde m)"),
        where="t = 1/(2τ), the paper's λ",
        source="Azar et al. 2024, arXiv:2310.12036",
        caveats="past the target both incentives turn negative together: the update is reversed",
    )


class RDpo(ObjectiveParams):
    """DPO with a length-difference correction in the margin."""

    name: Literal["r-dpo"] = "r-dpo"
    beta: Positive = Field(0.1, description="inverse temperature β of the implicit reward")
    alpha: NonNegative = Field(0.01, description="weight α of the length difference |y_w| - |y_l|")
    traits = Traits(
        title="R-DPO",
        family="entangled",
        needs_reference=True,
        loss="-log σ(β m̃ + α (|y_w| - |y_l|))",
        d_w=Formula(
            "β σ(-β m̃ - α (|y_w| - |y_l|))", r"\beta \sigma\left(-\beta \tilde m - \alpha (|y_w| - |y_l|)\right)"
        ),
        d_l=Formula(
            "β σ(-β m̃ - α (|y_w| - |y_l|))", r"\beta \sigma\left(-\beta \tilde m - \alpha (|y_w| - |y_l|)\right)"
        ),
        source="Park et al. 2024, arXiv:2403.19159",
    )


class SimPo(ObjectiveParams):
    """Length-normalised margin with a target, no reference."""

    name: Literal["simpo"] = "simpo"
    beta: Positive = Field(2.0, description="scale β of the length-normalised likelihood")
    gamma: NonNegative = Field(1.0, description="target margin γ")
    traits = Traits(
        title="SimPO",
        family="entangled",
        needs_reference=False,
        loss="-log σ(β z_w/|y_w| - β z_l/|y_l| - γ)",
        d_w=Formula("(β / |y_w|) σ(γ - m_norm)", r"\frac{\beta}{|y_w|} \sigma\left(\gamma - m_{\mathrm{norm}}\right)"),
        d_l=Formula("(β / |y_l|) σ(γ - m_norm)", r"\frac{\beta}{|y_l|} \sigma\left(\gamma - m_{\mathrm{norm}}\right)"),
        where="m_norm = β z_w/|y_w| - β z_l/|y_l|",
        source="Meng et al. 2024, arXiv:2405.14734",
        caveats="under `likelihood: mean` z is already divided by |y| and is not divided again",
    )


class Cpo(ObjectiveParams):
    """Contrastive preference optimization: a margin loss plus a chosen-only likelihood term."""

    name: Literal["cpo"] = "cpo"
    beta: Positive = Field(0.1, description="inverse temperature β of the margin")
    lam: NonNegative = Field(1.0, description="weight λ of the chosen-only likelihood term")
    traits = Traits(
        title="CPO",
        family="entangled",
        needs_reference=False,
        loss="-log σ(β m) - λ z_w",
        d_w=Formula("β σ(-β m) + λ", r"\beta \sigma\left(-\beta m\right) + \lambda"),
        d_l=Formula("β σ(-β m)", r"\beta \sigma\left(-\beta m\right)"),
        source="Xu et al. 2024, arXiv:2401.08417",
    )


class Rrhf(ObjectiveParams):
    """Rank responses: a hinge at zero margin plus a chosen-only likelihood term."""

    name: Literal["rrhf"] = "rrhf"
    lam: NonNegative = Field(1.0, description="weight λ of the chosen-only likelihood term")
    traits = Traits(
        title="RRHF",
        family="entangled",
        needs_reference=False,
        loss="max(0, -m) - λ z_w",
        d_w=Formula("1[m < 0] + λ", r"\mathbb{1}[m < 0] + \lambda"),
        d_l=Formula("1[m < 0]", r"\mathbb{1}[m < 0]"),
        source="Yuan et al. 2023, arXiv:2304.05302",
        caveats="an inactive hinge has d_l = 0: nothing to balance, calibration leaves it alone",
    )


class SlicHf(ObjectiveParams):
    """Sequence likelihood calibration: a hinge at margin γ plus a chosen-only likelihood term."""

    name: Literal["slic-hf"] = "slic-hf"
    gamma: NonNegative = Field(1.0, description="hinge margin γ")
    lam: NonNegative = Field(0.1, description="weight λ of the chosen-only likelihood term")
    traits = Traits(
        title="SLiC-HF",
        family="entangled",
        needs_reference=False,
        loss="max(0, γ - m) - λ z_w",
        d_w=Formula("1[m < γ] + λ", r"\mathbb{1}[m < \gamma] + \lambda"),
        d_l=Formula("1[m < γ]", r"\mathbb{1}[m < \gamma]"),
        source="Zhao et al. 2023, arXiv:2305.10425",
        caveats="an inactive hinge has d_l = 0: nothing to balance, calibration leaves it alone",
    )


class Bpo(ObjectiveParams):
    """Bregman preference optimization on the ratio R = exp(-β m̃)."""

    name: Literal["bpo"] = "bpo"
    kind: Literal["lr", "kliep", "lsif", "ba", "sba"] = Field("sba", description="the Bregman generator")
    beta: Positive = Field(0.1, description="inverse temperature β inside R")
    lam: NonNegative = Field(0.5, description="order λ of ba and sba (ba needs λ > 0)")
    scale: Positive = Field(4.0, description="scale s of sba")
    min_ratio: Positive = Field(0.01, description="R below this is clipped: gradient 0")
    max_ratio: Positive = Field(1e4, description="past this R goes on linearly in log R: bounded incentive")
    traits = Traits(
        title="BPO",
        family="entangled",
        needs_reference=True,
        loss="L(R), R = exp(-β m̃); lr: log(1+R); kliep: R + log R; lsif: R^2 - 2/R; ba, sba: powers of R",
        d_w=Formula("β R L′(R)", r"\beta R L'\left(R\right)"),
        d_l=Formula("β R L′(R)", r"\beta R L'\left(R\right)"),
        precision=1e-6,  # the slope L′ is checked by finite differences
        where="R = exp(-β m̃), L its Bregman loss",
        source="Kim et al. 2025, arXiv:2505.19601",
        caveats="the paper lists BPO beside the disentangled methods; as a function of m̃ alone it is entangled",
    )

    @model_validator(mode="after")
    def _ba_needs_an_order(self) -> "Bpo":
        if self.kind == "ba" and self.lam == 0:
            raise ValueError("lam must be above 0 for kind 'ba' (its loss divides by lam); kind 'sba' takes 0")
        if self.min_ratio >= self.max_ratio:
            raise ValueError("min_ratio must be below max_ratio")
        return self
