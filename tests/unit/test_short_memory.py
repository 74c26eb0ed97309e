"""Forwards without a graph that run out of memory are made in halves, and what they measure stays what it was."""

import pytest
import torch

from rcray.models import inference, reference
from rcray.models.distribution import Watch
from rcray.models.load import LoadedModel
from tests.unit.test_inference import uneven

CPU = torch.device("cpu")
PAIRS = 40


@pytest.fixture
def scarce(monkeypatch):
    """Room for so many tokens in one forward, by whichever name the memory's end is called."""
    tried, plain = [], inference.batch_sums

    def limit(tokens, error):
        def batch_sums(model, batch, *args):
            size = 2 * max(batch.chosen.ids.numel(), batch.rejected.ids.numel())
            tried.append(size)
            if size > tokens:
                plain(model, batch, *args)  # a watch has read its tokens by then
                raise error
            return plain(model, batch, *args)

        monkeypatch.setattr(inference, "batch_sums", batch_sums)
        return tried

    return limit


@pytest.fixture
def model(neox):
    return neox.model


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("CUDA error: out of memory"),
    ],
)
def test_a_reference_with_little_room_is_the_same(model, neox, tmp_path, scarce, error, caplog):
    data = uneven(PAIRS)
    loaded = LoadedModel(model, neox.tokenizer)
    plenty = reference.reference_logps(loaded, data, tmp_path / "plenty", CPU)
    tried = scarce(600, error)
    little = reference.reference_logps(loaded, data, tmp_path / "little", CPU)
    assert max(tried) > 600, "it ran out"
    assert sum(size > 600 for size in tried) <= 3, "and what came after was cut smaller from the start"
    assert "ran out of memory; going on with" in caplog.text
    for name in ("n_w", "n_l"):
        assert torch.equal(getattr(little, name), getattr(plenty, name))
    for name in ("sum_w", "sum_l"):
        torch.testing.assert_close(getattr(little, name), getattr(plenty, name), rtol=1e-6, atol=1e-4)


def test_a_probe_that_runs_short_half_way_sees_the_same_distributions(model, scarce):
    """The first reading had room, the second has not: its tokens come in other portions, and in the same order."""
    data = uneven(PAIRS)
    watch = Watch(model.get_output_embeddings())

    def read():
        watch.begin()
        sums = inference.pair_sums(model, data.pairs, data.lengths, range(PAIRS), CPU, watch=watch)
        return sums, watch.end()

    before, seen = read()
    scarce(600, torch.OutOfMemoryError("CUDA out of memory"))
    after, again = read()
    torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-4)
    assert again.kl < 1e-6 and again.entropy == pytest.approx(seen.entropy, rel=1e-5)
    assert again.greedy == pytest.approx(seen.greedy, rel=1e-5)


def test_what_cannot_be_halved_or_is_no_matter_of_memory_is_raised(model, scarce):
    data = uneven(4)
    scarce(0, torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        inference.pair_sums(model, data.pairs, data.lengths, range(4), CPU)
    scarce(0, RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal"):
        inference.pair_sums(model, data.pairs, data.lengths, range(4), CPU)
