"""DeepSpeed's settings, from a JSON file or from an accelerate file's own section, as a Request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...config.documents import Document, read_document
from ...errors import ConfigError
from ..request import Asked, Request, Strategy
from .check import Check, Given, every, lookup
from .deepspeed_keys import check_document, effective
from .fsdp_file import refuse_transformers_fsdp
from .sections import read_optimizer, read_scheduler

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


def read_deepspeed_file(path: str | Path) -> Request:
    """Read a DeepSpeed JSON, as given by ``--deepspeed``.

    Raises:
        ConfigError: with every problem of the file.
        LaunchError: DeepSpeed is not installed.
    """
    check = Check()
    request = read_json(path, check)
    if check.problems or request is None:
        raise ConfigError(check.problems)
    return replace(request, notices=tuple(check.notices))


def read_json(path: str | Path, check: Check) -> Request | None:
    """The request of a JSON; None, with problems in ``check``, where it says nothing that can run."""
    try:
        doc = read_document(path, what="DeepSpeed config file")
        refuse_transformers_fsdp(doc)
        if "distributed_type" in doc.data:
            rule = "this is an accelerate config: give it to accelerate launch, or with --accel_config"
            raise ConfigError(doc.problem((), rule))
    except ConfigError as error:
        check.problems.extend(error.problems)
        return None
    before = len(check.problems)
    stage, stage_at = _stage(doc, check)
    precision, kept = _precision(doc, check)
    steps = _whole(doc, "gradient_accumulation_steps", check)
    micro = _whole(doc, "train_micro_batch_size_per_gpu", check)
    batch = _whole(doc, "train_batch_size", check)
    _check_product(doc, batch, micro, steps, check)
    clipping = _typed(doc, "gradient_clipping")
    norm = check.number(clipping)
    check_document(doc, stage, check)
    optimizer, scheduler = read_optimizer(doc, check), read_scheduler(doc, check)
    for name in ("stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save"):
        save = lookup(doc, ("zero_optimization", name))
        if stage == 3 and save is not None and save.value is True:
            check.notice(save, EXPORT)
    rest = {key: value for key, value in effective(doc.data).items() if key not in _OWN_FIELDS}
    if len(check.problems) == before:
        _modernize_offload(rest["zero_optimization"])
        _check_offload(doc, rest, check)
    if len(check.problems) > before or stage is None:
        return None
    return Request(
        strategy=STAGES[stage],
        strategy_where=stage_at,
        mixed_precision=precision,
        accumulation_steps=steps,
        micro_batch_size=micro,
        global_batch_size=batch,
        max_grad_norm=None if clipping is None or norm is None else clipping.asked(norm),
        optimizer=optimizer,
        scheduler=scheduler,
        deepspeed={**rest, **kept},
        files=(doc.path,),
        where=_homes(doc),
    )


def _homes(doc: Document) -> dict[str, str]:
    homes = {f"deepspeed.{given.key}": given.home for given in every(doc)}
    zero = "deepspeed.zero_optimization."
    return {zero + part: homes[zero + old] for part, old in _OLD_OFFLOAD.items() if zero + old in homes} | homes


def read_inline(entries: Mapping[str, Given], check: Check, home: str) -> Request | None:
    """The request of an accelerate file's ``deepspeed_config`` that names no JSON.

    Args:
        entries: the section by launcher argument name.
        home: where DeepSpeed was asked for, for what is missing.
    """
    stage_given = entries.get("zero_stage")
    if stage_given is None:
        if any(problem.key.startswith("deepspeed_config") for problem in check.problems):
            return None  # a misspelt zero_stage is told already
        missing = Given(value=None, where=home, key="deepspeed_config.zero_stage")
        check.fail(missing, "is missing, which accelerate takes as 2; write zero_stage: 1, 2 or 3")
        return None
    stage = _known_stage(stage_given, check, "stage 0 is DDP: write distributed_type: MULTI_GPU")
    zero: dict[str, Any] = {"stage": stage}
    homes = {"deepspeed.zero_optimization.stage": stage_given.home}
    for part in ("offload_optimizer", "offload_param"):
        device_given, path_given = entries.get(f"{part}_device"), entries.get(f"{part}_nvme_path")
        device = check.choice(device_given, ("none", "cpu", "nvme"))
        path = check.text(path_given)
        if device_given is None or device in (None, "none"):
            continue
        zero[part] = {"device": device} | ({"nvme_path": path} if device == "nvme" else {})
        homes[f"deepspeed.zero_optimization.{part}"] = device_given.home
        _check_device(device_given, part, device, stage, path, check)
    save = entries.get("zero3_save_16bit_model")
    if check.switch(save) and save is not None:
        if stage == 3:
            zero["stage3_gather_16bit_weights_on_model_save"] = True
        check.notice(save, EXPORT if stage == 3 else f"no effect in stage {stage}")
    notice_init(entries.get("zero3_init_flag"), stage, check)
    classes = entries.get("deepspeed_moe_layer_cls_names")
    if classes is not None:
        check.fail(classes, "not supported by samecurve; use zero_optimization.leaf_module in a deepspeed_config_file")
    steps, norm = accumulation_and_clipping(entries, check)
    if stage is None:
        return None
    return Request(
        strategy=STAGES[stage],
        strategy_where=stage_given.home,
        accumulation_steps=steps,
        max_grad_norm=norm,
        deepspeed={"zero_optimization": zero},
        where=homes,
    )


def notice_init(given: Given | None, stage: int | None, check: Check) -> None:
    """Say what becomes of ``zero3_init_flag: true``."""
    if check.switch(given) and given is not None:
        built = "no effect: each rank builds the whole model in host memory, then keeps its shard"
        check.notice(given, built if stage == 3 else f"no effect in stage {stage}")


def accumulation_and_clipping(
    entries: Mapping[str, Given], check: Check
) -> tuple[Asked[int] | None, Asked[float] | None]:
    """The two values that an accelerate file's section shares with the JSON; None where absent or "auto"."""
    given = {
        name: entries[name]
        for name in ("gradient_accumulation_steps", "gradient_clipping")
        if name in entries and entries[name].value != "auto"
    }
    steps_given, norm_given = given.get("gradient_accumulation_steps"), given.get("gradient_clipping")
    steps, norm = check.whole(steps_given, at_least=1), check.number(norm_given)
    return (
        None if steps_given is None or steps is None else steps_given.asked(steps),
        None if norm_given is None or norm is None else norm_given.asked(norm),
    )


def _known_stage(given: Given, check: Check, instead: str) -> int | None:
    if given.value == 0 and not isinstance(given.value, bool):
        check.fail(given, instead)
        return None
    stage = check.whole(given, at_least=1)
    if stage is not None and stage not in STAGES:
        check.fail(given, "must be 1, 2 or 3")
        return None
    return stage


def _stage(doc: Document, check: Check) -> tuple[int | None, str]:
    zero, given = lookup(doc, ("zero_optimization",)), lookup(doc, ("zero_optimization", "stage"))
    if given is not None:
        return _known_stage(given, check, _DDP), given.home
    if zero is not None and not isinstance(zero.value, dict):
        check.fail(zero, 'must be a mapping with the stage: {"stage": 1}, 2 or 3')
    else:
        absent = Given(value=None, where=zero.where if zero else f"{doc.path}:1", key="zero_optimization.stage")
        check.fail(absent, f'is missing, which DeepSpeed takes as 0; write "stage": 1, 2 or 3 ({_DDP})')
    return None, doc.path


def _typed(doc: Document, key: str) -> Given | None:
    given = lookup(doc, (key,))
    return None if given is None or given.value in ("auto", None) else given


def _whole(doc: Document, key: str, check: Check) -> Asked[int] | None:
    given = _typed(doc, key)
    value = check.whole(given, at_least=1)
    return None if given is None or value is None else given.asked(value)


def _check_product(
    doc: Document, batch: Asked[int] | None, micro: Asked[int] | None, steps: Asked[int] | None, check: Check
) -> None:
    """Refuse a batch that no number of processes can be cut into."""
    given = lookup(doc, ("train_batch_size",))
    if given is not None and batch is not None:
        unit = (micro.value if micro else 1) * (steps.value if steps else 1)
        if batch.value % unit:
            parts = "train_micro_batch_size_per_gpu x gradient_accumulation_steps"
            check.fail(given, f"must be a multiple of {parts}, {unit}")


def _precision(doc: Document, check: Check) -> tuple[Asked[str] | None, dict[str, Any]]:
    """Precision asked for, and what the sections say besides ``enabled``."""
    on: list[tuple[str, Given]] = []
    off: list[Given] = []
    kept: dict[str, Any] = {}
    open_ = False
    for key, name in (("fp16", "fp16"), ("bf16", "bf16"), ("bfloat16", "bf16")):
        section, given = lookup(doc, (key,)), lookup(doc, (key, "enabled"))
        if section is not None and not isinstance(section.value, dict):
            check.fail(section, "must be a mapping")
        elif section is not None and given is not None:
            if given.value == "auto":
                open_ = True
            elif check.switch(given, quoted=False):
                on.append((name, given))
            else:
                off.append(given)
            details = {detail: value for detail, value in section.value.items() if detail != "enabled"}
            if details and given.value in ("auto", True):
                kept[name] = effective(details)
    if len(on) > 1:
        check.fail(on[1][1], f"disagrees with {on[0][1].home}; enable one of them")
    if on:
        return on[0][1].asked(on[0][0]), kept
    return (off[0].asked("no") if off and not open_ else None), kept


# Names of an older DeepSpeed, and the sections that they stand for.
_OLD_OFFLOAD = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}


def _modernize_offload(zero: dict[str, Any]) -> None:
    """Write offloads as DeepSpeed itself reads their older names."""
    pinned = zero.pop("cpu_offload_use_pin_memory", None)
    for part, old in _OLD_OFFLOAD.items():
        if zero.pop(old, None):
            zero.setdefault(part, {"device": "cpu"} | ({"pin_memory": True} if pinned else {}))


def _check_offload(doc: Document, data: dict[str, Any], check: Check) -> None:
    for part, old in _OLD_OFFLOAD.items():
        section = data["zero_optimization"].get(part) or {}
        device = str(section.get("device", "none"))
        given = lookup(doc, ("zero_optimization", part)) or lookup(doc, ("zero_optimization", old))
        if given is not None and device != "none":
            stage = int(data["zero_optimization"]["stage"])
            _check_device(given, part, device, stage, section.get("nvme_path"), check)


def _check_device(given: Given, part: str, device: str, stage: int | None, path: object, check: Check) -> None:
    """DeepSpeed itself takes a wrong pair without a word and leaves the offload out, or uses the CPU."""
    if part == "offload_optimizer" and device == "nvme":
        check.fail(given, "not supported by samecurve, whose checkpoints read the optimizer's state; write cpu")
    elif stage == 3 and device == "nvme" and not path:
        check.fail(given, "nvme needs a path: write nvme_path")
    elif stage in (1, 2) and part == "offload_param":
        check.fail(given, f"works in stage 3 only, this is stage {stage}; remove it or write stage 3")
    elif stage in (1, 2) and device == "nvme":
        check.fail(given, f"nvme works in stage 3 only, this is stage {stage}; write cpu")
