"""The disentanglement band against the theorem, with score vectors written out (paper, section 3.2)."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rcray.calibration import Calibrator, Statistics, band, observe, pathway_of, predicted_pathway, rates, summarise

FEW = settings(max_examples=200, deadline=None)
#: Closer to an edge than this, rounding decides the sign.
NEAR = 1e-6

log_incentive = st.floats(-8, 8)
component = st.floats(-5, 5)
vectors = st.lists(st.tuples(component, component), min_size=2, max_size=6)
log_norm = st.floats(-5, 5)


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def statistics_of(d_w, d_l, s_w, s_l):
    """The statistics of explicit incentives and score vectors, through the code that a training step uses."""
    scores = summarise([torch.tensor(s_w, dtype=torch.float64)], [torch.tensor(s_l, dtype=torch.float64)], pairs=1)

    def log_abs(d):
        return math.log(abs(d)) if d else -math.inf

    def sign(d):
        return (d > 0) - (d < 0)

    return Statistics(log_abs(d_w), log_abs(d_l), sign(d_w), sign(d_l), scores.log_s_w, scores.log_s_l, scores.rho)


def derivatives(d_w, d_l, s_w, s_l):
    """Theorem 3.1, term by term: the parameters move along d_w s_w - d_l s_l."""
    velocity = [d_w * x - d_l * y for x, y in zip(s_w, s_l, strict=True)]
    return dot(s_w, velocity), dot(s_l, velocity)


@st.composite
def situations(draw, signs=(1,)):
    """Incentives and two score vectors of moderate size, neither of them zero."""
    rows = draw(vectors)
    s_w, s_l = [row[0] for row in rows], [row[1] for row in rows]
    assume(dot(s_w, s_w) > 1e-4 and dot(s_l, s_l) > 1e-4)
    sign = draw(st.sampled_from(signs))
    return sign * math.exp(draw(log_incentive)), sign * math.exp(draw(log_incentive)), s_w, s_l


def clear_of_zero(value, situation):
    d_w, d_l, s_w, s_l = situation
    size = (abs(d_w) + abs(d_l)) * max(dot(s_w, s_w), dot(s_l, s_l))
    return abs(value) > 1e-9 * size


@FEW
@given(situation=situations(signs=(1, -1)))
def test_rates_have_the_signs_and_proportions_of_the_theorem(situation):
    true_w, true_l = derivatives(*situation)
    assume(clear_of_zero(true_w, situation) and clear_of_zero(true_l, situation))
    rate = rates(statistics_of(*situation))
    assert math.copysign(1, rate.z_w) == math.copysign(1, true_w)
    assert math.copysign(1, rate.z_l) == math.copysign(1, true_l)
    # one common positive factor
    assert rate.z_w * true_l == pytest.approx(rate.z_l * true_w, rel=1e-6)


@FEW
@given(situation=situations(signs=(1, -1)))
def test_the_margin_follows_the_corollary(situation):
    """dm/dt = d_w |s_w|^2 + d_l |s_l|^2 - (d_w + d_l) <s_w, s_l> (Corollary 3.2)."""
    d_w, d_l, s_w, s_l = situation
    corollary = d_w * dot(s_w, s_w) + d_l * dot(s_l, s_l) - (d_w + d_l) * dot(s_w, s_l)
    true_w, _ = derivatives(*situation)
    assume(clear_of_zero(corollary, situation) and clear_of_zero(true_w, situation))
    rate = rates(statistics_of(*situation))
    assert rate.margin * true_w == pytest.approx(rate.z_w * corollary, rel=1e-5)


@FEW
@given(situation=situations())
def test_inside_the_band_exactly_when_the_theorem_says_pathway_iii(situation):
    stats = statistics_of(*situation)
    assume(stats.rho < 1 - 1e-9)
    here, slack = band(stats), band(stats).slack(stats.log_r)
    assume(abs(slack) > NEAR)
    true_w, true_l = derivatives(*situation)
    assume(clear_of_zero(true_w, situation) and clear_of_zero(true_l, situation))
    inside = here.lower <= stats.log_r <= here.upper
    assert inside == (slack >= 0)
    assert inside == (true_w >= 0 and true_l <= 0)
    assert predicted_pathway(stats) == pathway_of(true_w, true_l)
    if not inside:  # Table 2: below the band both fall, above it both rise
        assert predicted_pathway(stats) == ("ii" if stats.log_r < here.lower else "i")


@FEW
@given(situation=situations())
def test_reversed_incentives_flip_both_signs(situation):
    d_w, d_l, s_w, s_l = situation
    forward, backward = statistics_of(d_w, d_l, s_w, s_l), statistics_of(-d_w, -d_l, s_w, s_l)
    assert backward.reversed and not forward.reversed
    assert backward.log_r == forward.log_r and backward.problem() is None
    assert (rates(backward).z_w, rates(backward).z_l) == (-rates(forward).z_w, -rates(forward).z_l)
    flipped = {"iii": "reversed", "i": "ii", "ii": "i"}
    if rates(forward).z_w and rates(forward).z_l:
        assert predicted_pathway(backward) == flipped[predicted_pathway(forward)]


bands = st.builds(
    lambda log_d_w, log_d_l, log_s_w, log_s_l, rho: Statistics(log_d_w, log_d_l, 1, 1, log_s_w, log_s_l, rho),
    log_incentive, log_incentive, log_norm, log_norm, st.floats(0.01, 0.999),
)  # fmt: skip


@FEW
@given(stats=bands)
def test_the_slack_is_largest_at_the_centre(stats):
    """Proposition 3.3 on a fine grid, with Eq. 10 written as the paper has it."""
    here = band(stats)
    ratio = stats.log_s_l - stats.log_s_w
    grid = [here.lower + (here.upper - here.lower) * i / 1000 for i in range(1001)]

    def equation_10(log_r):
        return min(log_r - math.log(stats.rho) - ratio, ratio - math.log(stats.rho) - log_r)

    for log_r in grid[::97]:
        assert here.slack(log_r) == pytest.approx(equation_10(log_r), abs=1e-9)
    best = max(grid, key=here.slack)
    assert best == pytest.approx(here.log_r_star, abs=(here.upper - here.lower) / 1000 + 1e-9)
    assert here.log_r_star == pytest.approx(ratio)
    assert all(here.slack(log_r) <= here.slack(here.log_r_star) + 1e-12 for log_r in grid)


@FEW
@given(stats=bands)
def test_the_width_is_twice_log_rho(stats):
    here = band(stats)
    assert here.upper - here.lower == pytest.approx(2 * abs(math.log(stats.rho)), abs=1e-9)
    assert here.lower == pytest.approx(stats.log_s_l - stats.log_s_w + math.log(stats.rho), abs=1e-9)
    assert here.upper == pytest.approx(stats.log_s_l - stats.log_s_w - math.log(stats.rho), abs=1e-9)


@FEW
@given(stats=bands)
def test_calibration_without_averages_lands_on_the_centre(stats):
    """Proposition 3.4: r_rc = r*, and from there pathway (iii)."""
    done = Calibrator(ema_beta=0.0, clip=False).update(stats)
    assert done.calibrated.log_r == pytest.approx(stats.log_s_l - stats.log_s_w, abs=1e-9)
    assert done.slack == pytest.approx(-math.log(stats.rho), abs=1e-9)
    assert predicted_pathway(done.calibrated) == "iii"
    # the product of the incentives is untouched: alpha on one side, 1/alpha on the other
    assert done.calibrated.log_d_w + done.calibrated.log_d_l == pytest.approx(stats.log_d_w + stats.log_d_l, abs=1e-9)
    assert done.alpha**2 == pytest.approx(math.exp(stats.log_s_l - stats.log_s_w - stats.log_r), rel=1e-9)


@FEW
@given(stats=bands, rho=st.floats(-1, 0))
def test_scores_that_do_not_fight_leave_the_band_unbounded(stats, rho):
    apart = Statistics(stats.log_d_w, stats.log_d_l, 1, 1, stats.log_s_w, stats.log_s_l, rho)
    here = band(apart)
    assert (here.lower, here.upper) == (-math.inf, math.inf)
    assert here.slack(apart.log_r) == math.inf and here.clip(123.0) == 123.0
    assert predicted_pathway(apart) == "iii" and observe(apart).skipped is None
    done = Calibrator(ema_beta=0.0).update(apart)
    assert done.calibrated.log_r == pytest.approx(here.log_r_star, abs=1e-9) and not done.clipped


def test_parallel_scores_leave_a_single_point():
    """rho = 1: the band is its centre; the calibrated update stands still on both sides."""
    stats = Statistics(1.0, 0.0, 1, 1, 0.5, 2.0, 1.0)
    here = band(stats)
    assert here.lower == here.upper == here.log_r_star == 1.5
    assert predicted_pathway(stats) == "ii"
    done = Calibrator().update(stats)
    assert done.calibrated.log_r == pytest.approx(1.5)
    assert rates(done.calibrated).z_w == pytest.approx(0.0, abs=1e-15)


def test_a_cosine_rounded_past_one_is_one():
    assert band(Statistics(0, 0, 1, 1, 0, 0, 1.0000000001)).half_width == 0.0
    parallel = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    assert summarise([parallel], [3 * parallel], pairs=1).rho <= 1.0


def test_an_inactive_loser_is_pathway_i_and_nothing_at_all_is_undefined():
    assert predicted_pathway(Statistics(0.0, -math.inf, 1, 0, 0.0, 0.0, 0.5)) == "i"
    assert predicted_pathway(Statistics(-math.inf, 0.0, 0, 1, 0.0, 0.0, 0.5)) == "ii"
    assert predicted_pathway(Statistics(-math.inf, -math.inf, 0, 0, 0.0, 0.0, 0.5)) == "undefined"
    assert predicted_pathway(Statistics(math.nan, 0.0, 0, 1, 0.0, 0.0, 0.5)) == "undefined"
    assert predicted_pathway(Statistics(0.0, math.nan, 1, 0, 0.0, 0.0, 0.5)) == "undefined"
    assert predicted_pathway(Statistics(0.0, 0.0, 1, 1, 0.0, math.nan, math.nan)) == "undefined"


@pytest.mark.parametrize("log_scale", [-5000.0, 5000.0])
def test_signs_survive_incentives_no_float_can_hold(log_scale):
    """e^5000 overflows, its logarithm does not."""
    here = Statistics(log_scale, log_scale + 1, 1, 1, 0.0, 0.0, 0.9)
    assert predicted_pathway(here) == "ii"
    assert predicted_pathway(Statistics(log_scale + 1, log_scale, 1, 1, 0.0, 0.0, 0.9)) == "i"
    assert predicted_pathway(Statistics(log_scale, log_scale, 1, 1, 0.0, 0.0, 0.9)) == "iii"


@pytest.mark.parametrize(
    ("changes", "pathway"),
    [((1, -1), "iii"), ((0, -1), "iii"), ((1, 0), "iii"), ((1, 1), "i"), ((-1, -1), "ii"), ((-1, 1), "reversed"),
     ((math.nan, 1), "undefined"), ((1, math.nan), "undefined")],
)  # fmt: skip
def test_pathways_by_the_signs_of_the_changes(changes, pathway):
    assert pathway_of(*changes) == pathway


@pytest.mark.parametrize("rho", [0.05, 0.3, 0.77, 0.999])
@pytest.mark.parametrize("edge", ["lower", "upper"])
def test_a_ratio_clipped_onto_an_edge_is_inside_whatever_its_last_bit(edge, rho):
    """At the edge one rate is zero (Table 2: >= 0 and <= 0); rounding to either side must not flip the pathway."""
    for log_s_w in (-3.1, 0.0, 7.7):
        stats = Statistics(0.0, 0.0, 1, 1, log_s_w, 0.4, rho)
        target = getattr(band(stats), edge)
        for nudge in (-1e-15, 0.0, 1e-15):
            clipped = replace(stats, log_d_w=target + nudge)
            assert predicted_pathway(clipped) == "iii"
        outside = target + (-1e-3 if edge == "lower" else 1e-3)
        assert predicted_pathway(replace(stats, log_d_w=outside)) == ("ii" if edge == "lower" else "i")
