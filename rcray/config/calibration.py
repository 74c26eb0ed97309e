"""The section for reward calibration: whether, by what, and how what it steers by is measured."""

from typing import Any, Literal

from pydantic import Field, model_validator

from rcray.config.objectives import Positive
from rcray.config.section import Section

FIRST_LOOKS = 20  # steps that begin with a look each, while an optimizer's moments build up
SHORT_RUN = 0.25  # of a run that is short for it: what stands for FIRST_LOOKS, and for the steps that undo drift
LOOK_EVERY = 10  # steps between two looks after that
LATE_LOOKS = 400  # steps after which they are twice as far apart
EMA_BETA = 0.98
LOSER_SHARE = 0.75  # of the margin's growth
WINNER_GUARD = 0.5  # nats per answer token that the winner of fresh pairs may fall, calibrated by the update


def looks_at(step: int, position: int, first: int, every: int) -> bool:
    """Whether a step of a run, at this position of its epoch, begins with a look; all counted from 0."""
    return step < first or position % (every if step < LATE_LOOKS else 2 * every) == 0


def first_looks(steps: int | None) -> int:
    """How many steps of a run of so many begin with a look each; None: it is not known how long the run is."""
    return FIRST_LOOKS if steps is None else min(FIRST_LOOKS, round(SHORT_RUN * steps))


class CalibrationConfig(Section):
    """Reward calibration: whether, by what, and how what it steers by is measured.

    `published` balances incentives against scores at the head or the last adapters, smoothed, as the paper does;
    `update` steers by the update that the optimizer really makes, judged by pairs that were not trained on yet;
    `normalised` follows s_w/|s_w| - s_l/|s_l| in every window (Yuan et al. 2024, arXiv:2410.13828), without memory.
    """

    enabled: bool = Field(False, description="rebalance the backward pass; everything is recorded either way")
    kind: Literal["published", "update", "normalised"] = Field(
        "published", description="the paper's calibration, by the update, or the normalised gradient"
    )
    loser_share: float = Field(
        LOSER_SHARE,
        gt=0,
        le=1,
        description="kind update: what of the margin's growth the loser gives; 1: the winner stays put",
    )
    guard: Positive | None = Field(
        None,
        description=f"nats per answer token that the winner may fall before alpha steps back; update: {WINNER_GUARD}",
    )
    look_every: int = Field(
        LOOK_EVERY,
        ge=0,
        description="steps between two looks at fresh pairs, which predict and judge the update; twice as many after "
        f"step {LATE_LOOKS}; 0: never",
    )
    look_pairs: int = Field(8, ge=1, description="pairs of a look")
    ema_beta: float = Field(EMA_BETA, ge=0, lt=1, description="momentum of the log-domain EMAs; 0 means none")
    clip: bool = Field(True, description="keep the calibrated ratio inside the instantaneous band")
    granularity: Literal["microbatch", "step"] = Field("microbatch", description="over what the statistics are taken")
    scores: Literal["head", "sketch", "adapters", "full"] = Field(
        "head", description="whose gradients stand for s_w and s_l; adapters where only those are trained"
    )
    record_full: bool = Field(
        False, description="record the band over all parameters beside it, also written scores: [head, full]; slow"
    )

    @model_validator(mode="after")
    def _update_takes_looks(self) -> "CalibrationConfig":
        if self.steers_by_update and self.look_every == 0:
            raise ValueError("look_every 0: kind 'update' steers by looks; use 1 or more")
        if self.guard is not None and self.look_every == 0:
            raise ValueError(f"look_every 0: guard {self.guard} watches the pairs of looks; use 1 or more, or no guard")
        return self

    @model_validator(mode="after")
    def _normalised_has_no_memory(self) -> "CalibrationConfig":
        if self.enabled and self.kind == "normalised":
            for name, usual in (("ema_beta", EMA_BETA), ("loser_share", LOSER_SHARE)):
                if getattr(self, name) != usual:
                    raise ValueError(f"{name} has no meaning for kind 'normalised', which has no memory; delete it")
        return self

    @property
    def title(self) -> str:
        """What stands for it in the name of a run."""
        named = {"published": "RC", "update": "RC update", "normalised": "normalised"}
        return named[self.kind] if self.enabled else "no RC"

    @property
    def scores_at(self) -> str:
        """Where the paper's band is measured, in words: `head`, `adapters` or `all parameters`."""
        return {"adapters": "adapters", "full": "all parameters"}.get(self.scores, "head")

    @property
    def averages(self) -> bool:
        """Whether alpha comes from smoothed statistics, and so has a momentum."""
        return self.enabled and self.kind == "published"

    @property
    def steers_by_update(self) -> bool:
        """Whether alpha comes from the update that is made."""
        return self.enabled and self.kind == "update"

    @model_validator(mode="before")
    @classmethod
    def _open_pair_of_scores(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(given.get("scores"), (list, tuple)):
            named = list(given["scores"])
            if len(named) != 2 or named[1] != "full":
                raise ValueError(f"scores {named!r} is not one estimator, or one and full: [head, full]")
            return {**given, "scores": named[0], "record_full": True}
        return given
