"""What `rcray doctor` says of a card's attention: that of `execution.attention: auto`, where FlexAttention is tried."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from rcray.errors import ConfigError
from rcray.models import cards
from rcray.models.cards import try_card
from rcray.models.precision import Precision

CARD = torch.device("cuda", 0)


@pytest.fixture
def card(monkeypatch):
    """A sound card, but for what comes of FlexAttention; with which shapes that was asked, and after what."""
    asked, native, outcome = [], [True], [None]

    def why_no_flex(*of):
        asked.append(of)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    properties = SimpleNamespace(name="L40S", total_memory=48 * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native[0])
    for name in ("_product", "_bfloat16", "_four_bit"):
        monkeypatch.setattr(cards, name, lambda device, name=name: name[1:])
    monkeypatch.setattr(cards, "attention_kernels", lambda *of: {"plain": "flash", "packed": "efficient"})
    monkeypatch.setattr(cards, "compile_anew", lambda: asked.append("anew"))
    monkeypatch.setattr(cards, "why_no_flex", why_no_flex)
    return asked, native, outcome


def test_packed_rows_are_said_to_take_flex_attention_where_its_trial_succeeds(card):
    asked, native, _ = card
    for dtype in (torch.bfloat16, torch.float16):
        tried = try_card(0)
        assert tried.detail.endswith("attention by flash (packed rows: FlexAttention)") and not tried.problems
        assert asked == ["anew", ((8, 8, 128), Precision(dtype, "cuda"), CARD)]
        asked.clear()
        native[0] = False


def test_a_card_without_flex_attention_is_no_broken_one(card):
    _, _, outcome = card
    outcome[0] = "TritonMissing: no Triton"
    tried = try_card(0)
    assert tried.problems == ()
    said = "attention by flash (packed rows: efficient, without FlexAttention: TritonMissing: no Triton)"
    assert tried.detail.endswith(said)


def test_a_card_that_failed_in_that_trial_is_broken(card):
    _, _, outcome = card
    outcome[0] = ConfigError("execution.attention: the GPU failed while FlexAttention was tried", fix="use sdpa")
    ((problem, _),) = try_card(0).problems
    assert "attention: execution.attention: the GPU failed" in problem
