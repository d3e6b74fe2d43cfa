"""The FSDP section of an accelerate file, under the names of Accelerate's plugin for FSDP2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from ...errors import Sourced
from ..request import Request
from .accelerate_keys import Entries, Upper, read_values
from .switched_off import Off


class _Plugin(BaseModel):
    """Arguments of the plugin, under the keys of a file.

    No run needs the ``state_dict_type``: checkpoints are not written by the plugin.
    """

    fsdp_version: Annotated[int, Field(ge=1, le=2, exclude=True)] = 1  # Accelerate's default
    cpu_offload: Annotated[bool, Field(alias="fsdp_offload_params")] = False
    auto_wrap_policy: Annotated[
        Literal["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"],
        Upper,
        Field(alias="fsdp_auto_wrap_policy"),
    ] = "NO_WRAP"
    transformer_cls_names_to_wrap: Annotated[
        list[str] | str | None, Field(alias="fsdp_transformer_layer_cls_to_wrap")
    ] = None
    min_num_params: Annotated[int, Field(alias="fsdp_min_num_params", ge=0)] = 100_000_000
    activation_checkpointing: Annotated[bool, Field(alias="fsdp_activation_checkpointing")] = False
    activation_checkpointing_offload: Annotated[
        bool, Field(alias="fsdp_activation_checkpointing_offload")
    ] = False
    state_dict_type: Annotated[
        Literal["SHARDED_STATE_DICT", "FULL_STATE_DICT", "LOCAL_STATE_DICT"],
        Upper,
        Field(alias="fsdp_state_dict_type", exclude=True),
    ] = "SHARDED_STATE_DICT"
    ignored_modules: Annotated[Off, Field(alias="fsdp_ignored_modules", exclude=True)] = None


# Whether parameters are freed after the forward pass, as files for FSDP1 and FSDP2 give that.
_RESHARDS = {"TRUE": True, "FALSE": False, "FULL_SHARD": True, "1": True}
_RESHARDS_OF_FSDP1 = {**_RESHARDS, "SHARD_GRAD_OP": False, "2": False}
_RULE = (
    "must be true or false (for FSDP1: FULL_SHARD or SHARD_GRAD_OP); NO_SHARD is distributed_type: "
    "MULTI_GPU, and hybrid sharding is parallelism_config with dp_replicate_size and dp_shard_size"
)


def read_fsdp(request: Request, entries: Entries, copies: Sourced[int]) -> Request:
    """Return the request with the settings of FSDP2, and the origins that errors name.

    Each of the ``copies``, if there are several (HSDP), is the whole model on a group of processes.
    """
    plugin = read_values(_Plugin, entries)
    is_old = plugin.fsdp_version == 1
    notices: tuple[str, ...] = ()
    if is_old:
        place = entries.get("fsdp_version", Sourced(1, request.strategy_origin)).origin.place
        notices = (f"{place}: FSDP1 runs as FSDP2; write fsdp_version: 2",)

    values: dict[str, Any] = {
        **plugin.model_dump(),
        "reshard_after_forward": _reshards(entries, _RESHARDS_OF_FSDP1 if is_old else _RESHARDS),
    }
    classes = plugin.transformer_cls_names_to_wrap
    if plugin.auto_wrap_policy != "TRANSFORMER_BASED_WRAP":
        values["transformer_cls_names_to_wrap"] = None
    elif isinstance(classes, str):
        values["transformer_cls_names_to_wrap"] = [name.strip() for name in classes.split(",")]
    origins = {
        f"fsdp.{name}": entries[str(field.alias)].origin
        for name, field in _Plugin.model_fields.items()
        if str(field.alias) in entries
    }
    if copies.value > 1:
        values["dp_replicate_size"] = copies.value
        origins["fsdp.dp_replicate_size"] = copies.origin
    return replace(request, fsdp=values, origins=origins, notices=notices)


def _reshards(entries: Entries, meanings: Mapping[str, bool]) -> bool:
    """Return whether parameters are freed after the forward pass."""
    reshards = None
    for key in ("fsdp_reshard_after_forward", "fsdp_sharding_strategy"):
        if key in entries:
            entry = entries[key]
            meaning = meanings.get(str(entry.value).upper())
            if meaning is None:
                raise entry.error(_RULE)
            if reshards not in (None, meaning):
                raise entry.error("disagrees with fsdp_reshard_after_forward; remove one")
            reshards = meaning
    return reshards is not False
