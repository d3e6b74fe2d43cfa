"""The parts of a request that cannot run on CPUs, and their replacements in a rehearsal.

With DeepSpeed 0.19.8 on gloo fp16 is refused, and quantized communication and NVMe fail in a step.
"""

from __future__ import annotations

from dataclasses import replace

from ..config.plain import dotted
from .reconcile import Reconciler
from .request import Request

_ZERO = "zero_optimization"


def rehearsed(request: Request, chosen: Reconciler) -> Request:
    """Return a request without settings of GPUs only. Choose a precision, and note the changes.

    Settings that belong to fp16 or NVMe, and FSDP2's offload, are left out without a notice.
    """
    if request.fsdp:
        return replace(request, fsdp={**request.fsdp, "cpu_offload": False})

    precision = chosen.found("mixed_precision")
    if precision.value == "fp16":
        chosen.mixed_precision = "bf16"
        chosen.notes.append(
            f"{precision.origin}: DeepSpeed has no fp16 on a CPU: rehearsed in bf16"
        )
    engine = dict(request.deepspeed)
    for key in ("fp16", "aio"):
        engine.pop(key, None)
    zero = engine[_ZERO] = dict(engine[_ZERO])
    for key, value in dotted(request.deepspeed[_ZERO]):
        if value == "nvme" or (value and key.startswith("zero_quantized")):
            del zero[key.removesuffix(".device")]
            place = request.origins[f"deepspeed.{_ZERO}.{key}"]
            chosen.notes.append(f"{place}: left out of a rehearsal: DeepSpeed has it on GPUs only")
    return replace(request, deepspeed=engine)
