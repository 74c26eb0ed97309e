"""The other losses of TRL's DPOTrainer, as data; `names.py` has what TRL calls them."""

from typing import Literal

from pydantic import Field

from rcray.config.objectives.base import Formula, ObjectiveParams, Positive, Traits


class Hinge(ObjectiveParams):
    """A hinge on DPO's margin."""

    name: Literal["hinge"] = "hinge"
    beta: Positive = Field(0.1, description="inverse temperature β of the implicit reward")
    traits = Traits(
        title="Hinge",
        family="entangled",
        needs_reference=True,
        loss="max(0, 1 - β m̃)",
        d_w=Formula("β 1[β m̃ < 1]", r"\beta \mathbb{1}[\beta \tilde m < 1]"),
        d_l=Formula("β 1[β m̃ < 1]", r"\beta \mathbb{1}[\beta \tilde m < 1]"),
        source="Liu et al. 2023, arXiv:2309.06657 (hinge-norm); TRL's hinge",
        caveats="an inactive hinge has no incentives: nothing to balance, calibration leaves it alone",
    )


class Robust(ObjectiveParams):
    """DPO, unbiased under labels flipped with a known rate."""

    name: Literal["robust"] = "robust"
    beta: Positive = Field(0.1, description="inverse temperature β of the implicit reward")
    label_smoothing: float = Field(0.1, ge=0, lt=0.5, description="rate ε of flipped labels; 0 is DPO")
    traits = Traits(
        title="Robust DPO",
        family="entangled",
        needs_reference=True,
        loss="(-(1 - ε) log σ(β m̃) + ε log σ(-β m̃))/(1 - 2ε)",
        d_w=Formula(
            "β ((1 - ε) σ(-β m̃) + ε σ(β m̃)) / (1 - 2 ε)",
            r"\frac{\beta ((1 - \varepsilon) \sigma\left(-\beta \tilde m\right) + \varepsilon "
            r"\sigma\left(\beta \tilde m\right))}{1 - 2 \varepsilon}",
        ),
        d_l=Formula(
            "β ((1 - ε) σ(-β m̃) + ε σ(β m̃)) / (1 - 2 ε)",
            r"\frac{\beta ((1 - \varepsilon) \sigma\left(-\beta \tilde m\right) + \varepsilon "
            r"\sigma\left(\beta \tilde m\right))}{1 - 2 \varepsilon}",
        ),
        where="ε = label_smoothing",
        source="Ray Chowdhury et al. 2024, arXiv:2403.00409",
    )


class CDpo(ObjectiveParams):
    """DPO with smoothed labels."""

    name: Literal["cdpo"] = "cdpo"
    beta: Positive = Field(0.1, description="inverse temperature β of the implicit reward")
    label_smoothing: float = Field(0.1, ge=0, lt=0.5, description="probability ε that a label is flipped; 0 is DPO")
    traits = Traits(
        title="cDPO",
        family="entangled",
        needs_reference=True,
        loss="-(1 - ε) log σ(β m̃) - ε log σ(-β m̃)",
        d_w=Formula("β (σ(-β m̃) - ε)", r"\beta (\sigma\left(-\beta \tilde m\right) - \varepsilon)"),
        d_l=Formula("β (σ(-β m̃) - ε)", r"\beta (\sigma\left(-\beta \tilde m\right) - \varepsilon)"),
        where="ε = label_smoothing",
        source="Mitchell 2023, ericmitchell.ai/cdpo.pdf",
        caveats="past β m̃ = log((1 - ε)/ε) both incentives turn negative together: the update is reversed",
    )


class Exo(ObjectiveParams):
    """The KL divergence from the policy's preference to the smoothed label's."""

    name: Literal["exo"] = "exo"
    beta: Positive = Field(0.1, description="inverse temperature β of the implicit reward")
    label_smoothing: float = Field(1e-3, gt=0, lt=0.5, description="probability ε that a label is flipped")
    traits = Traits(
        title="EXO",
        family="entangled",
        needs_reference=True,
        loss="q log(q/(1 - ε)) + (1 - q) log((1 - q)/ε), q = σ(β m̃)",
        d_w=Formula("β σ′(β m̃) (t - β m̃)", r"\beta \sigma'\left(\beta \tilde m\right) (t - \beta \tilde m)"),
        d_l=Formula("β σ′(β m̃) (t - β m̃)", r"\beta \sigma'\left(\beta \tilde m\right) (t - \beta \tilde m)"),
        where="t = log((1 - ε)/ε), ε = label_smoothing",
        source="Ji et al. 2024, arXiv:2402.00856",
        caveats="past β m̃ = t both incentives turn negative together: the update is reversed",
    )


class DiscoPop(ObjectiveParams):
    """A blend of the logistic and the exponential loss, found by a language model."""

    name: Literal["discopop"] = "discopop"
    beta: Positive = Field(0.1, description="inverse temperature β of the implicit reward")
    tau: float = Field(0.05, gt=0, lt=1, description="temperature τ of the blend; TRL's discopop_tau")
    traits = Traits(
        title="DiscoPOP",
        family="entangled",
        needs_reference=True,
        loss="L(u) = -(1 - q) log σ(u) + q exp(-u), u = β m̃, q = σ(u/τ)",
        d_w=Formula("-β L′(β m̃)", r"-\beta L'\left(\beta \tilde m\right)"),
        d_l=Formula("-β L′(β m̃)", r"-\beta L'\left(\beta \tilde m\right)"),
        precision=1e-6,  # the slope L′ is checked by finite differences
        where="L(u) = -(1 - q) log σ(u) + q exp(-u), q = σ(u/τ)",
        source="Lu et al. 2024, arXiv:2406.08414",
        caveats="the loss is not monotone in the margin: between its two branches the update is reversed",
    )


class FDpo(ObjectiveParams):
    """DPO under another divergence from the reference."""

    name: Literal["f-dpo"] = "f-dpo"
    beta: Positive = Field(0.1, description="inverse temperature β of the implicit reward")
    divergence: Literal["forward_kl", "js_divergence"] = Field(
        "js_divergence", description="TRL's f_divergence_type; reverse KL is DPO"
    )
    max_slope: Positive = Field(
        1e4, description="φ′ of the forward KL, exp(-z̃), is bounded by this: φ goes on along its tangent"
    )
    traits = Traits(
        title="f-DPO",
        family="entangled",
        needs_reference=True,
        loss="-log σ(u), u = β (φ(z̃_w) - φ(z̃_l)); forward_kl: φ = 1 - exp(-z̃); js_divergence: φ = log 2σ(z̃)",
        d_w=Formula("β φ′(z̃_w) σ(-u)", r"\beta \varphi'\left(\tilde z_w\right) \sigma\left(-u\right)"),
        d_l=Formula("β φ′(z̃_l) σ(-u)", r"\beta \varphi'\left(\tilde z_l\right) \sigma\left(-u\right)"),
        where="u = β (φ(z̃_w) - φ(z̃_l)); forward KL: φ = 1 - exp(-z̃); JS: φ = log σ(z̃)",
        source="Wang et al. 2023, arXiv:2309.16240",
        caveats="under forward_kl, past φ′ = max_slope φ continues along its tangent",
    )


class SppoHard(ObjectiveParams):
    """Self-play with hard labels: each reward drawn to a target of its own."""

    name: Literal["sppo-hard"] = "sppo-hard"
    beta: Positive = Field(0.1, description="the targets are ±t, t = 1 / (2 β)")
    traits = Traits(
        title="SPPO-hard",
        family="disentangled",
        needs_reference=True,
        separates=True,
        loss="(z̃_w - t)^2 + (z̃_l + t)^2, t = 1/(2β)",
        d_w=Formula("2 (t - z̃_w)", r"2 (t - \tilde z_w)"),
        d_l=Formula("2 (t + z̃_l)", r"2 (t + \tilde z_l)"),
        where="t = 1/(2β)",
        source="Wu et al. 2024, arXiv:2405.00675; hard labels as in TRL",
        caveats="past its target a side's incentive turns negative: opposite signs are not calibrated",
    )


class Nca(ObjectiveParams):
    """Noise-contrastive alignment of a pair."""

    name: Literal["nca"] = "nca"
    beta: Positive = Field(0.1, description="inverse temperature β of the implicit reward")
    traits = Traits(
        title="NCA",
        family="disentangled",
        needs_reference=True,
        separates=True,
        loss="-log σ(β z̃_w) - (log σ(-β z̃_w) + log σ(-β z̃_l))/2",
        d_w=Formula("β (1 - 1.5 σ(β z̃_w))", r"\beta (1 - 1.5 \sigma\left(\beta \tilde z_w\right))"),
        d_l=Formula("0.5 β σ(β z̃_l)", r"0.5 \beta \sigma\left(\beta \tilde z_l\right)"),
        source="Chen et al. 2024, arXiv:2402.05369",
        caveats="past β z̃_w = log 2 the chosen incentive is negative: both answers are pushed down, there is no ratio, "
        "and calibration leaves the batch alone",
    )


class Bco(ObjectiveParams):
    """Binary classifier of chosen and rejected answers."""

    name: Literal["bco"] = "bco"
    beta: Positive = Field(0.1, description="inverse temperature β of the implicit reward; 1 is DIL-BCE")
    traits = Traits(
        title="BCO",
        family="disentangled",
        needs_reference=True,
        separates=True,
        loss="-log σ(β z̃_w) - log σ(-β z̃_l)",
        d_w=Formula("β σ(-β z̃_w)", r"\beta \sigma\left(-\beta \tilde z_w\right)"),
        d_l=Formula("β σ(β z̃_l)", r"\beta \sigma\left(\beta \tilde z_l\right)"),
        source="Jung et al. 2024, arXiv:2404.04656; without reward shift, as in TRL",
    )


class ApoDown(ObjectiveParams):
    """Anchored preference: both answers down, the rejected one further."""

    name: Literal["apo-down"] = "apo-down"
    beta: Positive = Field(0.1, description="inverse temperature β of the implicit reward")
    traits = Traits(
        title="APO-down",
        family="entangled",
        needs_reference=True,
        loss="σ(β z̃_w) + 1 - σ(β m̃)",
        d_w=Formula(
            "β (σ′(β m̃) - σ′(β z̃_w))",
            r"\beta (\sigma'\left(\beta \tilde m\right) - \sigma'\left(\beta \tilde z_w\right))",
        ),
        d_l=Formula("β σ′(β m̃)", r"\beta \sigma'\left(\beta \tilde m\right)"),
        source="D'Oosterlinck et al. 2024, arXiv:2408.06266",
        caveats="meant to lower the chosen answer too: where its incentive is negative there is no ratio, and "
        "calibration leaves the batch alone",
    )
