"""The estimators of the score directions, each against what it estimates."""

import math

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from rcray.calibration import plain_scores, score_parameters, summarise
from rcray.calibration.scores import attach_sketch
from rcray.data.batch import collate
from rcray.data.encode import EncodedPair
from rcray.errors import ConfigError
from rcray.models.likelihood import side_logps

SIZE = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=97, **SIZE)).double()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)

    def tokens(count):
        return tuple(torch.randint(1, 97, (count,), generator=generator).tolist())

    return collate([EncodedPair(str(i), tokens(5), tokens(7), tokens(9)) for i in range(3)], range(3))


def likelihoods(model, batch):
    return side_logps(model, batch.chosen).sums, side_logps(model, batch.rejected).sums


def scores(model, batch, estimator):
    parameters = score_parameters(model, estimator)
    return summarise(*plain_scores(*likelihoods(model, batch), parameters), pairs=3)


def test_head_scores_are_outer_products_of_residuals_and_hidden_states(model, batch):
    """s at the head is the sum over answer tokens of (one-hot - p) h^T, over the number of pairs."""
    exact = scores(model, batch, "head")
    sides = []
    for side in (batch.chosen, batch.rejected):
        hidden = model.base_model(input_ids=side.ids, attention_mask=side.attention).last_hidden_state[:, :-1]
        p = (hidden @ model.get_output_embeddings().weight.T).softmax(-1)
        residual = torch.nn.functional.one_hot(side.ids[:, 1:], 97) - p
        sides.append(torch.einsum("bt,btv,bth->vh", side.response[:, 1:].double(), residual, hidden).detach() / 3)
    assert exact.log_s_w == pytest.approx(math.log(sides[0].norm()), abs=1e-9)
    assert exact.log_s_l == pytest.approx(math.log(sides[1].norm()), abs=1e-9)
    assert exact.rho == pytest.approx(float((sides[0] * sides[1]).sum() / sides[0].norm() / sides[1].norm()), abs=1e-9)


def test_sketch_leaves_the_model_alone_and_approaches_the_head(model, batch):
    exact = scores(model, batch, "head")
    before = [z.clone() for z in likelihoods(model, batch)]
    names = list(model.state_dict())
    errors = {}
    for columns in (8, 2048):
        probe = attach_sketch(model, columns)
        summary = summarise(*plain_scores(*likelihoods(model, batch), [probe]), pairs=3)
        errors[columns] = max(abs(getattr(summary, n) - getattr(exact, n)) for n in ("log_s_w", "log_s_l", "rho"))
        assert probe.abs().max() == 0
    assert all(torch.equal(a, b) for a, b in zip(before, likelihoods(model, batch), strict=True))
    assert list(model.state_dict()) == names
    assert errors[2048] < 0.06  # the error falls as 1 / sqrt(columns)
    assert errors[8] < 0.8


def test_sketch_is_the_gradient_times_the_projection(model, batch):
    """Exactly G R: with an identity in place of the random R it is the head's gradient itself."""
    head = model.get_output_embeddings()
    z_w, _ = likelihoods(model, batch)
    (gradient,) = torch.autograd.grad(z_w.sum(), [head.weight])
    probe = attach_sketch(model, columns=16, seed=3)
    projection = torch.randn(64, 16, generator=torch.Generator().manual_seed(3)) / 4
    (sketched,) = torch.autograd.grad(likelihoods(model, batch)[0].sum(), [probe])
    assert torch.allclose(sketched, gradient @ projection.double(), atol=1e-10)


def test_adapters_are_those_of_the_last_block(model, batch):
    lora = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["query_key_value", "dense"]))
    for name, parameter in lora.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    chosen = score_parameters(lora, "adapters")
    names = [name for name, p in lora.named_parameters() if any(p is c for c in chosen)]
    assert len(names) == 4
    assert all(".layers.2." in name and "lora_" in name for name in names)
    exact = scores(lora, batch, "adapters")
    z_w, _ = likelihoods(lora, batch)
    grads = torch.autograd.grad(z_w.sum() / 3, chosen)
    assert exact.log_s_w == pytest.approx(0.5 * math.log(sum(g.square().sum() for g in grads)), abs=1e-9)


def test_an_estimator_that_does_not_fit_the_model_is_refused(model):
    with pytest.raises(ConfigError, match=r"scores: 'adapters' needs a model with trainable LoRA"):
        score_parameters(model, "adapters")
    lora = get_peft_model(model, LoraConfig(r=2, target_modules=["dense"]))
    for estimator in ("head", "sketch"):
        with pytest.raises(ConfigError, match=f"scores: '{estimator}' needs a trainable output head"):
            score_parameters(lora, estimator)
