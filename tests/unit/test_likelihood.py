"""Log-likelihoods of answers: against a loop written by hand, and untouched by padding and prompts."""

from types import SimpleNamespace

import pytest
import torch

from rcray.data.batch import Side, collate
from rcray.data.encode import EncodedPair
from rcray.models import head
from rcray.models.capabilities import capabilities_of
from rcray.models.likelihood import SideLogps, sequential_kl, side_logps

#: Rows of different prompt and answer lengths; 5 is a common token id of the tiny vocabulary.
PAIRS = (
    EncodedPair("a", (10, 20, 30), (40, 50), (60, 70, 80, 90, 1)),
    EncodedPair("b", (11,), (21, 31, 41, 51, 61, 71, 1), (22,)),
    EncodedPair("c", (5, 5, 5, 5, 5, 5, 5), (5, 1), (5, 5, 1)),
)


def by_hand(model, prompt, answer):
    """One sequence at a time, one token at a time, no padding."""
    ids = torch.tensor([prompt + answer])
    logits = model(input_ids=ids).logits[0]
    logps = []
    for position in range(len(prompt), len(prompt) + len(answer)):
        row = logits[position - 1]
        logps.append(row[ids[0, position]] - torch.logsumexp(row, 0))
    return torch.stack(logps)


@pytest.fixture
def model(neox):
    return neox.model.double().eval()


def test_equals_a_loop_by_hand(model):
    batch = collate(PAIRS, range(3))
    with torch.no_grad():
        for side, answers in ((batch.chosen, [p.chosen for p in PAIRS]), (batch.rejected, [p.rejected for p in PAIRS])):
            logps = side_logps(model, side)
            for row, (pair, answer) in enumerate(zip(PAIRS, answers, strict=True)):
                expected = by_hand(model, pair.prompt, answer)
                picked = logps.logp[row][logps.mask[row].bool()]
                torch.testing.assert_close(picked, expected, rtol=0, atol=1e-9)
                assert logps.sums[row].item() == pytest.approx(expected.sum().item(), abs=1e-9)
                assert logps.lengths[row].item() == len(answer)


def test_zero_outside_the_answer(model):
    with torch.no_grad():
        logps = side_logps(model, collate(PAIRS, range(3)).chosen)
    outside = logps.logp[~logps.mask.bool()]
    assert outside.numel() > 0 and (outside == 0).all()
    assert (logps.logp[logps.mask.bool()] < 0).all()


def test_padding_does_not_change_a_row(model):
    with torch.no_grad():
        together = side_logps(model, collate(PAIRS, range(3)).rejected)
        for row in range(3):
            alone = side_logps(model, collate(PAIRS, [row]).rejected)
            assert together.sums[row].item() == pytest.approx(alone.sums[0].item(), abs=1e-9)


def test_what_stands_under_the_padding_does_not_matter(model):
    side = collate(PAIRS, range(3)).chosen
    other = Side(torch.where(side.attention.bool(), side.ids, 77), side.attention, side.response)
    assert not torch.equal(side.ids, other.ids)
    with torch.no_grad():
        gap = side_logps(model, side).sums - side_logps(model, other).sums
    assert gap.abs().max() <= 1e-9


class Fixed(torch.nn.Module):
    """A model that answers with given logits; it has no head to show, so its logits are read."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def get_output_embeddings(self):
        return None

    def forward(self, **given):
        self.given = given
        return SimpleNamespace(logits=self.logits)


def test_the_model_is_told_what_is_padding():
    side = collate(PAIRS, range(3)).chosen
    model = Fixed(torch.zeros(*side.ids.shape, 100))
    side_logps(model, side)
    assert torch.equal(model.given["attention_mask"], side.attention)
    assert not side.attention.all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_bad_logit_on_a_prompt_or_pad_position_does_not_leak(bad):
    side = collate(PAIRS, range(3)).chosen
    logits = torch.randn(*side.ids.shape, 100, generator=torch.Generator().manual_seed(0))
    clean = side_logps(Fixed(logits), side)
    reads = torch.zeros_like(side.response, dtype=torch.bool)
    reads[:, :-1] = side.response[:, 1:].bool()  # position t predicts token t + 1
    dirty = side_logps(Fixed(torch.where(reads[..., None], logits, torch.full_like(logits, bad))), side)
    assert torch.equal(dirty.logp, clean.logp)
    assert dirty.sums.isfinite().all()


def test_a_bad_logit_on_an_answer_position_shows():
    side = collate(PAIRS, range(3)).chosen
    logits = torch.zeros(*side.ids.shape, 100)
    logits[1, 0] = float("nan")  # predicts the first answer token of row b
    sums = side_logps(Fixed(logits), side).sums
    assert sums.isnan().tolist() == [False, True, False]


def test_softmax_is_float32_for_a_half_precision_model():
    """Uniform over 65,536 tokens: log p is -11.09; bfloat16 would round it to -11.0625."""
    side = Side(torch.tensor([[1, 2]]), torch.ones(1, 2, dtype=torch.long), torch.tensor([[0, 1]]))
    logps = side_logps(Fixed(torch.zeros(1, 2, 65536, dtype=torch.bfloat16)), side)
    assert logps.logp.dtype == torch.float32
    assert logps.sums.item() == pytest.approx(-11.090355, abs=1e-5)


def test_the_gradient_reaches_the_weights_from_answers_only(model):
    side = collate(PAIRS, [0]).chosen
    side_logps(model, side).sums.sum().backward()
    weight = model.get_output_embeddings().weight
    expected = torch.autograd.grad(by_hand(model, PAIRS[0].prompt, PAIRS[0].chosen).sum(), weight)[0]
    torch.testing.assert_close(weight.grad, expected, rtol=0, atol=1e-9)


# -- the head on answer positions only


class Headed(torch.nn.Module):
    """A body that answers with given hidden states, and a plain head."""

    def __init__(self, hidden, scale=1.0):
        super().__init__()
        self.hidden = torch.nn.Parameter(hidden)
        self.head = torch.nn.Linear(hidden.shape[-1], 100, dtype=hidden.dtype)
        self.scale = scale
        self.base_model = self._body

    def _body(self, *, input_ids, **_):
        shown = self.hidden[: len(input_ids), : input_ids.shape[1]]
        return SimpleNamespace(last_hidden_state=shown)

    def get_output_embeddings(self):
        return self.head

    def forward(self, **given):
        return SimpleNamespace(logits=self.scale * self.head(self._body(**given).last_hidden_state))


@pytest.fixture
def side():
    return collate(PAIRS, range(3)).chosen


def headed(side, **how):
    torch.manual_seed(0)
    return Headed(torch.randn(*side.ids.shape, 12, dtype=torch.float64), **how)


def with_gradients(model, side):
    logps = side_logps(model, side)
    (logps.sums * torch.tensor([1.0, -2.0, 0.5])[: len(logps.sums)]).sum().backward()
    return logps.logp, model.hidden.grad, model.head.weight.grad, model.head.bias.grad


def assert_close(left, right):
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def test_both_paths_agree_in_values_and_gradients(side):
    fast, plain = headed(side), headed(side)
    capabilities_of(plain).plain_head = False
    logps = with_gradients(fast, side)
    assert capabilities_of(fast).plain_head is True
    assert_close(logps, with_gradients(plain, side))
    assert logps[1].abs().sum() > 0


def test_a_model_that_scales_its_logits_takes_the_plain_path(side):
    model, expected = headed(side, scale=3.0), headed(side)
    with torch.no_grad():
        expected.head.weight *= 3
        expected.head.bias *= 3
        assert_close([side_logps(model, side).logp], [side_logps(expected, side).logp])
    assert capabilities_of(model).plain_head is False


def test_the_size_of_a_chunk_does_not_matter(monkeypatch):
    """40 answer tokens in chunks of 16: the last one is not full."""
    long = (EncodedPair("a", (1, 2), tuple(range(3, 43)), (5,)),)
    side = collate(long, [0]).chosen
    whole = with_gradients(headed(side), side)
    monkeypatch.setattr(head, "CHUNK_BYTES", 1)
    assert head.chunk_tokens(100) == 16
    assert_close(with_gradients(headed(side), side), whole)


def test_a_bad_hidden_state_on_a_prompt_or_pad_position_reaches_neither_values_nor_gradients(side):
    clean, dirty = headed(side), headed(side)
    assert capabilities_of(dirty).plain_head
    unread = torch.ones_like(side.ids, dtype=torch.bool)
    unread[:, :-1] = ~side.response[:, 1:].bool()
    with torch.no_grad():
        dirty.hidden[unread] = float("nan")
    assert_close(with_gradients(dirty, side), with_gradients(clean, side))


# -- the distribution, for token-level objectives


def test_the_distribution_is_kept_only_where_asked(model):
    side = collate(PAIRS, [0]).chosen
    with torch.no_grad():
        assert side_logps(model, side).log_probs is None
        kept = side_logps(model, side, keep_distribution=True)
    assert kept.log_probs.shape == (1, side.ids.shape[1] - 1, model.config.vocab_size)
    torch.testing.assert_close(kept.log_probs.exp().sum(-1), torch.ones(1, 4).double())


def test_sequential_kl_by_hand():
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.2, 0.2, 0.6])
    mask = torch.tensor([[0, 1, 1]])
    reference = SideLogps(torch.zeros(1, 3), mask, p.log().expand(1, 3, 3))
    policy = SideLogps(torch.zeros(1, 3), mask, torch.stack([q.log(), q.log(), p.log()])[None])
    expected = 0.5 * torch.tensor(0.5 / 0.2).log() + 0.25 * torch.tensor(0.25 / 0.2).log()
    expected += 0.25 * torch.tensor(0.25 / 0.6).log()
    logps = sequential_kl(reference, policy)
    assert logps[0].tolist() == pytest.approx([0.0, expected.item(), 0.0], abs=1e-6)
