"""DeepSpeed's settings, from a JSON file or from an accelerate file's own section, as a Request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...config.arguments import put
from ...config.documents import Document, Key, parse_scalar, read_document
from ...config.validate import Validator
from ...errors import ConfigError, Origin, Sourced
from ...text import nearest
from ..request import Request, Strategy
from .fsdp_file import refuse_other_files
from .sections import OWNER, read_section
from .tables import Entries, annotation, deepspeed_keys, table

_COMPILE = "write compile: true in the training config, or dynamo_config in an accelerate YAML"
_AS_DDP = "DeepSpeed shards nothing in stage 0: runs as DDP"
STAGES: dict[int, Strategy] = {0: "ddp", 1: "zero1", 2: "zero2", 3: "zero3"}
_ZERO, _OFFLOADS = "zero_optimization", ("offload_optimizer", "offload_param")


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


def read_json(path: str | Path, check: Validator) -> Request | None:
    """Return the request of a JSON; None, with problems in ``check``, where it says nothing that
    can run.
    """
    try:
        doc = read_document(path, what="DeepSpeed config file")
        refuse_other_files(doc, "zero_optimization")
    except ConfigError as error:
        check.problems.extend(error.problems)
        return None
    request = _request(_modernized(doc), check)
    return request and replace(request, files=(doc.path,))


def _request(doc: Document, check: Validator) -> Request | None:
    before = len(check.problems)
    stage = _stage(doc, check)
    values = read_values(doc, stage, check)
    precision = _precision(doc, check)
    optimizer, scheduler = (read_section(doc, key, check) for key in ("optimizer", "scheduler"))
    if stage == 0:
        _check_stage_0(values, check)
    else:
        _check_offload(values, stage, check)
    if len(check.problems) > before or stage is None:
        return None
    engine = effective(doc.data)
    for name in table("deepspeed")["own_fields"]:
        section = engine.pop(name, None)
        # What a precision's section says besides `enabled`.
        if (
            isinstance(section, dict)
            and name in ("fp16", "bf16")
            and doc.data[name].get("enabled") in ("auto", True)
        ):
            engine |= (
                {name: rest}
                if (rest := {key: section[key] for key in section if key != "enabled"})
                else {}
            )
    if stage == 0:
        _note_idle_in_stage_0(doc, engine, check)
        engine = {}
    return Request(
        strategy=STAGES[stage],
        strategy_origin=doc.origin((_ZERO, "stage")),
        stage_0=stage == 0,
        mixed_precision=precision,
        accumulation_steps=values.get("gradient_accumulation_steps"),
        micro_batch_size=values.get("train_micro_batch_size_per_gpu"),
        global_batch_size=values.get("train_batch_size"),
        max_grad_norm=values.get("gradient_clipping"),
        optimizer=optimizer,
        scheduler=scheduler,
        deepspeed=engine,
        origins={f"deepspeed.{'.'.join(key)}": doc.origin(key) for key in doc.paths()},
    )


def read_inline(entries: Entries, check: Validator, origin: Origin) -> Request | None:
    """Return the request of an accelerate file's ``deepspeed_config`` that names no JSON.

    Args:
        entries: the section by launcher argument name.
        origin: of the wish for DeepSpeed, for what is missing.
    """
    asked = entries.get("zero_stage")
    if asked is None:
        if not any(
            problem.key.startswith("deepspeed_config") for problem in check.problems
        ):  # told already
            missing = Sourced(None, origin.named("deepspeed_config.zero_stage"))
            check.refuse(
                missing, "is missing, which accelerate takes as 2; write zero_stage: 1, 2 or 3"
            )
        return None
    data, origins = dict[str, Any](), dict[Key, Origin]()
    typed = {
        name: entry
        for name, entry in entries.items()
        if entry.value is not False and entry.value != "none"
    }
    for part in _OFFLOADS:
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
    return _request(Document(path=asked.origin.source, data=data, origins=origins), check)


def _modernized(doc: Document) -> Document:
    """Return the file with DeepSpeed's older names as DeepSpeed itself reads them, each at the line
    of the old one.
    """
    data, origins = dict(doc.data), dict(doc.origins)
    if "bfloat16" in data and "bf16" not in data:
        data["bf16"] = data.pop("bfloat16")
        origins |= {
            ("bf16", *key[1:]): origin for key, origin in origins.items() if key[0] == "bfloat16"
        }
    if isinstance(data.get(_ZERO), dict):
        zero = data[_ZERO] = dict(data[_ZERO])
        pinned = {"pin_memory": True} if zero.get("cpu_offload_use_pin_memory") is True else {}
        for part, old in zip(_OFFLOADS, ("cpu_offload", "cpu_offload_param"), strict=True):
            if zero.get(old) is True:
                zero.setdefault(part, {"device": "cpu", **pinned})
                origins.setdefault((_ZERO, part, "device"), doc.origin((_ZERO, old)))
        for old in ("cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory"):
            if isinstance(zero.get(old), bool):
                del zero[old]
    return replace(doc, data=data, origins=origins)


def _stage(doc: Document, check: Validator) -> int | None:
    """Return the stage; one that is not given is 0, as for DeepSpeed itself."""
    zero, found = doc.at(_ZERO), doc.at(_ZERO, "stage")
    if zero is not None and not isinstance(zero.value, dict):
        check.refuse(zero, 'must be a mapping with the stage: {"stage": 0}, 1, 2 or 3')
        return None
    if found is None:
        check.notices.append(f"{doc.path}: no {_ZERO}.stage, which DeepSpeed takes as 0; {_AS_DDP}")
        return 0
    stage = check.read(annotation("int"), found)
    if stage is None:
        return None
    if stage not in STAGES:
        check.refuse(found, "must be 0, 1, 2 or 3")
        return None
    if stage == 0:
        check.notice(found, _AS_DDP)
    return int(stage)


def _precision(doc: Document, check: Validator) -> Sourced[str] | None:
    """Return the precision asked for: ``no`` where one is turned off and none is left open."""
    said = {
        name: found for name in ("fp16", "bf16") if (found := doc.at(name, "enabled")) is not None
    }
    on = [found.meaning(name) for name, found in said.items() if found.value is True]
    off = [found.meaning("no") for found in said.values() if found.value is False]
    if len(on) > 1:
        check.refuse(on[1].meaning(True), f"disagrees with {on[0].origin}; enable one of them")
    if older := doc.at("bfloat16"):
        check.refuse(older, "is DeepSpeed's older name of bf16, which is there as well; remove it")
    left_open = any(found.value == "auto" for found in said.values())
    return on[0] if on else off[0] if off and not left_open else None


def _check_stage_0(values: Mapping[str, Sourced[Any]], check: Validator) -> None:
    """Refuse dtypes of gradients that DDP does not have: the numbers would be others than those
    that were asked for.
    """
    for name, rule in table("deepspeed")["only_fp32_in_stage_0"].items():
        found = values.get(name)
        if found is not None and found.value != "fp32":
            check.refuse(found, f"{rule}; remove it")


def _note_idle_in_stage_0(doc: Document, engine: Mapping[str, Any], check: Validator) -> None:
    """Note in one line the settings of DeepSpeed's engine, which does not run."""
    rules, nested = table("deepspeed"), (_ZERO, "fp16", "bf16", "data_types")
    held = {
        (_ZERO, "stage"),
        *(tuple(name.split(".")) for name in (*rules["only_fp32_in_stage_0"], *rules["idle"])),
    }
    within = [(name, key) for name in nested for key in engine.get(name, {})]
    alone = [(name,) for name in engine if name not in nested]
    found = [doc.at(*path) for path in (*within, *alone) if path not in held]
    switched_on = [entry for entry in found if entry is not None and _switched_on(entry.value)]
    check.idle(switched_on, "no effect in stage 0, which runs as DDP")


def _check_offload(values: Mapping[str, Sourced[Any]], stage: int | None, check: Validator) -> None:
    """Refuse pairs that DeepSpeed itself takes without a word: it leaves the offload out, or uses
    the CPU.
    """
    for part in _OFFLOADS:
        found = values.get(f"{_ZERO}.{part}.device")
        if found is None or found.value == "none":
            continue
        if part == "offload_param" and stage in (1, 2):
            check.refuse(
                found, f"works in stage 3 only, this is stage {stage}; remove it or write stage 3"
            )
        elif found.value == "nvme" and part == "offload_optimizer":
            check.refuse(
                found,
                "not supported by samecurve, whose checkpoints read the optimizer's state; write cpu",
            )
        elif found.value == "nvme" and f"{_ZERO}.{part}.nvme_path" not in values:
            check.refuse(found, "nvme needs a path: write nvme_path")


def read_values(doc: Document, stage: int | None, check: Validator) -> dict[str, Sourced[Any]]:
    """Return the values that may stand where they do, by dotted key, without "auto" and null;
    record all else.
    """
    rules, values = table("deepspeed"), dict(_values(doc, (), doc.data, check))
    for name, text in (rules["idle"] | (rules["idle_in_stage_3"] if stage == 3 else {})).items():
        found = doc.at(*name.split("."))
        if found is not None and found.value and found.value != "auto":
            check.notice(found, text)
    if stage in (1, 2):
        of_stage_3 = [key for key in doc.data[_ZERO] if key.startswith(tuple(rules["stage_3"]))]
        typed = [
            found for key in of_stage_3 if (found := doc.at(_ZERO, key)) and found.value != "auto"
        ]
        check.idle(
            [found for found in typed if _switched_on(found.value)], f"no effect in stage {stage}"
        )
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
                check.refuse(
                    found,
                    f"DeepSpeed: {words}" if words else "not supported by samecurve; remove it",
                )
        elif key not in known:
            check.unknown(found, known, here, _belongs(here, known), owner=OWNER)
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
        elif (
            name in rules["only"]
            and value != rules["only"][name][0]
            and str(value).lower() != rules["only"][name][0]
        ):
            check.refuse(found, f"{rules['only'][name][1]}; remove it")
        elif (
            known[key] == "any"
            and isinstance(value, str)
            and isinstance(parse_scalar(value), bool | int | float)
        ):
            check.refuse(found, "is text; remove the quotes")
        elif check.read(annotation(known[key]), found) is not None:
            yield name, found


def _is_ignored(name: str) -> bool:
    """Tell whether a key is a comment, or Accelerate's to set: DeepSpeed prints nothing."""
    return name.rpartition(".")[2].startswith("_") or name == "steps_per_print"


def _belongs(path: Key, known: Mapping[str, Any]) -> str:
    """Return where an unknown key belongs; "" where it looks like a misspelling."""
    *section, name = path
    owners = [
        owner for owner in (_ZERO, "fp16", "bf16") if name in (deepspeed_keys((owner,)) or ())
    ]
    if section == ["bf16"] and owners == ["fp16"]:
        return "bf16 needs no loss scale; remove it"
    if section == ["compile"] and not nearest(name, known):
        return f"DeepSpeed has none of this name; {_COMPILE}"
    return f"it belongs under {owners[0]}" if owners else ""


def _switched_on(value: object) -> bool:
    if isinstance(value, dict):
        return value.get("enabled", True) is not False
    return value not in (None, False, -1, 0, 1) or value is True


def effective(data: Mapping[str, Any], path: Key = ()) -> dict[str, Any]:
    """Return a copy of what counts: without "auto", for which DeepSpeed's defaults hold, comments,
    and what is off.
    """
    rules, found = table("deepspeed"), {}
    for key, value in data.items():
        here = (*path, key)
        name = ".".join(here)
        off = name in (*rules["refused"], *rules["removed"]) and not _switched_on(value)
        if value != "auto" and not off and not _is_ignored(name):
            found[key] = effective(value, here) if isinstance(value, dict) else value
    return found
