"""The parts of a request that mean something else in a rehearsal on CPUs, said and not hidden.

Measured with DeepSpeed 0.19.8 on gloo: pin_memory, overlap_comm and offloads to the CPU run, with equal
losses, and change nothing. fp16 is refused ("Type fp16 is not supported on your device"); quantized communication and
NVMe end in the middle of a step, for DeepSpeed has no such operators here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import Origin
from .request import Request

_QUANTIZED = ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights")


def rehearsal_precision(strategy: str, precision: str) -> str:
    """Return the precision that can run on a CPU: DeepSpeed has fp16 on accelerators only, bf16 everywhere."""
    return "bf16" if strategy.startswith("zero") and precision == "fp16" else precision


def rehearsal_changes(request: Request) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the FSDP2 arguments and the DeepSpeed configuration without what works with GPUs only.

    That is FSDP2's offload, which pins memory for a GPU; the settings of the loss scaler, which go with fp16; quantized
    communication, and parameters on NVMe with what reads them.
    """
    fsdp = request.fsdp | {"cpu_offload": False} if request.fsdp else request.fsdp
    deepspeed = {key: value for key, value in request.deepspeed.items() if key != "fp16"}
    if "aio" in deepspeed:
        deepspeed["aio"] = {key: value for key, value in deepspeed["aio"].items() if key != "use_gds"}
    if zero := deepspeed.get("zero_optimization"):
        absent = {path[0] for path, _ in _left_out(request)}
        deepspeed["zero_optimization"] = {key: value for key, value in zero.items() if key not in absent}
    return fsdp, deepspeed


def rehearsal_notices(request: Request) -> tuple[str, ...]:
    """Return one line for each wish that has no effect on a CPU, or another one."""
    lines = []
    precision = request.mixed_precision
    if precision is not None:
        runs = rehearsal_precision(request.strategy, precision.value)
        if runs != precision.value:
            lines.append(f"{precision.origin}: DeepSpeed has no {precision.value} on a CPU: rehearsed in {runs}")
    zero = request.deepspeed.get("zero_optimization", {})
    for part in ("offload_optimizer", "offload_param"):
        settings = zero.get(part) or {}
        if settings.get("device") == "cpu":
            lines.append(f"{_origin(request, part, 'device')}: no effect in a rehearsal: already on the CPU")
        if settings.get("pin_memory") and settings.get("device") != "nvme":
            lines.append(
                f"{_origin(request, part, 'pin_memory')}: no effect in a rehearsal: nothing is copied to a GPU"
            )
    if zero.get("overlap_comm"):
        lines.append(f"{_origin(request, 'overlap_comm')}: no effect in a rehearsal: gloo has no streams to overlap on")
    lines += [f"{_origin(request, *path)}: left out of a rehearsal: {reason}" for path, reason in _left_out(request)]
    if request.fsdp.get("cpu_offload"):
        lines.append(f"{request.origins['fsdp.cpu_offload']}: no effect in a rehearsal: already on the CPU")
    return tuple(lines)


def _left_out(request: Request) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the keys under ``zero_optimization`` that cannot run on a CPU, and why."""
    zero = request.deepspeed.get("zero_optimization", {})
    for key in _QUANTIZED:
        if zero.get(key):
            yield (key,), "DeepSpeed quantizes on GPUs only; the numbers are those without"
    if (zero.get("offload_param") or {}).get("device") == "nvme":
        yield ("offload_param", "device"), "the parameters stay in memory"


def _origin(request: Request, *key: str) -> Origin:
    """Return the origin of the key, or of its section: an accelerate file writes offloads as one value."""
    for length in range(len(key), 0, -1):
        name = ".".join(("deepspeed", "zero_optimization", *key[:length]))
        if name in request.origins:
            return request.origins[name]
    raise AssertionError(f"no origin of {key}: every offload is typed by somebody")
