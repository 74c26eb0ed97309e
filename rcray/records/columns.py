"""The glossary of step records: every column of `dynamics/*.parquet`, once.

One row per optimizer step; everything in it describes the model just before that update. Likelihoods are means over
the step's pairs, in the run's reduction (sum or mean over tokens, nats). Incentives and scores are those of the step's
global batch, over all workers. Empty measurements are NaN (numbers) or "" (words). Only the probe of the very last
row is taken after its update, so that the curves end where training ended.
"""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Column:
    """One recorded quantity."""

    name: str
    kind: Literal["int", "float", "bool", "str"]
    symbol: str
    meaning: str
    metric: bool = True  # sent to the tracker as a curve


COLUMNS: tuple[Column, ...] = (
    Column("step", "int", "t", "optimizer steps made, counting from 1", metric=False),
    Column("epoch", "int", "", "pass over the data, counting from 0", metric=False),
    Column("loss", "float", "L", "mean loss per pair"),
    Column("z_w", "float", "z_w", "log-likelihood of the chosen answers of this batch"),
    Column("z_l", "float", "z_l", "log-likelihood of the rejected answers of this batch"),
    Column("zt_w", "float", "z~_w", "chosen log-likelihood minus the reference's"),
    Column("zt_l", "float", "z~_l", "rejected log-likelihood minus the reference's"),
    Column("margin", "float", "m", "z_w - z_l"),
    Column("d_w", "float", "d_w", "mean incentive on the winner, before calibration"),
    Column("d_l", "float", "d_l", "mean incentive on the loser, before calibration"),
    Column("log_d_w", "float", "log|d_w|", "its logarithm; finite where d_w underflows"),
    Column("log_d_l", "float", "log|d_l|", "its logarithm; finite where d_l underflows"),
    Column("log_s_w", "float", "log|s_w|", "norm of the mean winner score"),
    Column("log_s_l", "float", "log|s_l|", "norm of the mean loser score"),
    Column("rho", "float", "rho", "cosine of the two scores"),
    Column("log_r_base", "float", "log r", "incentive ratio of the objective, before calibration"),
    Column("log_r", "float", "log r", "incentive ratio of the update that was made"),
    Column("log_r_star", "float", "log r*", "centre of the band at the head or adapters"),
    Column(
        "band_lower", "float", "log r* + log rho", "its lower edge, at the head or adapters: below it the winner falls"
    ),
    Column(
        "band_upper", "float", "log r* - log rho", "its upper edge, at the head or adapters: above it the loser rises"
    ),
    Column(
        "slack", "float", "Delta", "log-distance of log r to the nearer edge, at the head or adapters; negative outside"
    ),
    Column("in_band", "bool", "", "whether log r lies inside the band at the head or adapters; no prediction"),
    Column("log_alpha", "float", "log alpha", "log of the calibration factor; 0 without calibration"),
    Column("clipped", "float", "", "share of the step's calibrations that were clipped to the band"),
    Column("skipped", "str", "", "why calibration left the step alone, or no update was made", metric=False),
    Column("reversed", "bool", "", "both incentives negative: the update runs backwards"),
    Column("guarded", "float", "", "share of pairs in a documented continuation of the loss"),
    Column("pathway_head", "str", "", "pathway the theorem predicts at the scores (head or adapters)", metric=False),
    Column("predicted_dz_w", "float", "<s_w, u>", "first-order move of z_w on fresh pairs since the last look"),
    Column("predicted_dz_l", "float", "<s_l, u>", "first-order move of z_l on fresh pairs since the last look"),
    Column("pathway_predicted", "str", "", "pathway of that move: the prediction, at looks", metric=False),
    Column("next_dz_w", "float", "<s_w, u>", "move of z_w on fresh pairs that this one update makes, at looks"),
    Column("next_dz_l", "float", "<s_l, u>", "move of z_l on fresh pairs that this one update makes, at looks"),
    Column("batch_dz_w", "float", "<s_w, u>", "move of z_w on the batch itself, pairs weighed by incentive, at looks"),
    Column("batch_dz_l", "float", "<s_l, u>", "move of z_l on the batch itself, pairs weighed by incentive, at looks"),
    Column(
        "true_band_lower", "float", "log r", "ratio at which the update leaves z_w of fresh pairs as it is, at looks"
    ),
    Column(
        "true_band_upper", "float", "log r", "ratio at which the update leaves z_l of fresh pairs as it is, at looks"
    ),
    Column(
        "fresh_drift_w", "float", "z_w - z_w(0)", "how far z_w of fresh pairs is from where training began, at looks"
    ),
    Column(
        "fresh_drift_l", "float", "z_l - z_l(0)", "how far z_l of fresh pairs is from where training began, at looks"
    ),
    Column("guarding", "bool", "", "the winner of fresh pairs fell past the guard: calibration stepped back"),
    Column("log_s_w_full", "float", "log|s_w|", "winner score over all trained parameters, where asked for"),
    Column("log_s_l_full", "float", "log|s_l|", "loser score over all trained parameters, where asked for"),
    Column("rho_full", "float", "rho", "cosine of the scores over all trained parameters"),
    Column("log_r_star_full", "float", "log r*", "centre of the band over all trained parameters"),
    Column("band_lower_full", "float", "log r* + log rho", "its lower edge"),
    Column("band_upper_full", "float", "log r* - log rho", "its upper edge"),
    Column("in_band_full", "float", "", "1 where the update made lies inside it, else 0"),
    Column("rho_exact", "float", "rho", "cosine of the exact head scores, at steps where a sketch was checked"),
    Column("log_r_star_exact", "float", "log r*", "centre of the band by the exact head scores, at those steps"),
    Column("probe_z_w", "float", "z_w", "chosen log-likelihood on the fixed probe set, when measured"),
    Column("probe_z_l", "float", "z_l", "rejected log-likelihood on the fixed probe set, when measured"),
    Column("probe_ranked", "float", "", "share of the probe pairs with z_w > z_l"),
    Column("probe_accuracy", "float", "", "share of them whose margin grew since training began; one half there"),
    Column("probe_kl", "float", "KL", "KL to the start model per token of the probe's chosen answers"),
    Column("probe_entropy", "float", "H", "entropy of the next token, mean over the same tokens"),
    Column("probe_logp_w", "float", "", "log-probability of those tokens, mean per token"),
    Column("probe_logp_greedy", "float", "", "log-probability of the likeliest token in their places: squeezing"),
    Column("probe_logp_other", "float", "", "log-probability per token of another prompt's chosen answer"),
    Column("probe_logp_shuffled", "float", "", "log-probability per token of the chosen answer, words shuffled"),
    Column("pathway_realised", "str", "", "pathway on the probe set since the last measurement", metric=False),
    Column("grad_norm", "float", "", "gradient norm before clipping; not finite where float16 overflowed"),
    Column("learning_rate", "float", "eta", "learning rate of this step"),
    Column("tokens", "int", "", "tokens of the step, prompts included"),
    Column("padding", "float", "", "share of the tokens computed that were padding"),
    Column("seconds", "float", "", "wall-clock seconds of the step"),
)

Pathway = Literal["i", "ii", "iii", "reversed", "undefined"]

#: The pathways of the words above (paper, section 3.1) and what they mean.
PATHWAYS: dict[Pathway, str] = {
    "i": "both likelihoods rise",
    "ii": "both likelihoods fall",
    "iii": "the winner is preserved, the loser suppressed",
    "reversed": "the winner falls, the loser rises",
    "undefined": "no update to judge: both sides inactive, both scores zero, or a non-finite value",
}


def pathway_of(change_w: float, change_l: float) -> Pathway:
    """The pathway of two likelihood changes, predicted or realised (paper, Table 2)."""
    if math.isnan(change_w) or math.isnan(change_l):
        return "undefined"
    if change_w >= 0 and change_l <= 0:
        return "iii"
    if change_w > 0 and change_l > 0:
        return "i"
    if change_w < 0 and change_l < 0:
        return "ii"
    return "reversed"


BY_NAME = {column.name: column for column in COLUMNS}
#: What stands where a column was not measured, by its kind.
EMPTY = {"float": math.nan, "str": "", "bool": False, "int": 0}
METRICS = tuple(column.name for column in COLUMNS if column.metric)

DYNAMICS = "dynamics/"  # in front of everything that a run's step records say of it as a whole
IN_BAND = f"{DYNAMICS}in_band"  # share of the steps (so far) inside the band at the head or adapters
