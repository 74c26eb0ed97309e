"""The theorem on a real transformer: predicted signs against what one plain SGD step does to the likelihoods.

Float64, one pair per batch and scores over all parameters, so that the theorem applies without approximation: what
is left is the step's second order.
"""

import math

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from rcray.calibration import Calibrator, calibrate, predicted_pathway, rates, score_parameters
from rcray.objectives import TokenLogps, objective

VOCABULARY, PROMPT, STEPS = 64, 4, 10
LEARNING_RATE = 1e-7
#: Changes below this share of the step's own size are ruled by its second order.
NOISE = 1e-5

OBJECTIVES = {
    "dpo": {"beta": 0.5},
    "ipo": {},
    "simpo": {},
    "cpo": {"lam": 0.2},
    "slic-hf": {"gamma": 20.0},
    "bpo": {},
    "kto": {"beta": 0.2},
    "ddro": {},
    "dil-bce": {},
    "dil-lsif": {},
    "tdpo": {"beta": 0.5},
    "ti-dpo": {"beta": 0.5},
}


def tiny(seed):
    """Scaled-dot-product attention: the eager one takes its softmax in float32, and drowns so small a step."""
    torch.manual_seed(seed)
    config = GPTNeoXConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32, attn_implementation="sdpa",
    )  # fmt: skip
    model = GPTNeoXForCausalLM(config).double().eval()
    with torch.no_grad():  # away from the near-uniform start, where all scores look alike
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def random_pair(generator):
    """Prompt and two responses; they share a first part, as real answers do, so that the scores are correlated."""
    prompt = torch.randint(0, VOCABULARY, (PROMPT,), generator=generator)
    shared = torch.randint(0, VOCABULARY, (6,), generator=generator)
    lengths = torch.randint(0, 13, (2,), generator=generator).tolist()
    return [
        torch.cat([prompt, shared, torch.randint(0, VOCABULARY, (length,), generator=generator)]) for length in lengths
    ]


def log_probs(model, ids):
    logits = model(input_ids=ids[None]).logits[0, PROMPT - 1 : -1]
    return logits.log_softmax(-1)


def tokens_of(model, reference, sides):
    per_side = []
    for ids in sides:
        policy = log_probs(model, ids)
        with torch.no_grad():
            ref = log_probs(reference, ids)
        response = ids[PROMPT:, None]
        kl = (ref.exp() * (ref - policy)).sum(-1)
        per_side.append((policy.gather(-1, response).T, ref.gather(-1, response).T, kl[None]))
    (logp_w, ref_w, kl_w), (logp_l, ref_l, kl_l) = per_side
    return TokenLogps(logp_w, logp_l, torch.ones_like(logp_w), torch.ones_like(logp_l), ref_w, ref_l, kl_w, kl_l)


def weights_of(tokens):
    """TI-DPO's statistic holds its weights still during a step; the probe after the step must use the same ones."""
    return (1 - tokens.logp_w.detach().exp(), 1 - tokens.logp_l.detach().exp())


def probe(name, bound, tokens, weights):
    """z_w and z_l after a step: the same functions of the parameters as before it."""
    if name == "ti-dpo":
        return (weights[0] * tokens.logp_w).sum().item(), (weights[1] * tokens.logp_l).sum().item()
    pairs = bound.statistics(tokens, "sum")
    return pairs.z_w.item(), pairs.z_l.item()


def trajectory(name, calibrated):
    """Predictions and realised changes of consecutive steps, each on a new pair."""
    bound = objective(name, **OBJECTIVES[name])
    model, reference = tiny(0), tiny(1)
    with torch.no_grad():  # a nearby reference, so that the log-ratios are of training size
        for ref, own in zip(reference.parameters(), model.parameters(), strict=True):
            ref.copy_(own + 0.1 * ref)
    generator = torch.Generator().manual_seed(3)
    parameters = score_parameters(model, "full")
    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE)
    calibrator = Calibrator(ema_beta=0.9) if calibrated else None
    for _ in range(STEPS):
        sides = random_pair(generator)
        tokens = tokens_of(model, reference, sides)
        pairs = bound.statistics(tokens, "sum")
        done = calibrate(bound, pairs.z_w, pairs.z_l, parameters=parameters, calibrator=calibrator, pairs=pairs)
        optimizer.zero_grad()
        done.loss.sum().backward()
        velocity = math.sqrt(sum(p.grad.square().sum().item() for p in parameters if p.grad is not None))
        optimizer.step()
        with torch.no_grad():
            after = probe(name, bound, tokens_of(model, reference, sides), weights_of(tokens))
        yield done.report, (after[0] - pairs.z_w.item(), after[1] - pairs.z_l.item()), velocity


@pytest.mark.parametrize("calibrated", [False, True], ids=["plain", "calibrated"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_one_small_step_moves_the_likelihoods_as_predicted(name, calibrated):
    signs = []
    for report, (change_w, change_l), velocity in trajectory(name, calibrated):
        after = report.calibrated
        predicted = rates(after)
        # LEARNING_RATE |velocity| |s|: the largest change a step of this length can make
        size_w, size_l = (LEARNING_RATE * velocity * math.exp(log_s) for log_s in (after.log_s_w, after.log_s_l))
        if abs(change_w) > NOISE * size_w:
            signs.append((change_w > 0) == (predicted.z_w > 0))
        if abs(change_l) > NOISE * size_l:
            signs.append((change_l > 0) == (predicted.z_l > 0))
        # not only the signs: one common factor between prediction and step
        largest = max(abs(predicted.z_w), abs(predicted.z_l)) * max(abs(change_w), abs(change_l))
        assert change_w * predicted.z_l == pytest.approx(change_l * predicted.z_w, abs=1e-4 * largest)
        if calibrated and report.skipped is None:
            assert report.slack >= -1e-9
    assert len(signs) >= STEPS, "too few changes above the noise to judge"
    assert sum(signs) >= 0.95 * len(signs)


def test_the_steps_are_not_all_alike():
    """Without calibration the pairs fall on several pathways, so that the test above could fail; with it, on (iii)."""
    plain = [report for name in ("dpo", "cpo", "dil-bce") for report, _, _ in trajectory(name, calibrated=False)]
    assert {predicted_pathway(report.stats) for report in plain} >= {"i", "ii", "iii"}
    assert all(report.stats.rho > 0.05 for report in plain)
    inside = [r for r, _, _ in trajectory("dpo", calibrated=True) if not r.clipped]
    assert inside and {predicted_pathway(report.calibrated) for report in inside} == {"iii"}
