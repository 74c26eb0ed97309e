"""A GPU that was asked for is used or refused; no other is touched; one compute precision per run."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from rcray import doctor
from rcray.config import run_id
from rcray.data.batch import collate
from rcray.data.encoded import EncodedPair
from rcray.data.layout import worth_packing
from rcray.errors import ConfigError
from rcray.models import cards, head
from rcray.models.attention import set_flex_attention
from rcray.models.capabilities import Capabilities, capabilities_of, use_liger, use_precision
from rcray.models.cards import Tried
from rcray.models.device import asked_device, why_no_gpu
from rcray.models.load import load_model
from rcray.models.precision import Precision
from rcray.records.states import State
from rcray.records.status import Device, RunStatus
from rcray.train import loop
from rcray.train.checkpoint import CheckpointWriter, Progress, Resumable, restore_newest
from rcray.train.loop import Job, _device
from tests.small_runs import small_config

CPU = torch.device("cpu")


def job(store, **execution):
    config = small_config(execution=execution)
    return Job(config, store, run_id(config), "a")


def test_no_gpu_is_asked_for_and_none_is_used(store, monkeypatch):
    """Ray no longer hides the card from such a worker."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert _device(job(store)) == CPU


@pytest.mark.parametrize(
    ("build", "visible", "reason"),
    [
        (None, None, "built for CPUs"),
        ("12.8", "", "CUDA_VISIBLE_DEVICES is '', which hides every GPU"),
        ("12.8", "-1", "CUDA_VISIBLE_DEVICES is '-1'"),
        ("12.8", None, "driver on your system is too old"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_refused_with_the_reason(store, monkeypatch, build, visible, reason):
    def no_driver():
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040)")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", no_driver)
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ConfigError, match=r"execution\.gpus_per_worker: 1, and no GPU can be used") as refused:
        _device(job(store, gpus_per_worker=1))
    assert reason in refused.value.message
    assert "execution.gpus_per_worker: 0" in refused.value.fix


@pytest.mark.skipif(why_no_gpu() is not None, reason="a real GPU")
def test_a_real_card_does_what_runs_ask_of_it():
    assert asked_device(1).type == "cuda"
    assert cards.try_card(0).problems == ()


def test_the_doctor_tries_every_card_and_two_together(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    emulated = Tried("T4, 15.0 GiB", (("bfloat16: this card computes it by emulation only", "use float16"),))
    monkeypatch.setattr(cards, "try_card", lambda i: Tried("L40S, 44.5 GiB, bfloat16, 4-bit") if i == 0 else emulated)
    monkeypatch.setattr(cards, "try_pair", lambda a, b: Tried(f"NCCL 2.27 sums over cards {a} and {b}"))
    checks = {f.name: f for f in doctor.check_devices()}
    assert (checks["gpu 0"].state, checks["gpus"].state) == ("ok", "ok")
    assert (checks["gpu 1"].state, checks["gpu 1"].fix) == ("broken", "use float16")
    assert "emulation" in checks["gpu 1"].detail


def test_which_attention_kernel_ran_is_in_the_record(monkeypatch, store, quick_cache, tmp_path):
    """Asked of torch for the shape and the precision of the run, and read again from its status."""
    asked = []
    monkeypatch.setattr(cards, "attention_kernels", lambda *shape: asked.append(shape) or KERNELS)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7_000_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "L40S")
    model, card = tiny(quick_cache, tmp_path, "tiny-mistral", method="qlora", dtype="bfloat16"), torch.device("cuda", 0)
    use_precision(model, Precision(torch.bfloat16, "cuda", autocast=True))
    assert cards.device_record(model, card).attention == "sdpa: plain rows by flash", "none were packed"
    asked.clear()
    record = cards.device_record(model, card, packed=True)
    assert asked == [(card, torch.bfloat16, 4, 2, 16)], "as many heads of keys as it has"
    assert record.attention == "sdpa: plain rows by flash, packed rows by efficient"
    run = store.run("a")
    run.write_status(RunStatus("a", device=record))
    assert run.read_status().device == Device("L40S", "bfloat16", record.attention, 7_000_000_000)
    assert cards.device_record(model, CPU) is None
    set_flex_attention(model)
    capabilities_of(model).packed_forwards = 1  # of its reference, or a probe
    assert cards.device_record(model, card).attention == "sdpa: plain rows by flash, packed rows by FlexAttention"


@pytest.mark.parametrize(
    ("model", "sharing", "packs"), [("tiny-neox", "on", True), ("tiny-neox", "off", False), ("own", "auto", False)]
)
def test_packed_rows_are_in_the_record_of_runs_that_packed_some(store, monkeypatch, model, sharing, packs):
    """Not of one that was told not to and has no reference, nor of a model that cannot."""
    if model == "own":
        monkeypatch.setattr(Capabilities, "packs_rows", False)
    config = small_config(objective={"name": "cpo"}, execution={"prompt_sharing": sharing})
    training = loop.prepare(Job(config, store, run_id(config), "a"), 0, 1)
    asked = []
    monkeypatch.setattr(loop, "device_record", lambda *of, **how: asked.append(how["packed"]))
    training._status(State.RUNNING)
    loop.optimizer_step(training.state, [collate(training.data.pairs, range(4))], 1)
    training._status(State.RUNNING)
    assert asked == [False, packs]


def test_kernels_are_asked_for_with_a_backward_to_follow(monkeypatch):
    """Torch leaves some out then; a status may be written where gradients are off."""
    seen = []

    def choice(query, key, value, *others, **options):
        seen.append((query.requires_grad, key.requires_grad, torch.is_grad_enabled()))
        return 1

    monkeypatch.setattr(torch, "_fused_sdp_choice", choice)
    with torch.no_grad():
        cards.attention_kernels(CPU, torch.float32, heads=4, keys=2, width=16)
    assert seen == [(True, True, True)] * 2


def test_torch_names_the_kernel_it_would_take():
    for keys in (4, 2):
        named = cards.attention_kernels(CPU, torch.float32, heads=4, keys=keys, width=16)
        assert set(named) == {"plain", "packed"} and set(named.values()) <= set(cards.KERNELS.values())


KERNELS = {"plain": "flash", "packed": "efficient"}
QLORA = {"name": "tiny-neox", "method": "qlora", "dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("settings", "compute", "autocast"),
    [
        ({}, torch.float32, False),
        ({"model": {"name": "tiny-neox", "method": "lora"}}, torch.float32, False),
        ({"model": QLORA}, torch.bfloat16, True),
        ({"model": {**QLORA, "method": "lora"}}, torch.bfloat16, True),
        ({"train": {"precision": "float16"}}, torch.float16, True),
    ],
)
def test_there_is_one_compute_precision(settings, compute, autocast):
    precision = Precision.of(small_config(**settings), CPU)
    assert (precision.compute, precision.autocast) == (compute, autocast)


GPU = {"execution": {"gpus_per_worker": 1}}
CARD = torch.device("cuda", 0)


def test_what_is_left_open_is_decided_by_the_card_and_holds_after_training(monkeypatch, caplog):
    """Bfloat16 where the card has it, float32 with a warning where not; an evaluation follows the run's record."""
    native = [True]
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native[0])
    config = small_config(**GPU)
    assert Precision.of(config, CARD) == Precision(torch.bfloat16, "cuda", autocast=True)
    assert Precision.of(small_config(), CARD) == Precision(torch.float32, "cuda"), "trained on a CPU, evaluated here"
    assert "emulation" not in caplog.text
    native[0] = False
    assert Precision.of(config, CARD) == Precision(torch.float32, "cuda")
    assert "bfloat16 by emulation only: float32 is used" in caplog.text
    for precision in ("float32", "bfloat16"):
        trained = Device("L40S", precision, "sdpa")
        for given in (config, small_config()):  # evaluated by a command that was not told of the GPU
            assert Precision.of(given, CPU, trained).compute == getattr(torch, precision)
    with pytest.raises(ConfigError, match=r"train\.precision: 'bfloat16', and this cuda has no bfloat16"):
        Precision.of(small_config(**GPU, train={"precision": "bfloat16"}), CARD)
    with pytest.raises(ConfigError, match=r"model\.dtype: 'bfloat16', and this cuda has no bfloat16"):
        Precision.of(small_config(**GPU, model=QLORA), CARD)


def test_the_reference_is_kept_apart_by_it():
    names = {
        Precision(d, tf32=t).name for d, t in ((torch.float32, False), (torch.float32, True), (torch.bfloat16, False))
    }
    assert len(names) == 3


def test_tolerances_follow_from_it():
    tokens = torch.tensor([1.0, 100.0, 1000.0])
    exact, half = (Precision(dtype).tolerance(tokens) for dtype in (torch.float32, torch.bfloat16))
    assert (half > exact).all() and (half[1:] > half[:-1]).all()
    assert exact[-1] < 0.05, "a thousand tokens of another model are nats away"
    assert 1 < half[-1] < 3


@pytest.mark.parametrize(
    ("precision", "close", "far"),
    [
        (Precision(torch.float32), 0.005, 0.01),
        (Precision(torch.float32, "cuda", tf32=True), 0.03, 0.1),
        (Precision(torch.float16), 0.03, 0.1),
        (Precision(torch.bfloat16), 0.24, 0.8),  # the largest seen of a real model's tokens, packed and in two rows
    ],
)
def test_two_ways_to_compute_a_token_are_held_to_it(precision, close, far):
    logps = torch.tensor([-0.1, -5.0])
    off = torch.tensor([0.0, 1.0])
    assert precision.agree(logps, logps + close * off)
    assert not precision.agree(logps, logps + far * off)


def tiny(quick_cache, tmp_path, name, **settings):
    return load_model(small_config(model={"name": str(quick_cache / name), **settings}).model, tmp_path).model


def test_tf32_is_set_where_a_model_is_to_be_run(monkeypatch, quick_cache, tmp_path):
    """In whatever process that is: training, the reference of a sweep, an evaluation."""
    set_to = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", set_to.append)
    model = tiny(quick_cache, tmp_path, "tiny-neox")
    for tf32 in (True, False):
        use_precision(model, Precision(torch.float32, "cuda", tf32=tf32))
    assert set_to == ["high", "highest"]


def test_two_precisions_are_refused():
    with pytest.raises(Exception, match=r"ask for two precisions"):
        small_config(model=QLORA, train={"precision": "float16"})
    with pytest.raises(Exception, match=r"'tf32' is one of float32 products"):
        small_config(model=QLORA, train={"precision": "tf32"})
    with pytest.raises(ConfigError, match=r"train\.precision: 'tf32' is a GPU's"):
        Precision.of(small_config(train={"precision": "tf32"}), CPU)


def test_a_run_in_bfloat16_takes_its_own_reference_for_sound(store, caplog):
    """Two starts: the cache of a 4-bit model computed in bfloat16 is found again, and nothing is said of damage."""
    from rcray.train.loop import prepare

    config = small_config(model=QLORA, data={"train_pairs": 16, "eval_pairs": 8})
    for _ in range(2):
        state = prepare(Job(config, store, run_id(config), "a"), 0, 1).state
    assert "reference cache" not in caplog.text
    assert len(list((store.cache / "reference").glob("*.parquet"))) == 1
    assert capabilities_of(state.policy.model).packs_rows, "prompt sharing is not switched off by its rounding"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"execution": {"liger": True}}, r"execution\.liger"),
        ({"execution": {"attention": "flex"}}, r"execution\.attention"),
        ({"train": {"optimizer": "paged_adamw8bit"}}, r"train\.optimizer"),
    ],
)
def test_what_is_a_gpus_is_refused_on_the_cpu(store, settings, field):
    from rcray.train.loop import prepare

    config = small_config(**settings)
    with pytest.raises(ConfigError, match=field):
        prepare(Job(config, store, run_id(config), "a"), 0, 1)


def test_what_a_card_held_before_is_not_the_runs(store, monkeypatch):
    """A process goes from cell to cell, and torch counts on."""
    forgotten, reset = [], []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    monkeypatch.setattr(loop, "forget_peak", forgotten.append)
    loop.prepare(job(store), 0, 1)
    assert forgotten == [CPU]
    for device in (CPU, torch.device("cuda", 0)):
        cards.forget_peak(device)
    assert reset == [torch.device("cuda", 0)]


def test_liger_puts_its_kernels_in_or_says_that_it_has_none(monkeypatch, quick_cache, tmp_path):
    """Left alone, it says so in a line for developers, and nothing is any faster."""
    package, parts, patches = ModuleType("liger_kernel"), ModuleType("transformers"), ModuleType("monkey_patch")
    asked = []
    parts._apply_liger_kernel_to_instance = lambda model, **options: asked.append((type(model).__name__, options))
    patches.MODEL_TYPE_TO_APPLY_LIGER_FN = {"mistral": None}
    for name, module in (("", package), (".transformers", parts), (".transformers.monkey_patch", patches)):
        monkeypatch.setitem(sys.modules, f"liger_kernel{name}", module)
    card = torch.device("cuda", 0)
    with pytest.raises(ConfigError, match=r"execution\.liger: true, and Liger has no kernels for gpt_neox"):
        use_liger(tiny(quick_cache, tmp_path, "tiny-neox"), card)
    assert asked == []
    use_liger(tiny(quick_cache, tmp_path, "tiny-mistral", method="lora"), card)
    assert asked == [("MistralForCausalLM", {"cross_entropy": False, "fused_linear_cross_entropy": False})]


def test_a_checkpoint_written_by_a_thread_is_the_one_of_its_moment(tmp_path):
    """Training goes on while it is written; what is restored is what was."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))

    def train():
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        scheduler.step()

    train()
    kept = {name: p.detach().clone() for name, p in model.named_parameters()}
    writer, said = CheckpointWriter(beside=True), []
    state = Resumable(model, optimizer, scheduler)
    writer.save(tmp_path, state, Progress(step=1), 2, None, then=lambda: said.append("written"))
    train()
    writer.wait()
    assert said == ["written"]
    assert restore_newest(tmp_path, state).step == 1
    assert all(torch.equal(kept[name], p) for name, p in model.named_parameters())
    assert scheduler.last_epoch == 1
    assert {int(state["step"]) for state in optimizer.state.values()} == {1}


@pytest.mark.parametrize(("vocabulary", "least"), [(50_304, 1500), (152_064, 600)])
def test_a_large_head_is_read_for_many_tokens_at_once(monkeypatch, vocabulary, least):
    """A GPU's memory decides how many: 55 tokens of Qwen's were a chunk when a CPU's budget held for all."""
    card = SimpleNamespace(total_memory=48 * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    weight = SimpleNamespace(shape=(vocabulary, 3584))

    def tokens(device):
        return head._chunk(SimpleNamespace(device=torch.device(device)), weight)

    assert tokens("cpu") < 200 < least < tokens("cuda")
    card.total_memory = 16 * 10**9
    assert 100 < tokens("cuda") < least, "and a smaller card has room for fewer"


def test_rows_are_packed_where_that_device_is_spared_enough():
    """A mask that the kernel does not skip costs a small model on a GPU more than the prompt's layers spare it."""
    pairs = [EncodedPair("a", (1,) * 600, (1,) * 300, (1,) * 300)]
    batch = collate(pairs, [0])
    assert worth_packing(batch), "on a CPU"
    assert worth_packing(batch, 4096) and worth_packing(batch, 4096, skips=True)
    short = collate([EncodedPair("a", (1,) * 40, (1,) * 900, (1,) * 900)], [0])
    assert not worth_packing(short) and not worth_packing(short, 4096) and not worth_packing(short, 4096, skips=True)
    between = collate([EncodedPair("a", (1,) * 300, (1,) * 600, (1,) * 600)], [0])
    assert worth_packing(between, 4096) and not worth_packing(between, 1024)
    assert worth_packing(between, 1024, skips=True), "by a kernel that leaves out what is masked"
