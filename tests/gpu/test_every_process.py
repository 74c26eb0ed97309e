"""What a run is computed in and on holds for all that is done with it: evaluation, answers, export, diagnosis."""

import json
from dataclasses import replace

import pytest
import ray.train.torch
import torch
from torch import nn

from rcray.config import run_id
from rcray.config.alpaca_eval import AlpacaEvalConfig, GenerationConfig
from rcray.config.evaluation import EvaluationConfig
from rcray.diagnose.diagnosis import diagnose
from rcray.errors import ConfigError
from rcray.evaluate.alpaca_eval.command import answers_of
from rcray.evaluate.remote import resources
from rcray.evaluate.stage import evaluate_run
from rcray.models import device, precision
from rcray.models.load import load_model
from rcray.models.precision import Precision
from rcray.models.trained import load_trained, merge_adapter
from rcray.records.status import Device
from rcray.sweep.measure import measure
from rcray.sweep.preparation import compute_reference
from rcray.train.launch import launch
from tests.small_runs import small_config

CPU = torch.device("cpu")
SETTINGS = EvaluationConfig(samples=2, sample_tokens=4, benchmarks=("rcray_choice", "rcray_cloze"), limit=4)
SHORT = GenerationConfig(max_new_tokens=4, batch_size=2)


def run_of(quick_cache, architecture, **settings):
    """Four steps, of this architecture."""
    return small_config(
        **{
            "data": {"train_pairs": 32, "eval_pairs": 8},
            "model": {"name": str(quick_cache / architecture), "method": "qlora", "dtype": "bfloat16"},
            **settings,
        }
    )


@pytest.fixture
def instructions(tmp_path):
    path = tmp_path / "instructions.json"
    path.write_text(json.dumps([{"instruction": f"render {word}"} for word in ("filu", "kano")]))
    return AlpacaEvalConfig(instructions=str(path), generation=SHORT)


@pytest.fixture
def forwards():
    """What autocast every forward of a model was made in, None for none."""
    seen = set()

    def watch(module, args):
        if isinstance(module, nn.Embedding):  # where each begins
            seen.add(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None)

    handle = nn.modules.module.register_module_forward_pre_hook(watch)
    yield seen
    handle.remove()


@pytest.fixture
def any_processor(monkeypatch):
    """One without bfloat16 arithmetic refuses it where it is asked for, and can emulate it."""
    monkeypatch.setattr(precision, "_has_bfloat16", lambda device, *, asked: True)


@pytest.mark.usefixtures("any_processor")
@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("tiny-neox", {}),
        ("tiny-mistral", {}),
        ("tiny-qwen2", {}),
        ("tiny-neox", {"model": {"name": "tiny-neox"}, "train": {"precision": "bfloat16"}}),
    ],
)
def test_what_is_measured_is_computed_as_it_was_trained(
    store, quick_cache, architecture, settings, instructions, forwards, tmp_path
):
    """Norms of a 4-bit model are float32 and its head is not: outside of its precision it cannot even be run."""
    config = run_of(quick_cache, architecture, **settings)
    assert launch(config, store).status == "ok"
    forwards.clear()
    evaluation = evaluate_run(config, store, SETTINGS)
    assert {row.benchmark for row in evaluation.rows} == {"preference", "samples", "rcray_choice", "rcray_cloze"}
    answers_of(config, store, instructions)
    diagnose([config], store, 8)
    assert forwards == {torch.bfloat16}
    if config.model.trains_adapters:
        assert merge_adapter(store.run(run_id(config)).final, tmp_path / "export", store.cache).gap < 1


def test_a_model_as_it_stands_says_what_it_is_computed_in(quick_cache, tmp_path):
    """Of weights in two precisions, the head's: products of the others are brought to it."""
    mixed = run_of(quick_cache, "tiny-mistral").model
    assert Precision.of_weights(load_model(mixed, tmp_path).model) == Precision(torch.bfloat16, autocast=True)
    for dtype in ("float32", "bfloat16"):
        plain = small_config(model={"name": str(quick_cache / "tiny-mistral"), "dtype": dtype}).model
        assert Precision.of_weights(load_model(plain, tmp_path).model) == Precision(getattr(torch, dtype))


@pytest.fixture
def visible_card(monkeypatch):
    """A GPU that torch sees and that nobody asked for: whoever touches it is named."""

    def touched():
        raise AssertionError("the GPU was touched")

    for name, value in {"is_available": True, "device_count": 1, "current_device": 0}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "_lazy_init", touched)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *device: touched())


def test_without_a_gpu_asked_for_nobody_touches_one(store, quick_cache, visible_card, instructions):
    """Ray does not hide it, and transformers and bitsandbytes take what they see."""
    config = run_of(quick_cache, "tiny-mistral")
    compute_reference(config.model_dump(mode="json"), store)
    assert launch(config, store).status == "ok"
    evaluate_run(config, store, SETTINGS)
    answers_of(config, store, instructions)
    measure(config, store)
    diagnose([config], store, 8)
    assert load_trained(store.run(run_id(config)).final, store.cache).model.device == CPU


@pytest.mark.parametrize(("workers", "asked"), [(0, False), (2, True)])
def test_a_run_in_its_own_process_starts_no_ray(store, monkeypatch, workers, asked):
    """Ray sets a worker's GPU up by asking which it gave away; where it gave nothing, it starts a cluster to know."""
    questions = []

    class Trainer:
        """Ray's, of which no more is done than what it enters before the loop."""

        def __init__(self, loop, *, torch_config, **others):
            self.context = torch_config.train_func_context

        def fit(self):
            with self.context():
                pass

    monkeypatch.setattr(ray.train.torch, "TorchTrainer", Trainer)
    monkeypatch.setattr(ray.train.torch, "get_device", lambda: questions.append("which?") or CPU)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    launch(small_config(execution={"gpus_per_worker": 1, "workers": workers}), store)
    assert bool(questions) == asked


@pytest.fixture
def no_card(monkeypatch):
    """None that can be used, also on a machine that has one."""
    monkeypatch.setattr(device, "why_no_gpu", lambda: ("none here", "install one"))


def test_a_gpu_that_is_asked_for_is_refused_there_too(store, quick_cache, no_card):
    config = run_of(quick_cache, "tiny-mistral", execution={"gpus_per_worker": 1})
    with pytest.raises(ConfigError, match=r"execution\.gpus_per_worker: 1, and no GPU can be used"):
        compute_reference(config.model_dump(mode="json"), store)
    with pytest.raises(ConfigError, match=r"execution\.gpus_per_worker: 1, and no GPU can be used"):
        diagnose([config], store, 8)


@pytest.mark.parametrize(
    ("trained", "asked", "field", "reserved"),
    [
        (0, None, None, 0),
        (1, 0, None, 0),
        (1, None, "execution.gpus_per_worker: 1", 1),
        (0, 0.5, "evaluation.gpus: 0.5", 0.5),
    ],
)
def test_an_evaluation_is_on_the_device_that_it_asks_for(store, no_card, trained, asked, field, reserved):
    """Else on that of the run, of whose identity the device is no part; what there is not is refused by its field."""
    config = small_config(data={"train_pairs": 16, "eval_pairs": 8})
    assert launch(config, store).status == "ok"
    config = small_config(data={"train_pairs": 16, "eval_pairs": 8}, execution={"gpus_per_worker": trained})
    settings = EvaluationConfig(preference=True, gpus=asked)
    assert resources(config, settings)["num_gpus"] == reserved
    if field is None:
        assert {row.benchmark for row in evaluate_run(config, store, settings).rows} == {"preference"}
        return
    with pytest.raises(ConfigError, match=f"{field}, and no GPU can be used"):
        evaluate_run(config, store, settings)


@pytest.mark.parametrize(
    ("told", "precision", "autocast"),
    [(0, "bfloat16", torch.bfloat16), (1, "bfloat16", torch.bfloat16), (1, "float32", None)],
)
def test_an_evaluation_computes_in_what_the_record_says(store, forwards, told, precision, autocast):
    """On a CPU here, whatever the command was told of GPUs: in what the card of the training had."""
    config = small_config(data={"train_pairs": 16, "eval_pairs": 8})
    assert launch(config, store).status == "ok"
    run = store.run(run_id(config))
    run.write_status(replace(run.read_status(), device=Device("L40S", precision, "sdpa")))
    forwards.clear()
    told = small_config(data={"train_pairs": 16, "eval_pairs": 8}, execution={"gpus_per_worker": told})
    evaluate_run(told, store, EvaluationConfig(preference=True, gpus=0))
    assert forwards == {autocast}
