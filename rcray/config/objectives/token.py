"""Objectives that weigh or measure single tokens, as data."""

from typing import Literal

from pydantic import Field

from rcray.config.objectives.base import Formula, NonNegative, ObjectiveParams, Positive, Traits


class TDpo(ObjectiveParams):
    """Token-level DPO: sequential KL to the reference joins the branch statistics."""

    name: Literal["tdpo"] = "tdpo"
    variant: Literal[1, 2] = Field(2, description="1: KL with gradient on both sides; 2: α * KL on the loser")
    beta: Positive = Field(0.1, description="inverse temperature β of the implicit reward")
    alpha: NonNegative = Field(0.5, description="weight α of the sequential KL (variant 2 only)")
    traits = Traits(
        title="TDPO",
        family="entangled",
        needs_reference=True,
        token_level=True,
        needs_reference_distribution=True,
        loss="-log σ(β [m̃ - α (D_l - sg D_w)]), D = sum_t KL(ref || policy)",
        d_w=Formula("β σ(-β [·])", r"\beta \sigma\left(-\beta [\,\cdot\,]\right)"),
        d_l=Formula("β σ(-β [·])", r"\beta \sigma\left(-\beta [\,\cdot\,]\right)"),
        where="[·] is the margin with its KL terms",
        source="Zeng et al. 2024, arXiv:2404.11999",
        caveats="needs the reference's next-token distribution: the scalar reference cache is not enough",
    )


class TiDpo(ObjectiveParams):
    """Token-importance DPO: importance-weighted token log-probabilities.

    In a run: the authors' proxy for the importance, 1 - p(y_t). The importance by embedding gradients and the triplet
    term are there for loops of one's own (`TokenLogps.importance_w`, `anchor_ratio`); the training loop makes neither
    the gradients nor the sampled anchor, so a run that asks for them is refused.
    """

    name: Literal["ti-dpo"] = "ti-dpo"
    beta: Positive = Field(0.1, description="inverse temperature β of the implicit reward")
    importance: Literal["probability", "gradient"] = Field(
        "probability",
        description="probability: 1 - p(y_t), the authors' proxy; gradient: |d top logit / d embedding| and prior",
    )
    lam: float = Field(0.7, ge=0, le=1, description="share of the gradient importance against the prior")
    triplet: bool = Field(False, description="add the triplet term (needs a sampled anchor response)")
    gamma: NonNegative = Field(0.1, description="weight γ of the triplet term")
    margin: NonNegative = Field(1.0, description="margin of the triplet term")
    traits = Traits(
        title="TI-DPO",
        family="entangled",
        needs_reference=True,
        token_level=True,
        loss="-log σ(β m̃) on importance-weighted z (+ γ triplet)",
        d_w=Formula("β σ(-β m̃)", r"\beta \sigma\left(-\beta \tilde m\right)"),
        d_l=Formula("β σ(-β m̃)", r"\beta \sigma\left(-\beta \tilde m\right)"),
        source="Yang et al. 2026, arXiv:2505.19653",
        caveats="a run weighs tokens by the authors' proxy 1 - p(y_t); the importance by embedding gradients and the "
        "triplet term, an auxiliary outside the two incentives, are for loops of one's own and refused in a run",
    )
