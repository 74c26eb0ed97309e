"""KL to the start model, entropy and the greedy token, chunk by chunk, equal a plain computation over full logits."""

import copy

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

import rcray.models.head as chunked
from rcray.data.batch import collate
from rcray.data.encoded import EncodedPair, EncodedPairs, EncodeReport
from rcray.models.distribution import Watch
from rcray.models.inference import pair_sums, plain_sums

CPU = torch.device("cpu")
SIZES = ((9, 5, 4), (3, 7, 6), (12, 2, 9), (4, 4, 1), (1, 6, 6))  # prompt, chosen, rejected: packed rows and plain ones


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=61, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    return GPTNeoXForCausalLM(config).double().eval()


@pytest.fixture
def pairs():
    generator = torch.Generator().manual_seed(1)

    def words(count):
        return tuple(torch.randint(1, 61, (count,), generator=generator).tolist())

    return EncodedPairs([EncodedPair(str(i), *map(words, size)) for i, size in enumerate(SIZES)], EncodeReport())


def disturb(model):
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(0.05 * torch.randn_like(p))


def plainly(model, start, pairs):
    """Every logit of every token of the chosen rows, of both models."""
    side = collate(pairs.pairs, range(len(pairs.pairs))).chosen
    log_p, log_q = (
        one(input_ids=side.ids, attention_mask=side.attention).logits[:, :-1].log_softmax(-1) for one in (model, start)
    )
    answers = side.response[:, 1:].bool()
    p = log_p.exp()
    of_tokens = (p * (log_p - log_q)).sum(-1), -(p * log_p).sum(-1), log_p.max(-1).values
    return [values[answers].mean().item() for values in of_tokens]


@pytest.mark.parametrize("sums", [pair_sums, plain_sums])
@pytest.mark.parametrize("trained_head", [True, False])
def test_a_reading_equals_full_logits(model, pairs, sums, trained_head, monkeypatch):
    monkeypatch.setattr(chunked, "chunk_tokens", lambda vocabulary: 3)
    model.get_output_embeddings().requires_grad_(trained_head)
    start, watch = copy.deepcopy(model), Watch(model.get_output_embeddings())

    def read():
        watch.begin()
        sums(model, pairs.pairs, pairs.lengths, range(len(pairs.pairs)), CPU, watch=watch)
        seen = watch.end()
        return [seen.kl, seen.entropy, seen.greedy]

    with torch.no_grad():
        first = read()
        assert first[0] == pytest.approx(0, abs=1e-12)
        assert first == pytest.approx(plainly(model, start, pairs), abs=1e-12)
        disturb(model)
        moved = read()
        assert moved[0] > 1e-3
        assert moved == pytest.approx(plainly(model, start, pairs), abs=1e-12)


def test_a_reading_changes_no_likelihood_and_keeps_no_logits(model, pairs):
    index = range(len(pairs.pairs))
    watch = Watch(model.get_output_embeddings())
    watch.begin()
    with torch.no_grad():
        watched = pair_sums(model, pairs.pairs, pairs.lengths, index, CPU, watch=watch)
        assert torch.equal(watched, pair_sums(model, pairs.pairs, pairs.lengths, index, CPU))
    kept = [tensor.shape[-1] for tensor in watch._start]
    assert set(kept) == {model.config.hidden_size}
    assert sum(len(tensor) for tensor in watch._start) == int(pairs.lengths[:, 1].sum())
