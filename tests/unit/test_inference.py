"""Forwards of many pairs: little is computed beside the tokens themselves."""

import random

import pytest
import torch

from rcray.data.batch import collate
from rcray.data.encode import EncodedPair, EncodedPairs, EncodeReport
from rcray.models import inference, reference
from rcray.models.capabilities import capabilities_of
from rcray.models.forward import body_of
from rcray.models.likelihood import side_logps

CPU = torch.device("cpu")


def uneven(count, seed=0):
    """Pairs whose lengths are as spread as those of real dialogues."""
    draw = random.Random(seed)
    batches = []
    for n in range(count):
        prompt, chosen, rejected = (max(2, int(draw.lognormvariate(3, 0.9))) for _ in range(3))
        ids = [draw.randrange(5, 200) for _ in range(prompt + chosen + rejected)]
        batches.append(EncodedPair(f"{n}", *map(tuple, (ids[:prompt], ids[prompt:][:chosen], ids[prompt + chosen :]))))
    return EncodedPairs(tuple(batches), EncodeReport(kept=count))


def test_little_is_computed_beside_the_tokens_themselves(neox, monkeypatch):
    data = uneven(96)
    monkeypatch.setitem(inference.TOKENS, "cpu", 1024)
    computed = []

    def count(_module, args, kwargs):
        computed.append((args[0] if args else kwargs["input_ids"]).numel())

    allowed = capabilities_of(neox.model)
    assert allowed.packs_rows
    handle = body_of(neox.model).register_forward_pre_hook(count, with_kwargs=True)
    logps = reference.summed_logps(neox.model, data, range(96), CPU)
    handle.remove()
    plain = int((data.lengths @ (2, 1, 1)).sum())
    print(f"{sum(computed):,} tokens computed for {plain:,}")
    assert sum(computed) < 1.05 * plain, "padding is made good by the prompts that are shared"
    assert max(computed) <= 2 * max(1024, int((data.lengths @ (2, 1, 1)).max()))
    with torch.no_grad():
        for i in (0, 40, 95):
            batch = collate(data.pairs, [i])
            assert logps.sum_w[i].item() == pytest.approx(side_logps(neox.model, batch.chosen).sums.item(), abs=2e-3)
            assert logps.sum_l[i].item() == pytest.approx(side_logps(neox.model, batch.rejected).sums.item(), abs=2e-3)
    assert logps.n_w.tolist() == data.lengths[:, 1].tolist()


@pytest.mark.parametrize(("device", "most"), [("cuda", 4096), ("cpu", 2048)])
def test_what_cannot_be_made_in_halves_is_small_from_the_first(neox, monkeypatch, device, most):
    """The probe of a compiled or a sharded model: where it has no room the run ends, with the optimizer beside it."""
    asked = []
    monkeypatch.setattr(inference, "token_batches", lambda lengths, index, tokens: asked.append(tokens) or ())
    data = uneven(4)
    for sums in (inference.plain_sums, inference.pair_sums):
        sums(neox.model, data.pairs, data.lengths, range(4), torch.device(device))
    assert asked == [most, inference.TOKENS[device]]


def test_batches_stay_within_the_budget():
    lengths = uneven(50).lengths
    sizes = lengths @ (2, 1, 1)
    batches = list(inference.token_batches(lengths, range(50), 600))
    assert sorted(i for batch in batches for i in batch) == list(range(50))
    assert all(len(batch) == 1 or len(batch) * max(sizes[i] for i in batch) <= 600 for batch in batches)
