"""The values of a DeepSpeed JSON: each known, of the right type, and possible here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config.documents import Document, Key, parse_scalar
from ...config.validate import Validator
from ...errors import Sourced
from ...text import nearest
from .deepspeed_schema import is_section, keys_at, removed_keys, resolves_auto
from .unused import is_switched_on, note_unused

OWNER = "DeepSpeed's JSON"
ZERO = "zero_optimization"

# Sections that turn on another kind of training than the one that was asked for.
_REFUSED = (
    "autotuning",
    "compile.deepcompile",
    "compression_training",
    "curriculum_learning",
    "data_efficiency",
    "datastates_ckpt",
    "elasticity",
    "expert_parallel",
    "hybrid_engine",
    "msamp",
    "optimizer.legacy_fusion",
    "pipeline",
    "sequence_parallel_size",
    "tensor_parallel",
    "torch_autocast",
    "weight_quantization",
    "zero_optimization.zenflow",
)

# Keys with one value that keeps the promises made here, and why it is the only one.
_FULL_PRECISION = "weights and gradients are kept in full precision here"
_ONLY_VALUE = {
    "bf16.bf16_master_weights_and_grads": (False, _FULL_PRECISION),
    "bf16.bf16_optimizer_states": (
        False,
        "the optimizer's state is kept in full precision here",
    ),
    "fp16.fp16_master_weights_and_grads": (False, _FULL_PRECISION),
    "data_types.buffer_dtype": ("fp32", "buffers are kept in full precision here"),
    "data_types.param_dtype": (None, "the sections bf16 and fp16 say it"),
    "managed_gradient_accumulation": (True, "gradients are accumulated by this program"),
    "dataloader_drop_last": (False, "the training config says it, with drop_last"),
    "gradient_predivide_factor": (1, "DeepSpeed's ZeRO refuses it"),
    "gradient_allreduce_op": ("mean", "the gradient here is the mean over the global batch"),
    "zero_force_ds_cpu_optimizer": (False, "torch's optimizer steps here"),
    "zero_optimization.legacy_stage1": (False, "DeepSpeed itself no longer has it"),
    "zero_optimization.compute_grad_norm": (True, "the gradient norm is logged and clipped here"),
    "zero_optimization.offload_optimizer.ratio": (
        1,
        "needs DeepSpeed's own Adam, and torch's steps here",
    ),
    "zero_optimization.offload_optimizer.super_offload": (False, "not supported by samecurve"),
}

# Keys that may be "auto" although DeepSpeed's models do not read them: Hugging Face's tools resolve
# the first four, DeepSpeed the last.
_AUTO = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "data_types.keep_in_fp32_modules",
)

# Keys for what samecurve does itself: activation checkpointing is the model's, checkpoints and the
# exported weights have formats of their own.
UNUSED = (
    "activation_checkpointing",
    "checkpoint",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save",
)

# How keys of zero_optimization begin that stage 3 alone reads.
_STAGE_3_PREFIXES = ("stage3_", "leaf_module", "zero_hpz_partition_size", "zero_quantized_")

_COMPILE = "write compile: true in the training config, or dynamo_config in an accelerate YAML"


def read_values(doc: Document, stage: int | None, check: Validator) -> dict[str, Sourced[Any]]:
    """Return the values by dotted key, without "auto" and null; refuse what cannot run."""
    values = _read_section(doc, (), doc.data, check)

    of_stage_3 = []
    if stage in (1, 2):
        for key in doc.data[ZERO]:
            if key.startswith(_STAGE_3_PREFIXES):
                of_stage_3.append(Sourced(doc.data[ZERO][key], doc.origin((ZERO, key))))
    unused = []
    for name in UNUSED:
        entry = doc.at(*name.split("."))
        if entry is not None and entry not in of_stage_3:
            unused.append(entry)

    if stage != 0:
        note_unused(unused, "not used by samecurve", check)
    note_unused(of_stage_3, f"no effect in stage {stage}", check)
    return values


def effective(data: Mapping[str, Any], path: Key = ()) -> dict[str, Any]:
    """Return a copy without comments, "auto" (DeepSpeed's default holds) and what is off."""
    found = {}
    for key, value in data.items():
        name = ".".join((*path, key))
        is_off = _cannot_run(name) and not is_switched_on(value)
        if value == "auto" or is_off or _is_ignored(name):
            continue
        found[key] = effective(value, (*path, key)) if isinstance(value, dict) else value
    return found


def _read_section(
    doc: Document, path: Key, data: Mapping[str, Any], check: Validator
) -> dict[str, Sourced[Any]]:
    """Return the values of a section and of those below it, by dotted key."""
    known = keys_at(path)
    values: dict[str, Sourced[Any]] = {}
    for key, value in data.items():
        here = (*path, str(key))
        name = ".".join(here)
        found = Sourced(value, doc.origin(here))
        if _is_ignored(name):
            continue

        if _cannot_run(name):
            _refuse_if_on(name, found, check)
        elif key not in known:
            names = {*known, *_REFUSED, *removed_keys()}
            check.unknown(found, names, here, _belongs(here, known), owner=OWNER)
        elif value == "auto":
            _check_auto(here, found, check)
        elif is_section(here) and isinstance(value, dict):
            values |= _read_section(doc, here, value, check)
        elif value is not None and _is_valid(here, found, known[key], check):
            values[name] = found
    return values


def _check_auto(path: Key, found: Sourced[Any], check: Validator) -> None:
    if ".".join(path) not in _AUTO and not resolves_auto(path[:-1]):
        check.refuse(found, '"auto" is not resolved here; write a value, or remove the key')


def _is_valid(path: Key, found: Sourced[Any], annotation: Any, check: Validator) -> bool:
    """Return whether a value has its type and is possible here; refuse it otherwise."""
    value = found.value
    if is_section(path):
        check.refuse(found, "must be a mapping")
        return False

    name = ".".join(path)
    if name in _ONLY_VALUE:
        only, reason = _ONLY_VALUE[name]
        if value != only and str(value).lower() != only:
            check.refuse(found, f"{reason}; remove it")
            return False

    # DeepSpeed takes any text where it declares no type, and compares it with a number later.
    is_quoted = isinstance(value, str) and isinstance(parse_scalar(value), bool | int | float)
    if annotation is Any and is_quoted:
        check.refuse(found, "is text; remove the quotes")
        return False
    return check.read(annotation, found) is not None


def _cannot_run(name: str) -> bool:
    return name in _REFUSED or name in removed_keys()


def _refuse_if_on(name: str, found: Sourced[Any], check: Validator) -> None:
    """Refuse a section that cannot run, unless it is switched off."""
    if not is_switched_on(found.value):
        return
    if name in _REFUSED:
        check.refuse(found, "not supported by samecurve; remove it")
    else:
        check.refuse(found, f"DeepSpeed: {removed_keys()[name]}; remove it")


def _is_ignored(name: str) -> bool:
    """Return whether a key is a comment, or the interval of DeepSpeed's own log, which is off."""
    return name.rpartition(".")[2].startswith("_") or name == "steps_per_print"


def _belongs(path: Key, known: Mapping[str, Any]) -> str:
    """Return where an unknown key belongs; "" where it looks like a misspelling."""
    *section, name = path
    owner = next((owner for owner in (ZERO, "fp16", "bf16") if name in keys_at((owner,))), "")
    if section == ["bf16"] and owner == "fp16":
        return "bf16 needs no loss scale; remove it"
    if section == ["compile"] and not nearest(name, known):
        return f"DeepSpeed has none of this name; {_COMPILE}"
    return f"it belongs under {owner}" if owner else ""
