"""DeepSpeed's settings, from a JSON file or from an accelerate file's own section, as a Request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...config.arguments import put
from ...config.documents import Document, Key, read_document
from ...config.validate import Validator
from ...errors import ConfigError, Origin, Problem, Sourced
from ...text import nearest
from ..request import Request, Strategy
from .fsdp_file import BUILT_WHOLE, refuse_transformers_fsdp
from .sections import read_optimizer, read_scheduler
from .tables import Entries, annotation, deepspeed_keys, table

OWNER = "DeepSpeed's JSON"
_COMPILE = "write compile: true in the training config, or dynamo_config in an accelerate YAML"
EXPORT = "no effect: the model is written in full precision (float32)"
_DDP = (
    "stage 0 is DDP, which is started without a DeepSpeed JSON: by torchrun alone, or by accelerate launch with "
    "accel_configs/ddp.yaml"
)
STAGES: dict[int, Strategy] = {1: "zero1", 2: "zero2", 3: "zero3"}
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
    try:
        doc = read_document(path, what="DeepSpeed config file")
        refuse_transformers_fsdp(doc)
        if "distributed_type" in doc.data:
            rule = "this is an accelerate config: give it to accelerate launch, or with --accel_config"
            raise ConfigError(Problem(origin=Origin(doc.path), rule=rule))
    except ConfigError as error:
        outer.problems.extend(error.problems)
        return None
    request = _read(doc, outer, _DDP)
    return request and replace(request, files=(doc.path,))


def _read(doc: Document, outer: Validator, no_stage_0: str) -> Request | None:
    check = Validator(owner=OWNER)
    request = _request(doc, check, no_stage_0)
    outer.problems += check.problems
    outer.notices += check.notices
    return request


def _request(doc: Document, check: Validator, no_stage_0: str) -> Request | None:
    stage = _stage(doc, check, no_stage_0)
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
    rest = {key: value for key, value in effective(doc.data).items() if key not in table("deepspeed")["own_fields"]}
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
    stage, data, origins = asked.value, dict[str, Any](), dict[Key, Origin]()
    typed = {name: entry for name, entry in entries.items() if entry.value is not False and entry.value != "none"}
    if stage != 3 and (save := typed.pop("zero3_save_16bit_model", None)):
        check.notice(save, f"no effect in stage {stage}")
    for part in _OLD_OFFLOAD:
        if (device := typed.get(f"{part}_device")) is None or device.value != "nvme":
            typed.pop(f"{part}_nvme_path", None)
    for name, path in table("deepspeed")["inline"].items():
        if name in typed:
            put(data, path, typed[name].value)
            for end in range(1, len(path) + 1):
                origins.setdefault(tuple(path[:end]), typed[name].origin)
    if classes := entries.get("deepspeed_moe_layer_cls_names"):
        rule = "not supported by samecurve; use zero_optimization.leaf_module in a deepspeed_config_file"
        check.refuse(classes, rule)
    doc = Document(path=asked.origin.source, data=data, origins=origins)
    request = _read(doc, check, "stage 0 is DDP: write distributed_type: MULTI_GPU")
    notice_init(entries.get("zero3_init_flag"), stage, check)
    return request


def notice_init(found: Sourced[bool] | None, stage: int | None, check: Validator) -> None:
    """Say what becomes of ``zero3_init_flag: true``."""
    if found is not None and found.value:
        check.notice(found, BUILT_WHOLE if stage == 3 else f"no effect in stage {stage}")


def _stage(doc: Document, check: Validator, no_stage_0: str) -> int | None:
    zero, found = doc.at("zero_optimization"), doc.at("zero_optimization", "stage")
    if found is not None:
        if found.value == 0 and not isinstance(found.value, bool):
            check.refuse(found, no_stage_0)
        stage = check.read(annotation("int"), found)
        if stage is not None and stage not in STAGES:
            check.refuse(found, "must be 1, 2 or 3")
        return stage if stage in STAGES else None
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
        found = doc.at("zero_optimization", part, "device") or doc.at("zero_optimization", old)
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


def read_values(doc: Document, stage: int | None, check: Validator) -> dict[str, Sourced[Any]]:
    """Return the values that may stand where they do, by dotted key, without "auto" and null; record all else."""
    rules, values = table("deepspeed"), dict(_values(doc, (), doc.data, check))
    for section, reason in rules["idle"].items():
        found = doc.at(section)
        if found is not None and found.value:
            check.notice(found, f"no effect {reason}")
    zero = doc.data.get("zero_optimization")
    if stage in (1, 2) and isinstance(zero, dict):
        typed = [key for key, value in zero.items() if value != "auto" and _switched_on(value)]
        if idle := [key for key in typed if key.startswith(tuple(rules["stage_3"]))]:
            place = doc.origin(("zero_optimization", idle[0])).place
            check.notices.append(f"{place}: no effect in stage {stage}: {', '.join(idle)}")
    return values


def _values(doc: Document, path: Key, data: Mapping[str, Any], check: Validator) -> Any:
    rules, known = table("deepspeed"), deepspeed_keys(path) or {}
    for key, value in data.items():
        here, name = (*path, str(key)), ".".join((*path, str(key)))
        found = Sourced(value, doc.origin(here))
        if _is_ignored(name):
            continue
        if name in rules["refused"] or name in rules["removed"]:
            if _switched_on(value):
                words = rules["removed"].get(name, "") if name not in rules["refused"] else ""
                check.refuse(found, f"DeepSpeed: {words}" if words else "not supported by samecurve; remove it")
        elif key not in known:
            check.unknown(found, known, here, _belongs(here, known))
        elif value == "auto":
            if name not in rules["auto"] and ".".join(path) not in rules["models"]:
                check.refuse(found, '"auto" is not resolved here; write a value, or remove the key')
        elif value is None:
            continue
        elif isinstance(known[key], dict):
            if isinstance(value, dict):
                yield from _values(doc, here, value, check)
            else:
                check.refuse(found, "must be a mapping")
        elif (rule := _only(name, value)) is not None:
            check.refuse(found, rule)
        elif known[key] == "any" and isinstance(value, str) and _is_number(value):
            check.refuse(found, "is text; remove the quotes")
        elif check.read(annotation(known[key]), found) is not None:
            yield name, found


def _is_ignored(name: str) -> bool:
    """Tell whether a key is a comment, or Accelerate's to set: DeepSpeed prints nothing."""
    return name.rpartition(".")[2].startswith("_") or name == "steps_per_print"


def _only(name: str, value: object) -> str | None:
    """Return why a value cannot be had here."""
    only, reason = table("deepspeed")["only"].get(name, (value, ""))
    return None if value == only or str(value).lower() == only else f"{reason}; remove it"


def _belongs(path: Key, known: Mapping[str, Any]) -> str:
    """Return where an unknown key belongs; "" where it looks like a misspelling."""
    *section, name = path
    owners = [owner for owner in ("zero_optimization", "fp16", "bf16") if name in (deepspeed_keys((owner,)) or ())]
    if section == ["bf16"] and owners == ["fp16"]:
        return "bf16 needs no loss scale; remove it"
    if section == ["compile"] and not nearest(name, known):
        return f"DeepSpeed has none of this name; {_COMPILE}"
    return f"it belongs under {owners[0]}" if owners else ""


def _is_number(text: str) -> bool:
    """Tell whether text in quotes is a number or a truth value that lost its type."""
    try:
        float(text)
    except ValueError:
        return text.lower() in ("true", "false")
    return True


def _switched_on(value: object) -> bool:
    if isinstance(value, dict):
        return value.get("enabled", True) is not False
    return value not in (None, False, -1, 0, 1) or value is True


def effective(data: Mapping[str, Any], path: Key = ()) -> dict[str, Any]:
    """Return a copy of what counts: without "auto", for which DeepSpeed's defaults hold, comments, and what is off."""
    rules, found = table("deepspeed"), {}
    for key, value in data.items():
        here = (*path, key)
        name = ".".join(here)
        off = name in (*rules["refused"], *rules["removed"]) and not _switched_on(value)
        if value != "auto" and not off and not _is_ignored(name):
            found[key] = effective(value, here) if isinstance(value, dict) else value
    return found
