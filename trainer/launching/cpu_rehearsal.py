"""The parts of a request that mean something else in a rehearsal on CPUs, said and not hidden.

Measured with DeepSpeed 0.19.8 on gloo: pin_memory, overlap_comm and offloads to the CPU run, with
equal losses, and change nothing. fp16 is refused ("Type fp16 is not supported on your device");
quantized communication and NVMe end in the middle of a step, for DeepSpeed has no such operators
here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .request import Request

_QUANTIZED = (
    "zero_quantized_weights",
    "zero_quantized_gradients",
    "zero_quantized_nontrainable_weights",
)

_ZERO, _IDLE, _LEFT_OUT = "zero_optimization", "no effect in a rehearsal", "left out of a rehearsal"


def rehearsal_precision(strategy: str, precision: str) -> str:
    """Return the precision that can run on a CPU: DeepSpeed has fp16 on accelerators only, bf16
    everywhere.
    """
    return "bf16" if strategy.startswith("zero") and precision == "fp16" else precision


def rehearsal_changes(request: Request) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the FSDP2 arguments and the DeepSpeed configuration without what works with GPUs only.

    That is FSDP2's offload, which pins memory for a GPU; the settings of the loss scaler, which go
    with fp16; quantized communication, and parameters on NVMe with what reads them.
    """
    fsdp = request.fsdp | {"cpu_offload": False} if request.fsdp else request.fsdp
    deepspeed = {key: value for key, value in request.deepspeed.items() if key != "fp16"}
    if "aio" in deepspeed:
        deepspeed["aio"] = {
            key: value for key, value in deepspeed["aio"].items() if key != "use_gds"
        }
    if zero := deepspeed.get(_ZERO):
        absent = {key.split(".")[2] for key, what, _ in _differences(request) if what == _LEFT_OUT}
        deepspeed[_ZERO] = {key: value for key, value in zero.items() if key not in absent}
    return fsdp, deepspeed


def rehearsal_notices(request: Request) -> tuple[str, ...]:
    """Return one line for each wish that has no effect on a CPU, or another one."""
    lines = [f"{request.origins[key]}: {what}: {why}" for key, what, why in _differences(request)]
    asked = request.mixed_precision
    if (
        asked is not None
        and (runs := rehearsal_precision(request.strategy, asked.value)) != asked.value
    ):
        lines.insert(
            0, f"{asked.origin}: DeepSpeed has no {asked.value} on a CPU: rehearsed in {runs}"
        )
    return tuple(lines)


def _differences(request: Request) -> Iterator[tuple[str, str, str]]:
    """Yield the keys of ``Request.origins`` that a CPU does without, whether they are left out, and
    why.
    """
    if request.fsdp.get("cpu_offload"):
        yield "fsdp.cpu_offload", _IDLE, "already on the CPU"
    zero, above = request.deepspeed.get(_ZERO, {}), f"deepspeed.{_ZERO}"
    for part in ("offload_optimizer", "offload_param"):
        settings = zero.get(part) or {}
        device = settings.get("device")
        if device == "cpu":
            yield f"{above}.{part}.device", _IDLE, "already on the CPU"
        if settings.get("pin_memory") and device != "nvme":
            yield f"{above}.{part}.pin_memory", _IDLE, "nothing is copied to a GPU"
    if zero.get("overlap_comm"):
        yield f"{above}.overlap_comm", _IDLE, "gloo has no streams to overlap on"
    for key in _QUANTIZED:
        if zero.get(key):
            yield (
                f"{above}.{key}",
                _LEFT_OUT,
                "DeepSpeed quantizes on GPUs only; the numbers are those without",
            )
    if (zero.get("offload_param") or {}).get("device") == "nvme":
        yield f"{above}.offload_param.device", _LEFT_OUT, "the parameters stay in memory"
