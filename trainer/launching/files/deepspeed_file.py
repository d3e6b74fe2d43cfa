"""DeepSpeed's settings, from a JSON file or from an accelerate file's own section, as a Request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...config.arguments import put
from ...config.documents import Document, Key, read_document
from ...config.validate import Validator
from ...errors import ConfigError, Origin, Sourced
from ..request import Request, Strategy
from .accelerate_entries import Entries
from .deepspeed_schema import is_installed
from .deepspeed_values import ZERO, effective, read_values
from .other_files import refuse_other_files
from .sections import read_section
from .unused import note_unused

STAGES: dict[int, Strategy] = {0: "ddp", 1: "zero1", 2: "zero2", 3: "zero3"}

# By key of an accelerate file's deepspeed_config, the same setting in DeepSpeed's JSON.
INLINE = {
    "zero_stage": (ZERO, "stage"),
    "offload_optimizer_device": (ZERO, "offload_optimizer", "device"),
    "offload_optimizer_nvme_path": (ZERO, "offload_optimizer", "nvme_path"),
    "offload_param_device": (ZERO, "offload_param", "device"),
    "offload_param_nvme_path": (ZERO, "offload_param", "nvme_path"),
    "zero3_save_16bit_model": (ZERO, "stage3_gather_16bit_weights_on_model_save"),
    "gradient_accumulation_steps": ("gradient_accumulation_steps",),
    "gradient_clipping": ("gradient_clipping",),
}

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

# Stage 0 runs as DDP, which has these in full precision only.
_ONLY_FP32_IN_STAGE_0 = {
    "communication_data_type": "stage 0 runs as DDP, which exchanges gradients in fp32",
    "data_types.grad_accum_dtype": "stage 0 runs as DDP, which adds gradients up in fp32",
}

_AS_DDP = "DeepSpeed shards nothing in stage 0: runs as DDP"
_OFFLOADS = ("offload_optimizer", "offload_param")
_INSTALL = "DeepSpeed is not installed: pip install 'samecurve[deepspeed]'"


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
    """Return the request of a JSON; None, with problems in ``check``, where it cannot run."""
    try:
        doc = read_document(path, what="DeepSpeed config file")
        refuse_other_files(doc, ZERO)
    except ConfigError as error:
        check.problems.extend(error.problems)
        return None
    if not is_installed():
        check.problems.append(Sourced(None, Origin(doc.path)).problem(_INSTALL))
        return None

    request = _request(_with_current_names(doc), check)
    return None if request is None else replace(request, files=(doc.path,))


def read_inline(entries: Entries, check: Validator, origin: Origin) -> Request | None:
    """Return the request of an accelerate file's ``deepspeed_config`` that names no JSON.

    Args:
        entries: the section, by argument of the launcher.
        origin: of the request for DeepSpeed, for what is missing.
    """
    if not is_installed():
        check.refuse(Sourced("DEEPSPEED", origin), _INSTALL)
        return None
    stage = entries.get("zero_stage")
    if stage is None:
        is_reported = any(found.key.startswith("deepspeed_config") for found in check.problems)
        if not is_reported:
            missing = Sourced(None, origin.named("deepspeed_config.zero_stage"))
            rule = "is missing, which accelerate takes as 2; write zero_stage: 1, 2 or 3"
            check.refuse(missing, rule)
        return None

    classes = entries.get("deepspeed_moe_layer_cls_names")
    if classes is not None and classes.value:
        rule = (
            "not supported by samecurve; use zero_optimization.leaf_module in a "
            "deepspeed_config_file"
        )
        check.refuse(classes, rule)

    data: dict[str, Any] = {}
    origins: dict[Key, Origin] = {}
    switched_on = _switched_on(entries)
    for name, path in INLINE.items():
        if name in switched_on:
            entry = switched_on[name]
            put(data, path, entry.value)
            for end in range(1, len(path) + 1):
                origins.setdefault(path[:end], entry.origin)
    return _request(Document(path=stage.origin.source, data=data, origins=origins), check)


def _switched_on(entries: Entries) -> dict[str, Sourced[Any]]:
    """Return the entries that are on; the path of an offload only where it goes to NVMe."""
    found = {}
    for name, entry in entries.items():
        if entry.value is not False and entry.value != "none":
            found[name] = entry

    for part in _OFFLOADS:
        device = found.get(f"{part}_device")
        if device is None or device.value != "nvme":
            found.pop(f"{part}_nvme_path", None)
    return found


def _request(doc: Document, check: Validator) -> Request | None:
    problems_before = len(check.problems)
    stage = _stage(doc, check)
    values = read_values(doc, stage, check)
    precision = _precision(doc, check)
    optimizer = read_section(doc, "optimizer", check)
    scheduler = read_section(doc, "scheduler", check)
    if stage == 0:
        _check_dtypes_of_ddp(values, check)
    else:
        _check_offload(values, stage, check)
    if len(check.problems) > problems_before or stage is None:
        return None

    engine = _engine_config(doc)
    if stage == 0:
        _note_unused_in_stage_0(doc, engine, check)
        engine = {}
    return Request(
        strategy=STAGES[stage],
        strategy_origin=doc.origin((ZERO, "stage")),
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


def _engine_config(doc: Document) -> dict[str, Any]:
    """Return what goes to DeepSpeed's engine.

    Of fp16 and bf16 these are the settings besides ``enabled``, where they may be switched on.
    """
    engine = effective(doc.data)
    sections = {name: engine.pop(name, None) for name in _OWN_FIELDS}
    for name in ("fp16", "bf16"):
        settings = sections[name]
        if not isinstance(settings, dict):
            continue
        enabled = doc.data[name].get("enabled")
        others = {key: value for key, value in settings.items() if key != "enabled"}
        if others and enabled in ("auto", True):
            engine[name] = others
    return engine


def _with_current_names(doc: Document) -> Document:
    """Return the file with DeepSpeed's older names replaced, each at the line of the old one."""
    data = dict(doc.data)
    origins = dict(doc.origins)
    if "bfloat16" in data and "bf16" not in data:
        data["bf16"] = data.pop("bfloat16")
        for key, origin in doc.origins.items():
            if key[0] == "bfloat16":
                origins[("bf16", *key[1:])] = origin

    if isinstance(data.get(ZERO), dict):
        zero = dict(data[ZERO])
        data[ZERO] = zero
        _rename_offloads(zero, doc, origins)
    return replace(doc, data=data, origins=origins)


def _rename_offloads(zero: dict[str, Any], doc: Document, origins: dict[Key, Origin]) -> None:
    """Replace ``cpu_offload: true`` by a section, in place."""
    settings: dict[str, Any] = {"device": "cpu"}
    if zero.get("cpu_offload_use_pin_memory") is True:
        settings["pin_memory"] = True

    old_names = {"cpu_offload": "offload_optimizer", "cpu_offload_param": "offload_param"}
    for old, part in old_names.items():
        if zero.get(old) is True:
            zero.setdefault(part, dict(settings))
            origins.setdefault((ZERO, part, "device"), doc.origin((ZERO, old)))

    for old in (*old_names, "cpu_offload_use_pin_memory"):
        if isinstance(zero.get(old), bool):
            del zero[old]


def _stage(doc: Document, check: Validator) -> int | None:
    """Return the stage; without one it is 0, as for DeepSpeed itself. None where it is refused."""
    zero = doc.at(ZERO)
    if zero is not None and not isinstance(zero.value, dict):
        check.refuse(zero, 'must be a mapping with the stage: {"stage": 0}, 1, 2 or 3')
        return None

    found = doc.at(ZERO, "stage")
    if found is None:
        check.notices.append(f"{doc.path}: no {ZERO}.stage, which DeepSpeed takes as 0; {_AS_DDP}")
        return 0

    stage: int | None = check.read(int, found)
    if stage is None:
        return None
    if stage not in STAGES:
        check.refuse(found, "must be 0, 1, 2 or 3")
        return None
    if stage == 0:
        check.notice(found, _AS_DDP)
    return stage


def _precision(doc: Document, check: Validator) -> Sourced[str] | None:
    """Return the requested precision: ``no`` where one is switched off and none is left open."""
    switches = {name: doc.at(name, "enabled") for name in ("fp16", "bf16")}
    on = []
    off = []
    is_open = False
    for name, switch in switches.items():
        if switch is None:
            continue
        if switch.value is True:
            on.append(switch.meaning(name))
        elif switch.value is False:
            off.append(switch.meaning("no"))
        elif switch.value == "auto":
            is_open = True

    if len(on) > 1:
        check.refuse(on[1].meaning(True), f"disagrees with {on[0].origin}; enable one of them")
    older = doc.at("bfloat16")
    if older is not None:
        rule = "is DeepSpeed's older name of bf16, which is there as well; remove it"
        check.refuse(older, rule)

    if on:
        return on[0]
    if off and not is_open:
        return off[0]
    return None


def _check_dtypes_of_ddp(values: Mapping[str, Sourced[Any]], check: Validator) -> None:
    """Refuse dtypes of gradients that DDP does not have: the numbers would silently differ."""
    for name, rule in _ONLY_FP32_IN_STAGE_0.items():
        found = values.get(name)
        if found is not None and found.value != "fp32":
            check.refuse(found, f"{rule}; remove it")


def _check_offload(values: Mapping[str, Sourced[Any]], stage: int | None, check: Validator) -> None:
    """Refuse offloads that DeepSpeed silently leaves out, or moves to the CPU."""
    for part in _OFFLOADS:
        device = values.get(f"{ZERO}.{part}.device")
        if device is None or device.value == "none":
            continue

        on_nvme = device.value == "nvme"
        if part == "offload_param" and stage in (1, 2):
            rule = f"works in stage 3 only, this is stage {stage}; remove it or write stage 3"
            check.refuse(device, rule)
        elif on_nvme and part == "offload_optimizer":
            rule = (
                "not supported by samecurve, whose checkpoints read the optimizer's state; "
                "write cpu"
            )
            check.refuse(device, rule)
        elif on_nvme and f"{ZERO}.{part}.nvme_path" not in values:
            check.refuse(device, "nvme needs a path: write nvme_path")


def _note_unused_in_stage_0(doc: Document, engine: Mapping[str, Any], check: Validator) -> None:
    """Note in one line the settings of DeepSpeed's engine, which does not run."""
    known = {(ZERO, "stage")} | {tuple(name.split(".")) for name in _ONLY_FP32_IN_STAGE_0}
    paths: list[Key] = []
    for name, value in engine.items():
        if name in (ZERO, "fp16", "bf16", "data_types"):
            paths.extend((name, key) for key in value)
        else:
            paths.append((name,))

    entries = [doc.at(*path) for path in paths if path not in known]
    found = [entry for entry in entries if entry is not None]
    note_unused(found, "no effect in stage 0, which runs as DDP", check)
