"""The last feed-forward layer computes answers only, where that changes nothing, and is left alone elsewhere."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rcray.data.batch import collate
from rcray.data.encode import EncodedPair
from rcray.data.layout import CHOSEN, one_side, packed, two_rows
from rcray.models.blocks import blocks_of
from rcray.models.capabilities import capabilities_of, last_mlp
from rcray.models.forward import answer_logps, answers_only, body_of
from tests.math.test_one_backward import build, make_batch

LENGTHS = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))


@given(st.lists(LENGTHS, min_size=1, max_size=4))
def test_the_columns_hold_every_token_that_predicts_an_answer(sizes):
    pairs = [EncodedPair(str(i), (1,) * p, (2,) * w, (3,) * r) for i, (p, w, r) in enumerate(sizes)]
    batch = collate(pairs, range(len(pairs)))
    for layout in (two_rows(batch), packed(batch), packed(batch).plain_rows, one_side(batch, CHOSEN)):
        width = layout.ids.shape[1]
        rows = torch.arange(len(layout.ids))[:, None]
        places = (rows * width + layout.answer_columns).flatten().tolist()
        assert set(layout.predicts.tolist()) <= set(places)
        twice = {place for place in places if places.count(place) > 1}
        assert not twice & set(layout.predicts.tolist()), "a gradient would be counted twice"


@pytest.mark.parametrize("make", [packed, two_rows])
@pytest.mark.parametrize("architecture", ["tiny-neox", "tiny-mistral", "tiny-qwen2"])
def test_fewer_tokens_and_the_same_likelihoods(quick_cache, architecture, make):
    model = build(quick_cache, "full", architecture)
    layout = make(make_batch())
    mlp, seen = capabilities_of(model).short_mlp, []
    handle = mlp.register_forward_hook(lambda _mlp, args, _output: seen.append(args[0].shape[1]))
    with torch.no_grad():
        short, whole = (answer_logps(model, layout, mlp=each)[0] for each in (mlp, None))
    handle.remove()
    assert seen == [layout.span, layout.ids.shape[1]] and layout.span < layout.ids.shape[1]
    torch.testing.assert_close(short, whole, rtol=1e-6, atol=1e-6)


def test_a_layer_that_mixes_tokens_is_left_alone(quick_cache):
    model = build(quick_cache, "full")
    block = blocks_of(body_of(model))[-1]
    own = block.mlp

    class Mixing(nn.Module):
        def forward(self, hidden):
            return own(hidden) + hidden.mean(1, keepdim=True)

    block.mlp = Mixing()
    assert last_mlp(model) is block.mlp
    assert capabilities_of(model).short_mlp is None


def test_a_layer_with_a_router_or_another_name_is_left_alone(quick_cache):
    model = build(quick_cache, "full")
    block = blocks_of(body_of(model))[-1]
    block.mlp.experts = nn.ModuleList()
    assert capabilities_of(model).short_mlp is None
    del block.mlp
    assert last_mlp(model) is None


def test_short_prompts_are_not_worth_it(quick_cache):
    model = build(quick_cache, "full")
    layout = two_rows(make_batch([(1, 20, 20), (2, 20, 20)]))
    mlp, seen = last_mlp(model), []
    mlp.register_forward_hook(lambda _mlp, args, _output: seen.append(args[0].shape[1]))
    with torch.no_grad(), answers_only(mlp, layout):
        body_of(model)(input_ids=layout.ids, use_cache=False)
    assert seen == [layout.ids.shape[1]]
