"""DeepSpeed's settings, from a JSON file or from an accelerate file's own section, as a Request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...config.documents import Document, read_document
from ...config.validate import Validator
from ...errors import ConfigError, Origin, Problem, Sourced
from ..request import Request, Strategy
from .accelerate_keys import Entries
from .deepspeed_keys import OWNER, effective, read_values
from .fsdp_file import BUILT_WHOLE, refuse_transformers_fsdp
from .sections import read_optimizer, read_scheduler
from .tables import annotation

EXPORT = "no effect: the model is written in full precision (float32)"
_DDP = (
    "stage 0 is DDP, which is started without a DeepSpeed JSON: by torchrun alone, or by accelerate launch with "
    "accel_configs/ddp.yaml"
)
STAGES: dict[int, Strategy] = {1: "zero1", 2: "zero2", 3: "zero3"}
# Keys with a field of their own in Request; the rest of the JSON goes to DeepSpeed.
_OWN_FIELDS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "optimizer",
    "scheduler",
    "fp16",
    "bf16",
    "bfloat16",
)
# Names of an older DeepSpeed, and the sections that they stand for.
_OLD_OFFLOAD = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}


def read_deepspeed_file(path: str | Path) -> Request:
    """Read a DeepSpeed JSON, as given by ``--deepspeed``.

    Raises:
        ConfigError: with every problem of the file.
    """
    check = Validator()
    request = read_json(path, check)
    if check.problems or request is None:
        raise ConfigError(check.problems)
    return replace(request, notices=tuple(check.notices))


def read_json(path: str | Path, outer: Validator) -> Request | None:
    """Return the request of a JSON; None, with problems in ``outer``, where it says nothing that can run."""
    check = Validator(owner=OWNER)
    try:
        doc = read_document(path, what="DeepSpeed config file")
        refuse_transformers_fsdp(doc)
        if "distributed_type" in doc.data:
            rule = "this is an accelerate config: give it to accelerate launch, or with --accel_config"
            raise ConfigError(Problem(origin=Origin(doc.path), rule=rule))
        return _read(doc, check)
    except ConfigError as error:
        check.problems.extend(error.problems)
        return None
    finally:
        outer.problems += check.problems
        outer.notices += check.notices


def _read(doc: Document, check: Validator) -> Request | None:
    stage = _stage(doc, check)
    values = read_values(doc, stage, check)
    precision, kept = _precision(doc, values, check)
    batch, micro = values.get("train_batch_size"), values.get("train_micro_batch_size_per_gpu")
    steps = values.get("gradient_accumulation_steps")
    unit = (micro.value if micro else 1) * (steps.value if steps else 1)
    if batch is not None and batch.value % unit:
        parts = "train_micro_batch_size_per_gpu x gradient_accumulation_steps"
        check.refuse(batch, f"must be a multiple of {parts}, {unit}")
    optimizer, scheduler = read_optimizer(doc, check), read_scheduler(doc, check)
    for name in ("stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save"):
        save = values.get(f"zero_optimization.{name}")
        if stage == 3 and save is not None and save.value:
            check.notice(save, EXPORT)
    rest = {key: value for key, value in effective(doc.data).items() if key not in _OWN_FIELDS}
    if not check.problems:
        _modernize_offload(rest["zero_optimization"])
        _check_offload(doc, rest["zero_optimization"], check)
    if check.problems or stage is None:
        return None
    origins = {f"deepspeed.{'.'.join(key)}": doc.origin(key) for key in doc.paths()}
    zero = "deepspeed.zero_optimization."
    old = {zero + part: origins[zero + name] for part, name in _OLD_OFFLOAD.items() if zero + name in origins}
    return Request(
        strategy=STAGES[stage],
        strategy_origin=doc.origin(("zero_optimization", "stage")),
        mixed_precision=precision,
        accumulation_steps=steps,
        micro_batch_size=micro,
        global_batch_size=batch,
        max_grad_norm=values.get("gradient_clipping"),
        optimizer=optimizer,
        scheduler=scheduler,
        deepspeed={**rest, **kept},
        files=(doc.path,),
        origins=old | origins,
    )


def read_inline(entries: Entries, check: Validator, origin: Origin) -> Request | None:
    """Return the request of an accelerate file's ``deepspeed_config`` that names no JSON.

    Args:
        entries: the section by launcher argument name.
        origin: of the wish for DeepSpeed, for what is missing.
    """
    asked = entries.get("zero_stage")
    if asked is None:
        if not any(problem.key.startswith("deepspeed_config") for problem in check.problems):  # told already
            missing = Sourced(None, origin.named("deepspeed_config.zero_stage"))
            check.refuse(missing, "is missing, which accelerate takes as 2; write zero_stage: 1, 2 or 3")
        return None
    stage = _known_stage(asked, check, "stage 0 is DDP: write distributed_type: MULTI_GPU")
    zero: dict[str, Any] = {"stage": stage}
    origins = {"deepspeed.zero_optimization.stage": asked.origin}
    for part in _OLD_OFFLOAD:
        device, path = entries.get(f"{part}_device"), entries.get(f"{part}_nvme_path")
        if device is None or device.value == "none":
            continue
        zero[part] = {"device": device.value}
        if device.value == "nvme":
            zero[part]["nvme_path"] = path and path.value
        origins[f"deepspeed.zero_optimization.{part}"] = device.origin
        _check_device(device, part, zero[part], stage, check)
    save = entries.get("zero3_save_16bit_model")
    if save is not None and save.value:
        if stage == 3:
            zero["stage3_gather_16bit_weights_on_model_save"] = True
        check.notice(save, EXPORT if stage == 3 else f"no effect in stage {stage}")
    notice_init(entries.get("zero3_init_flag"), stage, check)
    if classes := entries.get("deepspeed_moe_layer_cls_names"):
        rule = "not supported by samecurve; use zero_optimization.leaf_module in a deepspeed_config_file"
        check.refuse(classes, rule)
    if stage is None:
        return None
    return Request(
        strategy=STAGES[stage],
        strategy_origin=asked.origin,
        accumulation_steps=entries.get("gradient_accumulation_steps"),
        max_grad_norm=entries.get("gradient_clipping"),
        deepspeed={"zero_optimization": zero},
        origins=origins,
    )


def notice_init(found: Sourced[bool] | None, stage: int | None, check: Validator) -> None:
    """Say what becomes of ``zero3_init_flag: true``."""
    if found is not None and found.value:
        check.notice(found, BUILT_WHOLE if stage == 3 else f"no effect in stage {stage}")


def _known_stage(found: Sourced[Any], check: Validator, instead: str) -> int | None:
    if found.value == 0 and not isinstance(found.value, bool):
        check.refuse(found, instead)
    stage = check.read(annotation("int"), found)
    if stage is not None and stage not in STAGES:
        check.refuse(found, "must be 1, 2 or 3")
    return stage if stage in STAGES else None


def _stage(doc: Document, check: Validator) -> int | None:
    zero, found = doc.at("zero_optimization"), doc.at("zero_optimization", "stage")
    if found is not None:
        return _known_stage(found, check, _DDP)
    if zero is not None and not isinstance(zero.value, dict):
        check.refuse(zero, 'must be a mapping with the stage: {"stage": 1}, 2 or 3')
    else:
        missing = Sourced(None, (zero.origin if zero else Origin(doc.path, 1)).named("zero_optimization.stage"))
        check.refuse(missing, f'is missing, which DeepSpeed takes as 0; write "stage": 1, 2 or 3 ({_DDP})')
    return None


def _precision(
    doc: Document, values: Mapping[str, Sourced[Any]], check: Validator
) -> tuple[Sourced[str] | None, dict[str, Any]]:
    """Return the precision asked for, and what the sections say besides ``enabled``."""
    names = {"fp16": "fp16", "bf16": "bf16", "bfloat16": "bf16"}
    sections = {key: doc.data[key] for key in names if isinstance(doc.data.get(key), dict)}
    said = {key: values[f"{key}.enabled"] for key in names if f"{key}.enabled" in values}
    on = [found.meaning(names[key]) for key, found in said.items() if found.value]
    off = [found for found in said.values() if not found.value]
    if len(on) > 1:
        check.refuse(on[1].meaning(True), f"disagrees with {on[0].origin}; enable one of them")
    kept = {}
    for key, section in sections.items():
        details = {name: value for name, value in section.items() if name != "enabled"}
        if details and section.get("enabled") in ("auto", True):
            kept[names[key]] = effective(details)
    if on:
        return on[0], kept
    left_open = any(section.get("enabled") == "auto" for section in sections.values())
    return (off[0].meaning("no") if off and not left_open else None), kept


def _modernize_offload(zero: dict[str, Any]) -> None:
    """Write offloads as DeepSpeed itself reads their older names."""
    pinned = zero.pop("cpu_offload_use_pin_memory", None)
    for part, old in _OLD_OFFLOAD.items():
        if zero.pop(old, None):
            zero.setdefault(part, {"device": "cpu"} | ({"pin_memory": True} if pinned else {}))


def _check_offload(doc: Document, zero: dict[str, Any], check: Validator) -> None:
    for part, old in _OLD_OFFLOAD.items():
        found = doc.at("zero_optimization", part) or doc.at("zero_optimization", old)
        if found is not None:
            _check_device(found, part, zero.get(part) or {}, zero["stage"], check)


def _check_device(
    found: Sourced[Any], part: str, section: Mapping[str, Any], stage: int | None, check: Validator
) -> None:
    """Refuse a pair that DeepSpeed itself takes without a word: it leaves the offload out, or uses the CPU."""
    device = section.get("device", "none")
    if part == "offload_optimizer" and device == "nvme":
        check.refuse(found, "not supported by samecurve, whose checkpoints read the optimizer's state; write cpu")
    elif stage == 3 and device == "nvme" and not section.get("nvme_path"):
        check.refuse(found, "nvme needs a path: write nvme_path")
    elif stage in (1, 2) and part == "offload_param" and device != "none":
        check.refuse(found, f"works in stage 3 only, this is stage {stage}; remove it or write stage 3")
    elif stage in (1, 2) and device == "nvme":
        check.refuse(found, f"nvme works in stage 3 only, this is stage {stage}; write cpu")
