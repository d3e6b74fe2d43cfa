"""DeepSpeed's settings, from a JSON file or from a section of an accelerate file, as a Request."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...config.documents import Document, read_document
from ...config.plain import dotted
from ...config.validate import with_values
from ...errors import Origin, Sourced
from ...private.deepspeed_engine import quiet
from ..request import Request, visible_gpus
from .accelerate_keys import Entries, merge, read_model
from .deepspeed_model import UNSUPPORTED, deepspeed_model
from .sections import read_sections
from .switched_off import is_on

ZERO = "zero_optimization"

# By key of an accelerate file's deepspeed_config, the same setting in DeepSpeed's JSON.
INLINE = {
    "zero_stage": "zero_optimization.stage",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
    "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
}

# The keys of settings of the training config. The rest of the JSON goes to DeepSpeed.
_SETTINGS = {
    "accumulation_steps": "gradient_accumulation_steps",
    "micro_batch_size": "train_micro_batch_size_per_gpu",
    "global_batch_size": "train_batch_size",
    "max_grad_norm": "gradient_clipping",
}
# DeepSpeed ignores these in other stages than 3, without a word.
_OF_STAGE_3 = ("offload_param.device", "zero_hpz_partition_size", "zero_quantized")
_OLD_NAMES = {"cpu_offload": "offload_optimizer", "cpu_offload_param": "offload_param"}


def read_deepspeed_file(path: str | Path, *, use_cpu: bool = False) -> Request:
    """Read a DeepSpeed JSON."""
    doc = read_document(path)
    return replace(_request(doc, use_cpu=use_cpu), files=(doc.path,))


def read_section(entries: Entries, origin: Origin, *, use_cpu: bool) -> Request:
    """Return the request of the section deepspeed_config, or of the JSON that the section names."""
    given = {key: entries[name] for name, key in INLINE.items() if name in entries}
    file = entries.get("deepspeed_config_file")
    if file:
        for found in given.values():
            raise found.error(f"is given beside {file.origin}, which must say it; remove it here")
        return read_deepspeed_file(file.value, use_cpu=use_cpu)

    if INLINE["zero_stage"] not in given:
        raise origin.error("needs deepspeed_config.zero_stage: accelerate takes 2 without a word")
    values = {
        key: found.value
        for key, found in given.items()
        if str(found.value).lower() not in ("none", "false")
    }
    origins = {key: found.origin for key, found in given.items()}
    doc = Document(path=origin.source, data=with_values({}, values), origins=origins)
    return _request(doc, use_cpu=use_cpu)


def _request(doc: Document, *, use_cpu: bool) -> Request:
    """Return the request of a document."""
    data = _effective(doc.data)
    # At its import DeepSpeed chooses the process's device. The GPUs are not hidden yet.
    if use_cpu or not visible_gpus():
        os.environ["DS_ACCELERATOR"] = "cpu"
    with quiet():
        read: Any = read_model(deepspeed_model(), data, doc.origin)

    stage = read.zero_optimization.stage
    origin = doc.origin(f"{ZERO}.stage")
    note = f"{origin.place}: DeepSpeed shards nothing in stage 0: runs as DDP"
    for key, value in dotted(data.get(ZERO, {})):
        if stage < 3 and is_on(value) and key.startswith(_OF_STAGE_3):
            rule = f"has no effect in stage {stage}; remove it, or set stage 3"
            raise doc.origin(f"{ZERO}.{key}").error(rule, value)
    settings = {
        field: Sourced(data[key], doc.origin(key))
        for field, key in _SETTINGS.items()
        if data.get(key) is not None
    }
    given = [name for name in ("fp16", "bf16") if name in data]
    are_on = [name for name in given if getattr(read, name).enabled]
    are_off = given[:1] if all("enabled" in data[name] for name in given) else []
    for name in are_on or are_off:
        precision = Sourced(name if are_on else "no", doc.origin(f"{name}.enabled"))
        merge(settings, {"mixed_precision": precision})
    strategy: Any = f"zero{stage}" if stage else "ddp"
    return Request(
        strategy=strategy,
        strategy_origin=origin,
        settings=settings | read_sections(doc, data),
        deepspeed=_engine_config(data) if stage else {},
        notices=() if stage else (note,),
        origins={f"deepspeed.{key}": origin for key, origin in doc.origins.items()},
    )


def _effective(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that count, under DeepSpeed's current names: no comments, no "auto"."""
    found = {}
    for key, value in data.items():
        # A log that is off has an interval. Of "auto" DeepSpeed's default holds.
        if not (key.startswith("_") or key == "steps_per_print" or value == "auto"):
            found[key] = _effective(value) if isinstance(value, dict) else value
    if "bfloat16" in found:
        found.setdefault("bf16", found.pop("bfloat16"))
    for old, part in _OLD_NAMES.items():
        if found.pop(old, False):
            found.setdefault(part, {"device": "cpu"})
    return found


def _engine_config(data: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration for DeepSpeed's engine, without ``Request.settings``."""
    left_out = {*UNSUPPORTED, *_SETTINGS.values(), "optimizer", "scheduler"}
    return {key: value for key, value in data.items() if key not in left_out}
