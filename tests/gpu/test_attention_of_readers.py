"""The kernel of packed rows is set before anything is read: the reference, and what an evaluation compares."""

from types import SimpleNamespace

import pytest
import torch

from rcray.config import run_id
from rcray.config.evaluation import EvaluationConfig
from rcray.evaluate.stage import Subject
from rcray.models import attention, reference
from rcray.models.attention import read_with_attention, set_flex_attention
from rcray.models.forward import FLEX, attention_of
from rcray.models.load import load_model
from rcray.sweep.preparation import compute_reference
from rcray.train import loop, setup
from rcray.train.loop import Job
from tests.small_runs import small_config

CARD, CPU = torch.device("cuda", 0), torch.device("cpu")
SMALL = {"train_pairs": 16, "eval_pairs": 8}


@pytest.fixture
def order(monkeypatch):
    """What is called, in turn."""
    called, compute = [], reference.reference_logps

    def computed(*given):
        called.append("reference")
        return compute(*given)

    for module in (setup, reference):
        monkeypatch.setattr(module, "reference_logps", computed)
    monkeypatch.setattr(setup, "use_attention", lambda *given, **how: called.append("attention"))
    monkeypatch.setattr(attention, "read_with_attention", lambda *given: called.append("attention"))
    return called


def test_a_runs_reference_is_read_by_the_kernel_of_the_run(store, order):
    config = small_config(data=SMALL)
    loop.prepare(Job(config, store, run_id(config), "a"), 0, 1)
    assert order == ["attention", "reference"]


def test_so_is_one_that_is_computed_before_the_cells(store, order):
    compute_reference(small_config(data=SMALL).model_dump(mode="json"), store)
    assert order == ["attention", "reference"]


@pytest.mark.parametrize("device", [CARD, CPU])
@pytest.mark.parametrize("asked", ["auto", "flex"])
def test_an_evaluation_takes_it_on_a_gpu_and_asks_for_none_elsewhere(store, monkeypatch, device, asked):
    """Trained with FlexAttention, a model is evaluated on a CPU, too."""
    taken, config = [], small_config(execution={"attention": asked})
    monkeypatch.setattr(attention, "use_attention", lambda *given, **how: taken.append((*given[1:], how["packs"])))
    subject = Subject(config, store, EvaluationConfig())
    subject.device = device
    subject._in_precision(load_model(config.model, store.cache))
    assert taken == ([(CARD, asked, True)] if device == CARD else [])


def test_a_frozen_copy_reads_by_the_kernel_of_its_model(store, quick_cache):
    config = small_config(model={"name": "tiny-mistral"})
    model = load_model(config.model, store.cache).model
    assert attention_of(setup._frozen_copy(config, store, model, CPU)) == "sdpa"
    set_flex_attention(model)
    assert attention_of(setup._frozen_copy(config, store, model, CPU)) == FLEX


def test_a_model_with_that_kernel_answers_as_before(store):
    """An evaluation also generates, with a cache of keys: plain rows go by SDPA."""
    config = small_config(model={"name": "tiny-mistral"})
    model = load_model(config.model, store.cache).model.eval()
    ids = torch.arange(1, 13).reshape(2, 6)
    padded = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])

    def answers():
        return model.generate(
            input_ids=ids, attention_mask=padded, max_new_tokens=6, do_sample=False, pad_token_id=0
        ).tolist()

    before = answers()
    set_flex_attention(model)
    assert answers() == before


def test_forwards_alone_are_tried_as_training_is(monkeypatch):
    told = []
    monkeypatch.setattr(attention, "use_attention", lambda *given, **how: told.append((given, how)))
    execution = SimpleNamespace(attention="auto", prompt_sharing="off")
    for device in (CARD, CPU):
        read_with_attention("model", device, execution)
    assert told == [(("model", CARD, "auto"), {"packs": False})]
