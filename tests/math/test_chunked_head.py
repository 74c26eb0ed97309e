"""Log-probabilities from chunks of the head equal the plain path, values and gradients."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import rcray.models.head as chunked
from rcray.models.head import Sketch, head_logps


def test_the_budget_sets_the_chunk():
    assert chunked.CHUNK_BYTES // 2 < chunked.chunk_tokens(50_304) * 50_304 * 4 <= chunked.CHUNK_BYTES
    assert chunked.chunk_tokens(10**9) == 16


@pytest.fixture
def small_chunks(monkeypatch):
    """Several chunks, the last one incomplete."""
    monkeypatch.setattr(chunked, "chunk_tokens", lambda vocabulary: 7)


def plain(head, hidden, targets):
    return (
        head(hidden)
        .to(torch.promote_types(hidden.dtype, torch.float32))
        .log_softmax(-1)
        .gather(1, targets[:, None])[:, 0]
    )


def inputs(dtype, bias, frozen=False):
    torch.manual_seed(0)
    head = nn.Linear(12, 53, bias=bias).to(dtype)
    head.requires_grad_(not frozen)
    hidden = torch.randn(24, 12, dtype=dtype, requires_grad=True)
    return head, hidden, torch.randint(0, 53, (24,)), torch.randn(24).to(torch.promote_types(dtype, torch.float32))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_values_and_gradients(dtype, tolerance, bias):
    head, hidden, targets, seed = inputs(dtype, bias)
    wanted = [hidden, *head.parameters()]
    expected, got = plain(head, hidden, targets), head_logps(head, hidden, targets)
    assert got.dtype == expected.dtype
    assert torch.allclose(got, expected, atol=tolerance)
    for a, b in zip(torch.autograd.grad(got, wanted, seed), torch.autograd.grad(expected, wanted, seed), strict=True):
        assert a.dtype == b.dtype
        assert torch.allclose(a, b, atol=tolerance * 4)


@pytest.mark.usefixtures("small_chunks")
def test_gradcheck():
    head, hidden, targets, _ = inputs(torch.float64, bias=True)

    def function(h, w, b):
        return head_logps(SimpleNamespace(weight=w, bias=b), h, targets)

    assert torch.autograd.gradcheck(function, (hidden, head.weight, head.bias))


@pytest.mark.usefixtures("small_chunks")
def test_a_frozen_head_gets_no_gradient():
    head, hidden, targets, _ = inputs(torch.float32, bias=False, frozen=True)
    head_logps(head, hidden, targets).sum().backward()
    assert hidden.grad is not None
    assert head.weight.grad is None


@pytest.mark.usefixtures("small_chunks")
def test_the_sketch_goes_through_the_chunks_too():
    head, hidden, targets, seed = inputs(torch.float64, bias=False)
    sketch = Sketch.of(head, columns=5, seed=1)
    projected = hidden.detach() @ sketch.projection
    full = (head(hidden) + projected @ sketch.probe.T).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    (in_chunks,) = torch.autograd.grad(head_logps(head, hidden, targets, sketch), [sketch.probe], seed)
    (in_full,) = torch.autograd.grad(full, [sketch.probe], seed)
    assert torch.allclose(in_chunks, in_full, atol=1e-12)
    assert in_chunks.abs().sum() > 0
