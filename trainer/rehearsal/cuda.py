"""``torch.cuda`` of a machine with GPUs that compute nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses import fake_tensor

from .fake_device import FakeDevice

_NOTHING = (
    "init _lazy_init set_device empty_cache ipc_collect set_stream manual_seed manual_seed_all "
    "set_rng_state set_rng_state_all reset_peak_memory_stats set_sync_debug_mode _sleep"
)
_TRUE = "is_available is_initialized is_bf16_supported can_device_access_peer"
_FALSE = "is_current_stream_capturing _is_in_bad_fork memory_reserved max_memory_reserved"


class Stream:
    """A stream of the device, or an event, whose work is always done."""

    cuda_stream = stream_id = priority = 0
    device = torch.device("cuda", 0)
    synchronize: Callable[..., None]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method that does nothing: ``record``, ``wait_stream``, ``is_capturing``, ..."""
        return _always(None)

    def record_event(self, event: Any = None) -> Any:
        return event or Event()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return 1.0

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class Event(Stream):
    """A class of its own, for code that asks."""


def _always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value  # a new function each: dynamo has a table of them


def replace_in(owner: Any, **members: Any) -> None:
    """Replace attributes of a module or a class. For the rest of the process."""
    for name, member in members.items():
        setattr(owner, name, member)


def _answer(owner: Any, **answers: Any) -> None:
    """Replace functions of a module or a class by functions with these results."""
    replace_in(owner, **{name: _always(answer) for name, answer in answers.items()})


def install_cuda(device: FakeDevice, name: str, total_bytes: int) -> None:
    """Give ``torch.cuda`` of this process a single GPU of a kind. For the rest of the process.

    As if CUDA_VISIBLE_DEVICES named a GPU for each process of the machine. The device records the
    waits.
    """
    stream = Stream()
    random = torch.zeros(16, dtype=torch.uint8)
    _answer(
        torch.cuda,
        **dict.fromkeys(_NOTHING.split()),
        **dict.fromkeys(_TRUE.split(), True),
        **dict.fromkeys(_FALSE.split(), 0),
        device_count=1,
        current_device=0,
        get_device_name=name,
        get_device_properties=SimpleNamespace(
            name=name, total_memory=total_bytes, major=9, minor=0, multi_processor_count=132
        ),
        get_device_capability=(9, 0),
        current_stream=stream,
        default_stream=stream,
        mem_get_info=(total_bytes, total_bytes),
        memory_stats={},
        get_rng_state=random,
        get_rng_state_all=[random],
        cudart=SimpleNamespace(cudaHostRegister=_always(0), cudaHostUnregister=_always(0)),
    )
    _answer(
        torch.accelerator,
        current_stream=stream,
        set_stream=None,
        is_available=True,
        current_device_index=0,
    )
    _answer(torch.cuda.nvtx, range_push=0, range_pop=0, mark=0, range_start=0, range_end=0)
    _answer(torch.cuda.nccl, version=(2, 28, 9))
    _answer(fake_tensor, init_gpu_context=None)  # of a torch with CUDA
    _answer(torch._C, _cuda_getCurrentRawStream=0)  # for bitsandbytes
    _answer(torch.Tensor, record_stream=None, is_pinned=False)

    def waits(*args: Any, **kwargs: Any) -> None:
        device.wait("waits", is_known=True)

    replace_in(
        torch.cuda,
        synchronize=waits,
        memory_allocated=lambda *args: device.ledger.live,
        max_memory_allocated=lambda *args: device.ledger.most,
        Stream=Stream,
        Event=Event,
        stream=contextlib.nullcontext,
        device=contextlib.nullcontext,
    )
    replace_in(torch.accelerator, synchronize=waits)
    replace_in(Stream, synchronize=waits)
    replace_in(torch, Event=Event, Stream=Stream)
    replace_in(torch.version, cuda="13.0")
    replace_in(
        torch.Tensor,
        cuda=lambda tensor, *args, **kwargs: tensor.to("cuda"),
        pin_memory=lambda tensor, *args, **kwargs: tensor,
    )
    torch._C._set_only_lift_cpu_tensors(True)
