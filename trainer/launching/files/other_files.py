"""Files of another kind, given where a launch file is expected."""

from __future__ import annotations

from ...config.documents import Document
from ...errors import ConfigError, Origin, Problem
from . import accelerate_schema, deepspeed_schema

# By a key that the kind of file has, what to do with such a file.
_KINDS = {
    "distributed_type": "an accelerate config: give it to accelerate launch, or with "
    "--accel_config",
    "zero_optimization": "a DeepSpeed config: give it with --deepspeed",
}

# Keys of transformers' own ``fsdp_config`` that no other file has, without their prefix.
_TRANSFORMERS_KEYS = {
    "fsdp",
    "transformer_layer_cls_to_wrap",
    "backward_prefetch",
    "forward_prefetch",
    "limit_all_gathers",
    "use_orig_params",
    "sync_module_states",
    "cpu_ram_efficient_loading",
    "xla",
    "xla_fsdp_v2",
    "xla_fsdp_settings",
    "xla_fsdp_grad_ckpt",
}
_TRANSFORMERS_FSDP = (
    "a file for transformers' own Trainer; write an accelerate YAML, "
    "{distributed_type: FSDP, fsdp_config: {fsdp_version: 2, ...}}, with these keys under "
    "fsdp_config and fsdp_ in front, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP for layers and "
    "SIZE_BASED_WRAP for min_num_params, fsdp_offload_params: true for the word offload, "
    "fsdp_reshard_after_forward: false for shard_grad_op"
)


def refuse_other_files(doc: Document, expected: str = "") -> None:
    """Raise ConfigError for a file that another option takes, or transformers' own Trainer.

    Args:
        expected: ``distributed_type`` where an accelerate config is expected, or
            ``zero_optimization`` for one of DeepSpeed; "" where either will do.
    """
    named = next((key for key in _KINDS if key in doc.data), None)
    if named is None and "compute_environment" not in doc.data and _is_of_transformers(doc):
        raise ConfigError(Problem(origin=Origin(doc.path), rule=f"this is {_TRANSFORMERS_FSDP}"))

    kind = named or _kind_by_all_keys(doc)
    if expected and expected not in doc.data and kind not in (None, expected):
        raise ConfigError(Problem(origin=Origin(doc.path), rule=f"this is {_KINDS[kind]}"))


def _is_of_transformers(doc: Document) -> bool:
    """Return whether a file without a kind has keys of transformers' ``fsdp_config``."""
    section = doc.data.get("fsdp_config")
    keys = set(doc.data)
    if isinstance(section, dict):
        keys |= set(section)
    names = {str(key).removeprefix("fsdp_") for key in keys}
    has_prefixed = any(str(key).startswith("fsdp_") for key in doc.data if key != "fsdp_config")
    return has_prefixed or bool(names & _TRANSFORMERS_KEYS)


def _kind_by_all_keys(doc: Document) -> str | None:
    """Return the kind of a file by its keys; None where it has keys of both kinds or of neither."""
    deepspeed = set(deepspeed_schema.keys_at())
    accelerate = {*accelerate_schema.key_types(), *accelerate_schema.sections()} - deepspeed
    has_accelerate = bool(doc.data.keys() & accelerate)
    has_deepspeed = bool(doc.data.keys() & deepspeed)
    if has_accelerate == has_deepspeed:
        return None
    return "distributed_type" if has_accelerate else "zero_optimization"
