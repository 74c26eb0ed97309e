"""Whole tensors out of sharded ones and back, so that a checkpoint does not know how many workers wrote it."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def has_shards(model: Any) -> bool:
    """Whether FSDP2 holds parts of this model."""
    return any(isinstance(p, DTensor) for p in model.parameters())


def whole(value: Any) -> Any:
    """The same structure, every tensor gathered and copied to main memory. All workers must take part.

    Tensors that each worker holds whole (adapters, the head, their moments) are copied too: a thread writes the
    structure while training changes them.
    """
    if isinstance(value, Tensor):
        value = value.full_tensor() if isinstance(value, DTensor) else value
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: whole(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(whole(part) for part in value)
    return value


def whole_weights(model: Any, *, trained_only: bool) -> dict[str, Tensor]:
    """Parameters by name, gathered; tied ones once. All workers must take part."""
    named = ((name, p) for name, p in model.named_parameters() if p.requires_grad or not trained_only)
    return {name: whole(p.detach()).contiguous() for name, p in named}


def copy_into(parameter: Tensor, saved: Tensor) -> None:
    """Loads a whole tensor into a parameter, sharded or not."""
    with torch.no_grad():
        parameter.copy_(sharded_like(saved, parameter))


def sharded_like(saved: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor, cut as the parameter is."""
    if not isinstance(parameter, DTensor):
        return saved
    return distribute_tensor(
        saved.to(device=parameter.device, dtype=saved.dtype), parameter.device_mesh, parameter.placements
    )


def load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Like `load_state_dict`, with moments cut as their parameters are."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = {
        index: {
            name: sharded_like(value, parameters[index]) if _is_moment(value, parameters[index]) else value
            for name, value in moments.items()
        }
        for index, moments in saved["state"].items()
    }
    if getattr(optimizer, "is_paged", False):
        optimizer.load_state_dict({**saved, "state": state}, move_to_device=False)  # type: ignore[call-arg]
        _page(optimizer)
    else:
        optimizer.load_state_dict({**saved, "state": state})


def _page(optimizer: Any) -> None:
    """Moments of a paged optimizer where it would have made them; bitsandbytes loads them onto the GPU, to stay."""
    for parameter, moments in optimizer.state.items():
        for name in ("state1", "state2"):
            if name in moments:
                loaded = moments[name]
                moments[name] = optimizer.get_state_buffer(parameter, dtype=loaded.dtype)
                moments[name].copy_(loaded)


def _is_moment(value: Any, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape and isinstance(parameter, DTensor)
