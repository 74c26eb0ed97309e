"""The optimizer of a GPU: one kernel for all parameters, clipping that waits for nothing, and the same update."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

from rcray.config.training import TrainConfig
from rcray.train.checkpoint import _in_main_memory
from rcray.train.parallel import clip_norm
from rcray.train.setup import build_optimizer
from rcray.train.sharded import load_optimizer, whole

CARD, CPU = torch.device("cuda", 0), torch.device("cpu")


class Kernels(TorchDispatchMode):
    """What is asked of torch, by name; torch has the fused kernel for CPU tensors, too, so that it runs here."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def updated(device, steps=3):
    """Three matrices after a few steps, and the kernels of the last step."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(4, width)) for width in (2, 3, 5)]
    optimizer = build_optimizer(parameters, TrainConfig(learning_rate=0.01, weight_decay=0.1), device)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape)
        with Kernels() as kernels:
            optimizer.step()
    return [p.detach() for p in parameters], kernels.names


def test_adamw_is_one_kernel_for_all_parameters_on_a_gpu_and_the_same_update():
    fused, kernels = updated(CARD)
    plain, others = updated(CPU)
    assert kernels.count("_fused_adamw_") == 1 and len(kernels) < 6, kernels
    assert "_fused_adamw_" not in others, "a CPU's runs keep their digits"
    for one, two in zip(fused, plain, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


@pytest.fixture
def one_worker():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def stepped(device, *, sharded, saved=None):
    """A body and a head after one update, the body sharded or not, as FSDP leaves a model that is trained in full."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    if sharded:
        fully_shard(model[0], mesh=init_device_mesh("cpu", (1,)))
    optimizer = build_optimizer(list(model.parameters()), TrainConfig(learning_rate=0.1), device)
    if saved is not None:
        load_optimizer(optimizer, saved)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return [whole(p) for p in model.parameters()], optimizer


def test_a_sharded_model_is_updated_on_a_gpu_as_a_whole_one(one_worker):
    """Torch's fused kernel takes no list of whole and sharded tensors, and FSDP leaves the head whole."""
    sharded, _ = stepped(CARD, sharded=True)
    plain, _ = stepped(CARD, sharded=False)
    for one, two in zip(sharded, plain, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("wrote", "reads"), [(False, True), (True, False)])
def test_a_run_goes_on_with_its_own_kernel_whoever_wrote_the_checkpoint(one_worker, wrote, reads):
    """Torch takes over what the saved optimizer was set to: a sharded run would have the kernel of a whole model."""
    _, before = stepped(CARD, sharded=wrote)
    _, after = stepped(CARD, sharded=reads, saved=whole(before.state_dict()))
    assert {group["fused"] for group in after.param_groups} == {None if reads else True}
    assert {float(moments["step"]) for moments in after.state.values()} == {2.0}


@pytest.mark.parametrize("limit", [0.5, 1e3, 1e30])
def test_clipping_a_sharded_model_reads_nothing_from_the_device(one_worker, limit):
    """The step reads the norm once, with all else that it says."""
    model, whole_model = (nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)) for _ in range(2))
    whole_model.load_state_dict(model.state_dict())
    fully_shard(model[0], mesh=init_device_mesh("cpu", (1,)))
    for one in (model, whole_model):
        one(torch.ones(1, 3)).sum().backward()
    with Kernels() as kernels:
        norm = clip_norm(list(model.parameters()), limit)
    assert "_local_scalar_dense" not in kernels.names, kernels.names
    torch.testing.assert_close(norm.float(), torch.nn.utils.clip_grad_norm_(whole_model.parameters(), limit))
    for one, two in zip(model.parameters(), whole_model.parameters(), strict=True):
        torch.testing.assert_close(whole(one.grad), two.grad)
        assert one.grad.dtype == two.grad.dtype


def test_moments_that_were_paged_are_paged_again_when_a_run_goes_on(monkeypatch):
    """bitsandbytes moves what it loads onto the GPU for good: it had no room for it before."""

    def built():
        torch.manual_seed(0)
        parameter = torch.nn.Parameter(torch.randn(400, 300))
        return parameter, build_optimizer([parameter], TrainConfig(optimizer="paged_adamw"), CARD)

    before, optimizer = built()
    moments = optimizer.state[before]
    moments |= {"step": 1, "state1": torch.rand(400, 300), "state2": torch.rand(400, 300)}
    saved = _in_main_memory(optimizer.state_dict())
    after, resumed = built()
    made, load, told = [], resumed.load_state_dict, {}
    monkeypatch.setattr(resumed, "get_state_buffer", lambda p, dtype: made.append(dtype) or torch.zeros_like(p))
    monkeypatch.setattr(resumed, "load_state_dict", lambda state, **how: told.update(how) or load(state, **how))
    load_optimizer(resumed, saved)
    assert told == {"move_to_device": False} and made == [torch.float32] * 2
    for name in ("state1", "state2"):
        assert torch.equal(resumed.state[after][name], moments[name])
    assert resumed.state[after]["step"] == 1


@pytest.mark.parametrize(("name", "kind"), [("adamw8bit", "AdamW8bit"), ("paged_adamw8bit", "PagedAdamW8bit")])
def test_smaller_moments_are_bitsandbytes(name, kind):
    optimizer = build_optimizer([torch.nn.Parameter(torch.zeros(2))], TrainConfig(optimizer=name), CARD)
    assert type(optimizer).__name__ == kind and type(optimizer).__module__.startswith("bitsandbytes")
