"""The parts of a request that cannot run on CPUs, and their replacements in a rehearsal.

Measured with DeepSpeed 0.19.8 on gloo: pin_memory, overlap_comm and offloads to the CPU run, with
equal losses. fp16 is refused ("Type fp16 is not supported on your device"). Quantized communication
and NVMe end in the middle of a step, because DeepSpeed has no such operators there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..errors import Sourced
from .request import Request

_ZERO = "zero_optimization"
_QUANTIZED = (
    "zero_quantized_weights",
    "zero_quantized_gradients",
    "zero_quantized_nontrainable_weights",
)


def rehearsal_precision(strategy: str, precision: str) -> str:
    """Return the precision that can run on a CPU: DeepSpeed has fp16 on accelerators only."""
    return "bf16" if strategy.startswith("zero") and precision == "fp16" else precision


def rehearsed(request: Request) -> Request:
    """Return a request without the settings that work on GPUs only.

    These are FSDP2's offload, which pins memory for a GPU, the settings of the loss scaler, which
    belong to fp16, reads from disk straight to a GPU, and those of ``rehearsal_notices``.
    """
    if request.fsdp:
        return replace(request, fsdp={**request.fsdp, "cpu_offload": False})
    deepspeed: dict[str, Any] = {**request.deepspeed}
    deepspeed.pop("fp16", None)
    if "aio" in deepspeed:
        deepspeed["aio"] = {**deepspeed["aio"], "use_gds": False}
    if _ZERO in deepspeed:
        left_out = _left_out(request)
        zero = deepspeed[_ZERO].items()
        deepspeed[_ZERO] = {key: value for key, value in zero if key not in left_out}
    return replace(request, deepspeed=deepspeed)


def rehearsal_notices(request: Request, precision: Sourced[str] | None = None) -> list[str]:
    """Return one line for each setting that runs otherwise in a rehearsal than on GPUs.

    Args:
        precision: the requested precision, if the launch file gives none.
    """
    lines = []
    asked = request.mixed_precision or precision
    if asked is not None and rehearsal_precision(request.strategy, asked.value) != asked.value:
        lines.append(f"{asked.origin}: DeepSpeed has no fp16 on a CPU: rehearsed in bf16")
    for key in _left_out(request):
        place = request.origins[f"deepspeed.{_ZERO}.{key}"]
        lines.append(f"{place}: left out of a rehearsal: DeepSpeed has it on GPUs only")
    return lines


def _left_out(request: Request) -> list[str]:
    """Return the keys of DeepSpeed's ZeRO section that DeepSpeed cannot run on a CPU."""
    zero = request.deepspeed.get(_ZERO, {})
    found = [key for key in _QUANTIZED if zero.get(key)]
    if zero.get("offload_param", {}).get("device") == "nvme":
        found.append("offload_param")
    return found
