"""Objectives with a density ratio per side, as data."""

from typing import Literal

from pydantic import Field

from rcray.config.objectives.base import Formula, ObjectiveParams, Positive, Traits


class Kto(ObjectiveParams):
    """Kahneman-Tversky optimization: separate sigmoid values for winner and loser.

    By default the form of the RC paper, without baseline. With `baseline: kl` K is that of KTO's own paper: the mean
    log-ratio of every prompt of a micro-batch with the answer to another one, not below 0, without gradient. It costs
    two forwards more, of policy and reference. The micro-batch is that of all workers, whatever their number.
    """

    name: Literal["kto"] = "kto"
    lam_w: Positive = Field(1.0, description="weight λ_w of the winner")
    lam_l: Positive = Field(1.0, description="weight λ_l of the loser")
    beta: Positive = Field(1.0, description="β; the paper's form has 1, the original 0.1")
    baseline: Literal["none", "kl"] = Field(
        "none", description="none: the paper's form; kl: the original's K from mismatched pairs"
    )
    traits = Traits(
        title="KTO",
        family="disentangled",
        needs_reference=True,
        separates=True,
        loss="λ_w σ(β (K - z̃_w)) + λ_l σ(β (z̃_l - K))",
        d_w=Formula("β λ_w σ′(β (K - z̃_w))", r"\beta \lambda_w \sigma'\left(\beta (K - \tilde z_w)\right)"),
        d_l=Formula("β λ_l σ′(β (z̃_l - K))", r"\beta \lambda_l \sigma'\left(\beta (\tilde z_l - K)\right)"),
        where="K is 0 in the paper's form",
        source="Ethayarajh et al. 2024, arXiv:2402.01306",
        caveats="`baseline: kl` needs micro-batches of at least 2 pairs",
    )


class Ddro(ObjectiveParams):
    """Direct density-ratio optimization."""

    name: Literal["ddro"] = "ddro"
    max_incentive: Positive = Field(
        10.0,
        le=2e6,  # past it 2 - exp(z̃_l) is nothing but rounding in float32
        description="d_l is bounded by this: the loss goes on along its tangent",
    )
    rc_max_incentive: Positive | None = Field(
        None, description="the bound of d_l as calibration and records see it; null: that of the loss"
    )
    traits = Traits(
        title="DDRO",
        family="disentangled",
        needs_reference=True,
        separates=True,
        loss="log 2 - z̃_w + log 2 - log(2 - exp(z̃_l))",
        d_w=Formula("1", "1"),
        d_l=Formula(
            "exp(z̃_l) / (2 - exp(z̃_l))", r"\frac{\exp\left(\tilde z_l\right)}{2 - \exp\left(\tilde z_l\right)}"
        ),
        source="Higuchi et al. 2025, arXiv:2505.07558",
        caveats="singular at z̃_l = log 2; past d_l = max_incentive the loss continues along its tangent",
    )


class DilBce(ObjectiveParams):
    """Direct imitation learning with the binary cross-entropy density-ratio loss."""

    name: Literal["dil-bce"] = "dil-bce"
    traits = Traits(
        title="DIL-BCE",
        family="disentangled",
        needs_reference=True,
        separates=True,
        loss="softplus(-z̃_w) + softplus(z̃_l)",
        d_w=Formula("σ(-z̃_w)", r"\sigma\left(-\tilde z_w\right)"),
        d_l=Formula("σ(z̃_l)", r"\sigma\left(\tilde z_l\right)"),
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
        separates=True,
        loss="exp(z̃_l) - z̃_w",
        d_w=Formula("1", "1"),
        d_l=Formula("exp(z̃_l)", r"\exp\left(\tilde z_l\right)"),
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
        separates=True,
        loss="exp(2 z̃_l)/2 - exp(z̃_w)",
        d_w=Formula("exp(z̃_w)", r"\exp\left(\tilde z_w\right)"),
        d_l=Formula("exp(2 z̃_l)", r"\exp\left(2 \tilde z_l\right)"),
        source="Xiao et al. 2025 (DIL)",
        caveats="past max_incentive each side continues along its tangent",
    )
