"""The parts of a request that cannot run on CPUs, and what a rehearsal runs instead.

Measured with DeepSpeed 0.19.8 on gloo: pin_memory, overlap_comm and offloads to the CPU run, with
equal losses, and change nothing. fp16 is refused ("Type fp16 is not supported on your device").
Quantized communication and NVMe end in the middle of a step, for DeepSpeed has no such operators
there.
"""

from __future__ import annotations

from typing import Any

from .request import Request

_ZERO = "zero_optimization"
_QUANTIZED = (
    "zero_quantized_weights",
    "zero_quantized_gradients",
    "zero_quantized_nontrainable_weights",
)


def rehearsal_precision(strategy: str, precision: str) -> str:
    """Return the precision that can run on a CPU: DeepSpeed has fp16 on accelerators only."""
    if strategy.startswith("zero") and precision == "fp16":
        return "bf16"
    return precision


def rehearsal_changes(request: Request) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the FSDP2 arguments and the DeepSpeed configuration without what works on GPUs only.

    That is FSDP2's offload, which pins memory for a GPU; the settings of the loss scaler, which
    belong to fp16; reads from disk straight to a GPU; and what ``rehearsal_notices`` lists.
    """
    fsdp = dict(request.fsdp)
    if fsdp:
        fsdp["cpu_offload"] = False

    deepspeed = dict(request.deepspeed)
    deepspeed.pop("fp16", None)
    if "aio" in deepspeed:
        deepspeed["aio"] = _without(deepspeed["aio"], ["use_gds"])
    if deepspeed.get(_ZERO):
        deepspeed[_ZERO] = _without(deepspeed[_ZERO], list(_left_out(request)))
    return fsdp, deepspeed


def rehearsal_notices(request: Request) -> tuple[str, ...]:
    """Return one line for each setting that a rehearsal runs otherwise than it was requested."""
    lines = []
    requested = request.mixed_precision
    if requested is not None:
        runs = rehearsal_precision(request.strategy, requested.value)
        if runs != requested.value:
            lines.append(
                f"{requested.origin}: DeepSpeed has no {requested.value} on a CPU: "
                f"rehearsed in {runs}"
            )

    for key, reason in _left_out(request).values():
        origin = request.origins[f"deepspeed.{_ZERO}.{key}"]
        lines.append(f"{origin}: left out of a rehearsal: {reason}")
    return tuple(lines)


def _left_out(request: Request) -> dict[str, tuple[str, str]]:
    """Return what DeepSpeed cannot do on a CPU: by key of its ZeRO section, the key and why."""
    zero = request.deepspeed.get(_ZERO, {})
    found = {}
    for key in _QUANTIZED:
        if zero.get(key):
            reason = "DeepSpeed quantizes on GPUs only; the numbers are those without"
            found[key] = (key, reason)

    offload = zero.get("offload_param") or {}
    if offload.get("device") == "nvme":
        found["offload_param"] = ("offload_param.device", "the parameters stay in memory")
    return found


def _without(settings: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in keys}
