"""A device without memory or arithmetic, and a watch over what is asked of it.

torch's slot for devices of other makers is given a name, and its tensors are fake ones: shape, dtype and life span, no
content. CPU tensors stay real, so that code goes its real way wherever it decides on the host. The watch sees every
operation:

  waits     the host reads something off the device and stops until that is computed: a number, a copy, a mask's places
  stalls    a copy to the device that the host waits for: of memory that is not pinned, or not asked not to wait
  products  floating point operations of matrix products, by dtype
  attention calls by dtype and kind, causal or masked
  peak      bytes alive at once

It belongs in a process of its own: from the first call on torch takes the device for this machine's accelerator.
"""

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from transformers import masking_utils

NAME = "pretend"
_AUTOCAST_KEY = "AutocastPrivateUse1"
SHOWN_NUMBER = 0.5  # what the host reads off the device, whatever it asks for

aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
_PLACES_OF_A_MASK = (aten.nonzero.default, aten.masked_select.default)
_INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)
_FACTORS = {
    aten.mm.default: (0, 1),
    aten.mm.out: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.addmm_.default: (1, 2),
    aten.dot.default: (0, 1),
}
#: What CUDA's autocast computes in the lower precision, and what in float32: of each what language models use.
_LOWER = ("linear", "matmul", "bmm", "mm", "addmm", "baddbmm")
_WIDER = ("layer_norm", "softmax.int", "log_softmax.int")
_FALLBACK, _AUTOCAST = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")


def pretend_device() -> torch.device:
    """The device; the first call gives one to this process."""
    if not hasattr(torch, NAME):
        _setup_privateuseone_for_python_backend(NAME)
        getattr(torch, NAME).get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
        _FALLBACK.fallback(torch.library.fallthrough_kernel, _AUTOCAST_KEY)
        for names, wide in ((_LOWER, False), (_WIDER, True)):
            for name in names:
                _AUTOCAST.impl(name, _in_precision(name, wide), _AUTOCAST_KEY)
    return torch.device(NAME, 0)


def _in_precision(name: str, wide: bool) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    operation = getattr(getattr(aten, packet), overload or "default")
    autocast = torch._C.DispatchKeySet(torch._C._dispatch_key_parse(_AUTOCAST_KEY))

    def cast(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.float32 if wide else torch.get_autocast_dtype(NAME)
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            return operation(*(_cast(value, dtype) for value in args), **kwargs)

    return cast


class Watch(TorchDispatchMode):
    """Counts; within it tensors can be made on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.waits: Counter[str] = Counter()
        self.stalls: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()  # to the device, without waiting
        self.products: Counter[str] = Counter()
        self.attention: Counter[str] = Counter()
        self.live = self.peak = 0
        self._known: set[int] = set()
        self._pinned: weakref.WeakSet[Any] = weakref.WeakSet()
        self._above = _Above(self)
        self._tracing_before = masking_utils.is_tracing
        self._attention_before, self._list_before = F.scaled_dot_product_attention, FakeTensor.tolist

    def __enter__(self) -> "Watch":
        F.scaled_dot_product_attention = self._attend  # type: ignore
        masking_utils.is_tracing = lambda tensor=None: False  # it takes fake tensors for a graph under construction
        FakeTensor.tolist = lambda tensor: self._listed(tensor)  # type: ignore
        self._above.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        self._above.__exit__(*problem)
        F.scaled_dot_product_attention = self._attention_before  # type: ignore
        masking_utils.is_tracing = self._tracing_before
        FakeTensor.tolist = self._list_before  # type: ignore

    def forget(self) -> None:
        """Starts to count anew; what is alive stays alive."""
        for counter in (self.waits, self.stalls, self.copies, self.products, self.attention):
            counter.clear()
        self.peak = self.live

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE and isinstance(args[0], FakeTensor):  # more than half of all that is asked
            return args[0].fake_device
        target = kwargs.get("device")
        moves_here = target is not None and torch.device(target).type == NAME
        if not moves_here and not any(map(_is_here, _leaves((args, kwargs)))):
            return func(*args, **kwargs)
        if func in (aten.allclose.default, aten.equal.default):
            self.waits[f"comparison read at {_line()}"] += 1
            return True
        if func is aten._local_scalar_dense.default:
            self.waits[f"number read at {_line()}"] += 1
            dtype = args[0].dtype
            return True if dtype == torch.bool else SHOWN_NUMBER if dtype.is_floating_point else 1
        if func is aten._to_copy.default and target is not None and moves_here != _is_here(args[0]):
            return self._moved(args[0], kwargs, here=moves_here)
        if func is aten.copy_.default and _is_here(args[0]) != _is_here(args[1]):
            self._count_copy(args[1], args[0], bool(args[2] if len(args) > 2 else kwargs.get("non_blocking")))
            return args[0]
        if func in _PLACES_OF_A_MASK or (func in _INDEXING and any(_is_mask(index) for index in args[1])):
            self.waits[f"mask read at {_line()}"] += 1
        output = self.fake.__torch_dispatch__(func, types, args, kwargs)  # as within `with self.fake`, and sooner
        if func in _FACTORS:
            left, right = (args[i] for i in _FACTORS[func])
            self.products[_name(left.dtype)] += 2 * left.numel() * (right.shape[-1] if right.dim() > 1 else 1)
        for tensor in _leaves(output):
            self.adopt(tensor)
        return output

    def adopt(self, tensor: Any) -> None:
        """Counts a tensor's memory from now until it is gone."""
        if not _is_here(tensor):
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size

    def _moved(self, tensor: Tensor, options: dict[str, Any], *, here: bool) -> Tensor:
        dtype = options.get("dtype") or tensor.dtype
        if here:
            with self.fake:
                copy = torch.empty(tensor.shape, dtype=dtype, device=pretend_device())
            self.adopt(copy)
        else:
            copy = torch.full(tensor.shape, SHOWN_NUMBER).to(dtype)
        self._count_copy(tensor, copy, bool(options.get("non_blocking")))
        return copy

    def _count_copy(self, source: Tensor, target: Tensor, asynchronous: bool) -> None:
        host = source if _is_here(target) else target
        waits = not (asynchronous and host.untyped_storage() in self._pinned)
        if _is_here(target):
            (self.stalls if waits else self.copies)[f"{tuple(source.shape)} copied there at {_line()}"] += 1
        elif waits:
            self.waits[f"{tuple(source.shape)} copied back at {_line()}"] += 1

    def _listed(self, tensor: Tensor) -> Any:
        """A list is read at once, not number by number."""
        self.waits[f"{tuple(tensor.shape)} read at {_line()}"] += 1
        return torch.full(tensor.shape, SHOWN_NUMBER).to(tensor.dtype).tolist()

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *others: Any, **options: Any
    ) -> Tensor:
        if not _is_here(query):
            return self._attention_before(query, key, value, attn_mask, *others, **options)
        if torch.is_autocast_enabled(NAME):
            query, key, value = (_cast(t, torch.get_autocast_dtype(NAME)) for t in (query, key, value))
        kind = "masked" if attn_mask is not None else "causal" if options.get("is_causal") else "all"
        self.attention[f"{_name(query.dtype)} {kind}"] += 1
        output: Tensor = _FusedAttention.apply(query, key, value, attn_mask)
        return output


class _Above(TorchFunctionMode):
    """What does not come down to the dispatcher: lists of numbers and pinned memory. Nothing is drawn by chance."""

    def __init__(self, watch: Watch):
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor, Tensor.new_tensor):
            return self._from_numbers(func, args, kwargs)
        if func is Tensor.pin_memory:
            self.watch._pinned.add(args[0].untyped_storage())
            return args[0]
        if func is torch.randperm:  # which numbers are drawn does not matter, and to draw them takes seconds
            return torch.arange(*args, **{name: value for name, value in kwargs.items() if name != "generator"})
        return func(*args, **kwargs)

    def _from_numbers(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
        like = args[0] if func is Tensor.new_tensor else None
        place = kwargs.get("device", like.device if like is not None else None)
        if place is None or torch.device(place).type != NAME:
            tensor: Tensor = func(*args, **kwargs)
            return tensor
        dtype = kwargs.get("dtype") or (like.dtype if like is not None else None)
        values = args[1] if like is not None else args[0]
        return torch.tensor(values, dtype=dtype).to(pretend_device())


class _FusedAttention(torch.autograd.Function):
    """As much memory as a fused kernel takes: inputs and output kept, a mask as a bias of the products' dtype."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:  # type: ignore[override]
        bias = None if mask is None else mask.to(query.dtype)
        output = torch.empty_like(query)
        normaliser = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, normaliser, bias)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *_ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        yield value
        return
    for part in value:
        yield from _leaves(part)


def _is_here(value: Any) -> bool:
    return isinstance(value, FakeTensor) and value.fake_device.type == NAME


def _is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.bool, torch.uint8)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    wide = isinstance(value, Tensor) and _is_here(value) and value.is_floating_point() and value.dtype != torch.float64
    return value.to(dtype) if wide else value


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _line() -> str:
    """The innermost line of rcray that asked, and of transformers where that asked on its behalf."""
    frame: Any = sys._getframe(1)
    by = ""
    while frame is not None:
        path = frame.f_code.co_filename
        if "/rcray/" in path and "/pretend/" not in path:
            return f"{path.rpartition('/rcray/')[2]}:{frame.f_lineno}{by}"
        if not by and "/transformers/" in path:
            by = f" by transformers' {path.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return by or "?"
