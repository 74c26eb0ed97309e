"""Objectives against a falling chosen likelihood, as data: each is another choice of the ratio d_w / d_l."""

from typing import Annotated, Literal

from pydantic import Field

from rcray.config.objectives.base import Formula, ObjectiveParams, Positive, Traits

_PULL = Formula("β σ(-u)", r"\beta \sigma\left(-u\right)")


class DpoP(ObjectiveParams):
    """DPO-Positive: a penalty inside the margin wherever the chosen answer is below its reference."""

    name: Literal["dpop"] = "dpop"
    beta: Positive = Field(0.1, description="inverse temperature β of the implicit reward")
    lam: Positive = Field(50.0, description="weight λ of the penalty; 5 to 500 in the paper")
    traits = Traits(
        title="DPOP",
        family="entangled",
        needs_reference=True,
        loss="-log σ(u), u = β (m̃ - λ max(0, -z̃_w))",
        d_w=Formula(
            "β (1 + λ 1[z̃_w < 0]) σ(-u)", r"\beta (1 + \lambda \mathbb{1}[\tilde z_w < 0]) \sigma\left(-u\right)"
        ),
        d_l=_PULL,
        where="u = β (m̃ - λ max(0, -z̃_w))",
        source="Pal et al. 2024, arXiv:2402.13228; the bracket as in abacusai/smaug issue 2",
        caveats="the ratio is 1 + λ while the chosen answer is below its reference, and 1 above it",
    )


class DpoShift(ObjectiveParams):
    """DPO with a weight on the rejected reward."""

    name: Literal["dpo-shift"] = "dpo-shift"
    beta: Positive = Field(0.1, description="inverse temperature β of the implicit reward")
    shift: float = Field(0.95, gt=0, le=1, description="weight f of the rejected reward; 1 is DPO")
    traits = Traits(
        title="DPO-Shift",
        family="entangled",
        needs_reference=True,
        loss="-log σ(u), u = β (z̃_w - f z̃_l)",
        d_w=_PULL,
        d_l=Formula("f β σ(-u)", r"f \beta \sigma\left(-u\right)"),
        where="u = β (z̃_w - f z̃_l), f = shift",
        source="Yang et al. 2025, arXiv:2502.07599",
        caveats="the ratio is 1/f; f is fixed: the schedules linear in the step are not built",
    )


class CalDpo(ObjectiveParams):
    """DPO with the two rewards drawn to targets of their own."""

    name: Literal["cal-dpo"] = "cal-dpo"
    beta: Positive = Field(0.1, description="the targets are ±t, t = 1 / (2 β); 0.002 in the authors' 7B runs")
    traits = Traits(
        title="Cal-DPO",
        family="entangled",
        needs_reference=True,
        loss="-log σ(m̃) + ((z̃_w - t)^2 + (z̃_l + t)^2)/2, t = 1/(2β)",
        d_w=Formula("σ(-m̃) + t - z̃_w", r"\sigma\left(-\tilde m\right) + t - \tilde z_w"),
        d_l=Formula("σ(-m̃) + t + z̃_l", r"\sigma\left(-\tilde m\right) + t + \tilde z_l"),
        where="t = 1/(2β)",
        source="Xiao et al. 2024, arXiv:2412.14516; the factor 1/2 as in the authors' code",
        caveats="past its target a side's incentive turns negative: opposite signs are not calibrated",
    )


class Rpo(ObjectiveParams):
    """DPO with a likelihood term per chosen token: DPO + NLL."""

    name: Literal["rpo"] = "rpo"
    beta: Positive = Field(0.1, description="inverse temperature β of the implicit reward")
    alpha: Positive = Field(1.0, description="weight α of the mean log-likelihood of the chosen answer")
    traits = Traits(
        title="RPO",
        family="entangled",
        needs_reference=True,
        loss="-log σ(β m̃) - α z_w/|y_w|",
        d_w=Formula("β σ(-β m̃) + α / |y_w|", r"\beta \sigma\left(-\beta \tilde m\right) + \frac{\alpha}{|y_w|}"),
        d_l=Formula("β σ(-β m̃)", r"\beta \sigma\left(-\beta \tilde m\right)"),
        source="Pang et al. 2024, arXiv:2404.19733; Liu et al. 2024, arXiv:2405.16436",
        caveats="under `likelihood: mean` z is already divided by |y| and is not divided again; "
        "TRL's sft term is a mean over the tokens of a batch, this one over those of an answer",
    )


class AlphaPo(ObjectiveParams):
    """SimPO with a power of the likelihood for its logarithm."""

    name: Literal["alphapo"] = "alphapo"
    beta: Positive = Field(2.0, description="scale β of the reward")
    gamma: float = Field(1.0, ge=0, allow_inf_nan=False, description="target margin γ")
    alpha: float = Field(0.25, allow_inf_nan=False, description="shape α of the reward; 0 is SimPO")
    max_slope: Positive = Field(1e4, description="p^-α is bounded by this: the reward goes on along its tangent")
    traits = Traits(
        title="AlphaPO",
        family="entangled",
        needs_reference=False,
        loss="-log σ(u), u = β (R_w - R_l) - γ, R = (1 - p^-α)/α, p = exp(z/|y|)",
        d_w=Formula(
            "(β / |y_w|) exp(-α z_w / |y_w|) σ(-u)",
            r"\frac{\beta}{|y_w|} \exp\left(-\frac{\alpha z_w}{|y_w|}\right) \sigma\left(-u\right)",
        ),
        d_l=Formula(
            "(β / |y_l|) exp(-α z_l / |y_l|) σ(-u)",
            r"\frac{\beta}{|y_l|} \exp\left(-\frac{\alpha z_l}{|y_l|}\right) \sigma\left(-u\right)",
        ),
        where="u = β (R_w - R_l) - γ, R = (1 - exp(-α z/|y|))/α",
        source="Gupta et al. 2025, arXiv:2501.03884",
        caveats="under `likelihood: mean` z is already divided by |y| and is not divided again; "
        "past max_slope each reward goes on along its tangent",
    )


class Orpo(ObjectiveParams):
    """The chosen answer's mean likelihood and the odds ratio of the two."""

    name: Literal["orpo"] = "orpo"
    lam: Positive = Field(0.1, description="weight λ of the odds ratio; TRL's beta")
    max_slope: Annotated[float, Field(gt=1, allow_inf_nan=False)] = Field(
        1e4, description="1/(1 - p) is bounded by this: the log-odds go on along their tangent"
    )
    traits = Traits(
        title="ORPO",
        family="entangled",
        needs_reference=False,
        loss="-z_w/|y_w| - λ log σ(g), g = logit p_w - logit p_l, p = exp(z/|y|)",
        d_w=Formula(
            "(1 + λ σ(-g) / (1 - p_w)) / |y_w|",
            r"\frac{1 + \frac{\lambda \sigma\left(-g\right)}{1 - p_w}}{|y_w|}",
        ),
        d_l=Formula("λ σ(-g) / ((1 - p_l) |y_l|)", r"\frac{\lambda \sigma\left(-g\right)}{(1 - p_l) |y_l|}"),
        where="g = logit p_w - logit p_l, p = exp(z/|y|)",
        source="Hong et al. 2024, arXiv:2403.07691",
        caveats="under `likelihood: mean` z is already divided by |y| and is not divided again; "
        "past max_slope the log-odds of an almost certain answer go on along their tangent",
    )


class BDpo(ObjectiveParams):
    """DPO whose rejected answer is scored by a mixture of policy and reference."""

    name: Literal["bdpo"] = "bdpo"
    beta: Positive = Field(0.1, description="inverse temperature β of the implicit reward")
    lam: float = Field(0.5, gt=0, lt=1, description="share λ of the policy in the mixture; towards 1 it is DPO")
    traits = Traits(
        title="BDPO",
        family="entangled",
        needs_reference=True,
        loss="-log σ(u), u = β (z̃_w - log(λ exp(z̃_l) + 1 - λ))",
        d_w=_PULL,
        d_l=Formula(
            "β σ(-u) σ(z̃_l + log(λ / (1 - λ)))",
            r"\beta \sigma\left(-u\right) \sigma\left(\tilde z_l + \log\left(\frac{\lambda}{1 - \lambda}\right)\right)",
        ),
        where="u = β (z̃_w - log(λ exp(z̃_l) + 1 - λ))",
        source="Cho et al. 2025, arXiv:2506.12725",
        caveats="the rejected incentive fades as the rejected answer falls below its reference",
    )


class BalancedPo(ObjectiveParams):
    """The weaker of the two rewards in place of their difference."""

    name: Literal["balanced-po"] = "balanced-po"
    beta: Positive = Field(0.1, description="inverse temperature β of the implicit reward")
    alpha: Positive = Field(0.3, description="weight α of the rejected reward, the authors' gap adaptor")
    traits = Traits(
        title="Balanced-PO",
        family="entangled",
        needs_reference=True,
        loss="-log σ(u), u = β min(z̃_w, -α z̃_l)",
        d_w=Formula(
            "β σ(-u) 1[z̃_w < -α z̃_l]",
            r"\beta \sigma\left(-u\right) \mathbb{1}[\tilde z_w < -\alpha \tilde z_l]",
        ),
        d_l=Formula(
            "α β σ(-u) 1[-α z̃_l < z̃_w]",
            r"\alpha \beta \sigma\left(-u\right) \mathbb{1}[-\alpha \tilde z_l < \tilde z_w]",
        ),
        where="u = β min(z̃_w, -α z̃_l)",
        source="Sun et al. 2025, arXiv:2506.03557; its authors say BPO, which is another objective here",
        caveats="one side of a pair at a time has an incentive; at a tie, as at the start, each has half of its own",
    )
