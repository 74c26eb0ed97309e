"""What held and what did not, computed from the results: sentences with their numbers, no opinion.

A verdict needs more than two standard errors, and with several seeds the 95% t interval; less is `unclear`. Four
claims are checked for every comparison with and without RC: updates inside the band, winner preserved, loser
suppressed, accuracy raised. The band is that of the updates made, where looks saw it; else the paper's, by its place.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rcray.aggregate.collect import CellResult
from rcray.aggregate.estimates import Estimate
from rcray.aggregate.frame import ACCURACY, DRIFT_L, DRIFT_W, likelihood_unit, scores_at
from rcray.aggregate.groups import Comparison, Setting, difference
from rcray.aggregate.summary import AGREEMENT, AGREEMENT_HEAD, IN_TRUE_BAND, LOOKS_III
from rcray.aggregate.tables import number, percent
from rcray.records.columns import IN_BAND
from rcray.records.states import State

Verdict = Literal["held", "unclear", "not held"]

INSIDE = 0.9  # share of steps from which a run counts as inside the band
_NAMED = 3  # runs that a sentence names
_ERRORS = 2.0  # standard errors that a difference of one seed must exceed; with several, Student's t at 95%


@dataclass(frozen=True)
class Check:
    """One claim about RC, and whether this comparison bears it out."""

    claim: str
    verdict: Verdict
    text: str
    without: Verdict = "unclear"  # the same question asked of the run without RC


@dataclass(frozen=True)
class Finding:
    """One comparison with and without RC; `missing` says why there are no checks."""

    title: str
    model: str
    checks: tuple[Check, ...] = ()
    missing: str = ""


def check_claims(comparisons: Sequence[Comparison]) -> list[Finding]:
    """A finding per pair of rows."""
    findings = []
    for comparison in comparisons:
        if not comparison.with_rc:
            findings.append(Finding(comparison.title, comparison.model, missing="there is no cell with RC"))
        for setting in comparison.with_rc:
            missing = _missing(comparison.without, setting)
            checks = () if missing or comparison.without is None else _checks(comparison.without, setting)
            findings.append(Finding(comparison.title_of(setting), comparison.model, checks, missing))
    return findings


def overall(findings: Sequence[Finding], results: Sequence[CellResult]) -> list[str]:
    """The whole experiment in a few sentences."""
    compared = [finding for finding in findings if finding.checks]
    lines = []
    if compared:
        inside, winner, loser, raised = zip(*(finding.checks for finding in compared), strict=True)
        accuracy = [check.verdict for check in raised]
        n = len(compared)
        for claim in dict.fromkeys(check.claim for check in inside):
            own = [check for check in inside if check.claim == claim]
            lines.append(f"With RC at least {INSIDE:.0%} of updates lay {claim} in {_of(own)}.")
        lines.append(f"With RC the winner was preserved in {_of(winner)}, and the loser suppressed in {_of(loser)}.")
        lines.append(
            f"RC raised held-out accuracy in {accuracy.count('held')} of {n}, lowered it in "
            f"{accuracy.count('not held')}, and made no clear difference in {accuracy.count('unclear')}."
        )
    without = [finding for finding in findings if not finding.checks]
    if without:
        lines.append(f"No comparison yet for {', '.join(f'{f.title} on {f.model}' for f in without)}.")
    lost = sum("winner lost" in result.note for result in results)
    if lost:
        lines.append(
            f"{lost} of {len(results)} runs lost their winner: the chosen answers are gone, whatever the margin."
        )
    for metric, said in (
        (AGREEMENT, "The pathway predicted for the updates was the one seen on the probe set in {:.0%} of {} intervals "
                    "between its measurements."),
        (AGREEMENT_HEAD, "The paper's band at the head or the last adapters named it in {:.0%} of {}."),
    ):  # fmt: skip
        shown = [result for result in results if result.ok and metric in result.metrics]
        if metric == AGREEMENT:  # of a prediction: the band at the head has the next line
            shown = [result for result in shown if not result.predicted_at_head]
        if measured := [result.metrics[metric] for result in shown]:
            intervals = sum(row.n for row in measured)
            lines.append(said.format(sum(row.value * row.n for row in measured) / intervals, intervals))
    return [*lines, *_disagreements(results)]


def _disagreements(results: Sequence[CellResult]) -> Iterator[str]:
    apart = [result for result in results if result.bands_disagree]
    if not apart:
        return
    apart.sort(key=lambda result: -abs(result.value(IN_BAND) - result.value(LOOKS_III)))  # stable
    several = len({result.seed for result in apart}) > 1
    named = "; ".join(
        f"{result.cell.config.label}{f', seed {result.seed}' if several else ''} ({result.bands_disagree})"
        for result in apart[:_NAMED]
    )
    which = "it is" if len(apart) == 1 else "most of all" if len(apart) > _NAMED else "they are"
    place = scores_at(result.cell.config for result in apart)
    yield (
        f"The band at the {place} and the updates made tell {len(apart)} of {len(results)} runs differently; {which} "
        f"{named}."
    )


def _of(checks: Sequence[Check]) -> str:
    held, unclear = (sum(check.verdict == word for check in checks) for word in ("held", "unclear"))
    before = sum(check.without == "held" for check in checks)
    doubt = f"{unclear} unclear; " if unclear else ""
    return (
        f"{held} of {len(checks)} {'comparison' if len(checks) == 1 else 'comparisons'} ({doubt}without RC: {before})"
    )


def _missing(without: Setting | None, setting: Setting) -> str:
    if without is None:
        return "there is no cell without RC"
    both = {"without RC": without.word, "with RC": setting.word}
    states = [f"{name} is {word}" for name, word in both.items() if word != State.OK]
    return " and ".join(f"the cell {state}" for state in states)


def _checks(without: Setting, setting: Setting) -> tuple[Check, ...]:
    return (
        _inside(without, setting),
        _drift("winner preserved", "z_w", DRIFT_W, 1, without, setting),
        _drift("loser suppressed", "z_l", DRIFT_L, -1, without, setting),
        _accuracy(without, setting),
    )


def _inside(without: Setting, setting: Setting) -> Check:
    claim = "inside the band of the update"
    before, after = without.metric(IN_TRUE_BAND), setting.metric(IN_TRUE_BAND)
    head, head_after = without.metric(IN_BAND), setting.metric(IN_BAND)
    place = f"at the {scores_at([without.config, setting.config])}"
    beside = ""
    if before is None or after is None:  # nobody looked at fresh pairs
        claim, before, after = f"inside the band {place}", head, head_after
    elif head is not None and head_after is not None:
        beside = f" ({place} {head.value:.0%} and {head_after.value:.0%})"
    if before is None or after is None:
        return Check(claim, "unclear", "no step records")
    text = f"{before.value:.0%} of steps without RC, {after.value:.0%} with it{beside}"
    already: Verdict = "held" if before.value >= INSIDE else "not held"
    if after.value >= INSIDE:
        return Check(claim, "held", f"{text}; so it was without RC" if already == "held" else text, already)
    helped = "more, but still often outside" if after.value > before.value else "RC did not help"
    return Check(claim, "not held", f"{text}: {helped}", already)


def _drift(claim: str, symbol: str, metric: str, wanted: int, without: Setting, setting: Setting) -> Check:
    before, after = without.metric(metric), setting.metric(metric)
    if before is None or after is None:
        return Check(claim, "unclear", "not evaluated")
    unit = likelihood_unit([setting.config])
    digits = 1 if unit == "nats" else 3
    text = f"{symbol} {_signed(before.value, digits)} {unit} without RC, {_signed(after.value, digits)} with it"
    verdict, already = _moved(after, wanted), _moved(before, wanted)
    better = verdict != "held" and already == "held"
    return Check(claim, verdict, f"{text}: better without RC" if better else text, already)


def _moved(drift: Estimate, wanted: int) -> Verdict:
    toward, error = wanted * drift.value, _error(drift)
    if wanted > 0 and toward >= 0:
        return "held"  # preserved means not down: no change is enough for the winner, not for the loser
    if math.isnan(error) or abs(toward) <= error:
        return "unclear"
    return "held" if toward > 0 else "not held"


def _accuracy(without: Setting, setting: Setting) -> Check:
    claim = "accuracy raised"
    before, after = without.metric(ACCURACY), setting.metric(ACCURACY)
    delta = difference(without, setting, ACCURACY)
    if before is None or after is None or delta is None:
        return Check(claim, "unclear", "not evaluated")
    shares = f"{before.value:.1%} without RC, {after.value:.1%} with it"
    text = f"{shares} ({_signed(percent(delta.value), 1)} points)"
    error = _error(delta)
    if math.isnan(error) or abs(delta.value) <= error:
        return Check(claim, "unclear", f"{text}: no clear difference")
    return Check(claim, "held", text) if delta.value > 0 else Check(claim, "not held", f"{text}: lower with RC")


def _error(estimate: Estimate) -> float:
    if estimate.seeds > 1 or estimate.stderr is None:
        return estimate.half_width
    return _ERRORS * estimate.stderr


def _signed(value: float, digits: int) -> str:
    return number(value, digits, sign=True).replace("-", "−")
