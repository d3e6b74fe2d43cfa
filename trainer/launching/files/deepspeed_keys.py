"""The keys of a DeepSpeed JSON: those that it may not have, and those that change nothing."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

from ...config.documents import Document, Key
from ...text import nearest
from .check import Check, Given, lookup, numeric, unknown
from .deepspeed_schema import BATCH, deepspeed_config, first_line, is_model, known_keys, removed

OWNER = "DeepSpeed's JSON"
# DeepSpeed hands these to classes that are chosen by name.
_FREE = (("optimizer", "params"), ("scheduler", "params"))
# Outside of DeepSpeed's models, which take their default for it: what Hugging Face's tools resolve, and its own "auto".
_AUTO = {
    ("train_batch_size",),
    ("train_micro_batch_size_per_gpu",),
    ("gradient_accumulation_steps",),
    ("gradient_clipping",),
    ("data_types", "keep_in_fp32_modules"),
}
# Sections that turn on another kind of training than the one that was asked for.
_OTHER_TRAINING: tuple[Key, ...] = (
    ("autotuning",),
    ("compile", "deepcompile"),
    ("compression_training",),
    ("curriculum_learning",),
    ("data_efficiency",),
    ("datastates_ckpt",),
    ("elasticity",),
    ("expert_parallel",),
    ("hybrid_engine",),
    ("msamp",),
    ("optimizer", "legacy_fusion"),
    ("pipeline",),
    ("sequence_parallel_size",),
    ("tensor_parallel",),
    ("torch_autocast",),
    ("weight_quantization",),
    ("zero_optimization", "zenflow"),
)
# Values that cannot be had beside what is promised here, by the only one that can.
_FIXED: Mapping[Key, tuple[Any, str]] = {
    ("bf16", "bf16_master_weights_and_grads"): (False, "weights and gradients are kept in full precision here"),
    ("bf16", "bf16_optimizer_states"): (False, "the optimizer's state is kept in full precision here"),
    ("fp16", "fp16_master_weights_and_grads"): (False, "weights and gradients are kept in full precision here"),
    ("data_types", "buffer_dtype"): ("fp32", "buffers are kept in full precision here"),
    ("data_types", "param_dtype"): (None, "the sections bf16 and fp16 say it"),
    ("managed_gradient_accumulation",): (True, "gradients are accumulated by this program"),
    ("dataloader_drop_last",): (False, "the training config says it, with drop_last"),
    ("gradient_predivide_factor",): (1, "DeepSpeed's ZeRO refuses it"),
    ("gradient_allreduce_op",): ("mean", "the gradient here is the mean over the global batch"),
    ("zero_force_ds_cpu_optimizer",): (False, "torch's optimizer steps here"),
    ("zero_optimization", "legacy_stage1"): (False, "DeepSpeed itself no longer has it"),
    ("zero_optimization", "compute_grad_norm"): (True, "the gradient norm is logged and clipped here"),
    ("zero_optimization", "offload_optimizer", "ratio"): (1, "needs DeepSpeed's own Adam, and torch's steps here"),
    ("zero_optimization", "offload_optimizer", "super_offload"): (False, "not supported by samecurve"),
}
_COMPILE = "write compile: true in the training config, or dynamo_config in an accelerate YAML"
# Sections that change nothing.
_IDLE = {
    "activation_checkpointing": "unless the model itself calls deepspeed.checkpointing",
    "checkpoint": "on checkpoints, which are not DeepSpeed's",
}
# Keys of stage 3 alone whose name does not say so.
_OF_STAGE_3 = ("leaf_module", "zero_hpz_partition_size", "zero_quantized_")


def check_document(doc: Document, stage: int | None, check: Check) -> None:
    """Find unknown keys, wrong types, "auto" where nobody resolves it, and what DeepSpeed itself refuses."""
    for path in _OTHER_TRAINING:
        given = lookup(doc, path)
        if given is not None and _switched_on(given.value):
            check.fail(given, "not supported by samecurve; remove it")
    for path, (only, reason) in _FIXED.items():
        given = lookup(doc, path)
        if given is not None and given.value not in (only, None, "auto") and str(given.value).lower() != only:
            check.fail(given, f"{reason}; remove it")
    _check_mapping(doc, (), doc.data, check)
    _check_values(doc, stage, check)
    for section, reason in _IDLE.items():
        given = lookup(doc, (section,))
        if given is not None and given.value:
            check.notice(given, f"no effect {reason}")
    if stage in (1, 2) and (keys := _of_stage_3(doc.data["zero_optimization"])):
        where = doc.where("zero_optimization", keys[0])
        check.notices.append(f"{where}: no effect in stage {stage}: {', '.join(keys)}")


def _of_stage_3(zero: Mapping[str, Any]) -> list[str]:
    typed = [key for key, value in zero.items() if value != "auto" and _switched_on(value)]
    return [key for key in typed if key.startswith(("stage3_", *_OF_STAGE_3))]


def _switched_on(value: object) -> bool:
    if isinstance(value, dict):
        return value.get("enabled", True) is not False
    return value not in (None, False, -1, 0, 1) or value is True


def _check_mapping(doc: Document, path: Key, data: dict[str, Any], check: Check) -> None:
    known = None if path in _FREE else known_keys(path)
    for key, value in data.items():
        here = (*path, key)
        given = Given(value=value, where=doc.where(*here), key=".".join(here))
        if here in _OTHER_TRAINING or _is_comment(key) or here == ("steps_per_print",):
            continue  # the last is Accelerate's to set: DeepSpeed prints nothing
        if known is not None and key not in known:
            _check_unknown(given, here, known, check)
        elif value == "auto":
            if here not in _AUTO and path not in _FREE and not is_model(path):
                check.fail(given, '"auto" is not resolved here; write a value, or remove the key')
        elif value is not None and not isinstance(value, dict) and known is not None and known_keys(here):
            check.fail(given, "must be a mapping")
        elif known is None or not _is_text(known[key]):
            if numeric(value):
                check.fail(given, "is text; remove the quotes")
            elif known is not None:
                _check_type(given, known[key], check)
        if isinstance(value, dict) and (known is None or key in known):
            _check_mapping(doc, here, value, check)


def _check_unknown(given: Given, path: Key, known: dict[str, Any], check: Check) -> None:
    if words := removed(path, given.value):
        if _switched_on(given.value):
            check.fail(given, words)
        return
    *section, name = path
    homes = [home for home in ("zero_optimization", "fp16", "bf16") if name in (known_keys((home,)) or {})]
    if section == ["bf16"] and homes == ["fp16"]:
        belongs = "bf16 needs no loss scale; remove it"
    elif section == ["compile"] and not nearest(name, known):
        belongs = f"DeepSpeed has none of this name; {_COMPILE}"
    else:
        belongs = f"it belongs under {homes[0]}" if homes else ""
    check.problems.append(unknown(given, name, known, OWNER, belongs))


def _is_comment(key: str) -> bool:
    return key.startswith("_")


def _is_text(hint: Any) -> bool:
    return hint is str or str in typing.get_args(hint)


def _check_type(given: Given, default: Any, check: Check) -> None:
    """Hold a value against the type of the default that DeepSpeed's older sections give it."""
    number = isinstance(given.value, int | float) and not isinstance(given.value, bool)
    if given.value is None:
        return
    if isinstance(default, bool):
        check.switch(given, quoted=False)
    elif isinstance(default, int | float) and not number:
        check.fail(given, "must be a number")
    elif isinstance(default, dict) and not isinstance(given.value, dict):
        check.fail(given, "must be a mapping")


def _check_values(doc: Document, stage: int | None, check: Check) -> None:
    """Let DeepSpeed read each section on its own, so that what it refuses can be named."""
    told = {problem.key for problem in check.problems}
    for key, value in effective(doc.data).items():
        given = Given(value=value, where=doc.where(key), key=key)
        if value is None or any(name == key or name.startswith(f"{key}.") for name in told):
            continue  # nothing, or told in plainer words
        if key == "aio" and isinstance(value, dict):  # which DeepSpeed has on GPUs only, and a rehearsal leaves out
            value = {name: setting for name, setting in value.items() if name != "use_gds"}
        try:
            deepspeed_config({**BATCH, "zero_optimization": {"stage": stage or 1}, key: value})
        except Exception as error:  # DeepSpeed raises asserts, ValueErrors and its own; all are about this section
            for path, rule in _told(error):
                found = lookup(doc, (key, *path)) if path else given
                check.fail(found or given, rule)


def _told(error: Exception) -> list[tuple[Key, str]]:
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return [((), f"DeepSpeed: {first_line(str(error))}")]
    details = error.errors()
    return [(tuple(map(str, detail["loc"])), f"DeepSpeed: {first_line(detail['msg'])}") for detail in details]


def effective(data: dict[str, Any], path: Key = ()) -> dict[str, Any]:
    """Return a copy of what counts: without "auto", for which DeepSpeed's defaults hold, comments, and what is off."""
    found = {}
    for key, value in data.items():
        here = (*path, key)
        off = not _switched_on(value) and (here in _OTHER_TRAINING or (len(here) <= 2 and removed(here, value)))
        if value != "auto" and not _is_comment(key) and not off and here != ("steps_per_print",):
            found[key] = effective(value, here) if isinstance(value, dict) else value
    return found
