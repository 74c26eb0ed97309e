"""How workers work on one model: reductions, explicit gradient sums (ddp), or sharded blocks (fsdp, FSDP2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rcray.calibration import Reduce
from rcray.models.blocks import blocks_of
from rcray.models.forward import body_of
from rcray.models.load import CPU

#: Elements of one all-reduce: many small adapters travel together, a large matrix alone.
BUCKET = 2**22


@dataclass
class Workers:
    """How workers share a step; by default there is one."""

    count: int = 1
    reduce: Reduce | None = None
    #: Sums the gradients over the workers; None: one worker, or a sharded model that does it itself.
    sum_gradients: Callable[[Sequence[Tensor]], None] | None = None


class ProcessGroup:
    """Reductions over the workers of a torch process group, which may know tensors of its own device only."""

    def __init__(self, device: torch.device = CPU):
        self.device = device

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over workers."""
        total = tensor.to(self.device).contiguous()
        dist.all_reduce(total)
        return total.to(tensor.device)

    def gather(self, values: Tensor) -> Tensor:
        """All workers' values, [workers, ...]."""
        here = values.to(self.device).contiguous()
        rows = [torch.empty_like(here) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, here)
        return torch.stack(rows).to(values.device)


def sum_gradients(gradients: Sequence[Tensor]) -> None:
    """Sums every gradient over the workers, in place; sharded ones were reduced by their own backward."""
    bucket: list[Tensor] = []
    size = 0
    for gradient in [g for g in gradients if not isinstance(g, DTensor)]:
        if bucket and (size + gradient.numel() > BUCKET or gradient.dtype != bucket[0].dtype):
            _sum_bucket(bucket)
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.numel()
    if bucket:
        _sum_bucket(bucket)


def _sum_bucket(bucket: list[Tensor]) -> None:
    if len(bucket) == 1 and bucket[0].is_contiguous():
        dist.all_reduce(bucket[0])
        return
    flat = torch.cat([g.reshape(-1) for g in bucket])
    dist.all_reduce(flat)
    for gradient, part in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
        gradient.copy_(part.view_as(gradient))


def clip_norm(parameters: Sequence[nn.Parameter], limit: float) -> Tensor:
    """Like torch's `clip_grad_norm_`, over whole and sharded gradients together."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    whole = [g for g in gradients if not isinstance(g, DTensor)]
    shards = [g.to_local() for g in gradients if isinstance(g, DTensor)]
    device = gradients[0].device

    def squares(parts: Sequence[Tensor]) -> Tensor:
        norms = [torch.linalg.vector_norm(g, dtype=torch.float64).square() for g in parts if g.numel()]
        return torch.stack(norms).sum() if norms else torch.zeros((), dtype=torch.float64, device=device)

    sharded = squares(shards)
    dist.all_reduce(sharded)
    norm = (squares(whole) + sharded).sqrt()
    factor = (limit / (norm + 1e-6)).clamp(max=1)  # torch's own epsilon; multiplied by 1, for nobody waits to ask
    for part in (*whole, *shards):
        part.mul_(factor)
    return norm


def shard(model: Any, *, mixed: torch.dtype | None = None) -> None:
    """FSDP2: every block and the rest of the body are sharded over all workers.

    Whole on each worker stay what the step handles by hand: the head, whose gradient is a by-product of the
    likelihoods, and trained adapters, which are small. Their gradients are summed explicitly.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    body = body_of(model)
    device = next(model.parameters()).device
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    trained = [p for p in model.parameters() if p.requires_grad]
    by_hand = {model.get_output_embeddings().weight}
    if len(trained) < sum(1 for _ in model.parameters()):
        by_hand |= set(trained)
    options: dict[str, Any] = {"mesh": mesh, "ignored_params": by_hand}
    if mixed is not None:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=mixed, reduce_dtype=torch.float32)
    for block in blocks_of(body):
        fully_shard(block, **options)
    fully_shard(body, **options)
    for module in body.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no scaled sums
            module.set_gradient_divide_factor(1.0)  # seeds are over the pairs of all workers already: sum, not mean
