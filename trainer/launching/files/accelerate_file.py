"""Strategy, processes, precision and compiler of an accelerate file and of the launcher's flags."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from ...config.documents import Document, read_document
from ...errors import COMMAND_LINE, Origin, Sourced
from ..request import Request, Strategy
from .accelerate_keys import Entries, Lower, Upper, merge, read_entries, read_values

_TYPES: dict[str, Strategy] = {"NO": "single", "MULTI_GPU": "ddp", "FSDP": "fsdp"}
# Of several flags the last here counts.
_TYPE_OF_FLAG = {
    "use_fsdp": "FSDP",
    "use_deepspeed": "DEEPSPEED",
    "multi_gpu": "MULTI_GPU",
    "cpu": "NO",
    "use_megatron_lm": "MEGATRON_LM",
}

_FLAGS = {
    "gradient_accumulation_steps": "accumulation_steps",
    "gradient_clipping": "max_grad_norm",
}
_Size = Annotated[int, Field(ge=1, strict=True)]


class _File(BaseModel):
    """The entries of every strategy."""

    compute_environment: Annotated[Literal["LOCAL_MACHINE"], Upper] = "LOCAL_MACHINE"
    use_cpu: Annotated[bool, Field(strict=True)] = False
    num_machines: Annotated[int, Field(ge=1)] = 1
    num_processes: Literal[-1] | _Size = -1  # Accelerate's default
    mixed_precision: Annotated[Literal["no", "bf16", "fp16"], Lower] | None = None
    parallelism_config_dp_replicate_size: _Size = 1
    parallelism_config_dp_shard_size: _Size = 1
    parallelism_config_cp_size: _Size = 1
    parallelism_config_sp_size: _Size = 1
    parallelism_config_tp_size: Literal[1] = 1


class _Dynamo(BaseModel):
    """Arguments of Accelerate's TorchDynamoPlugin, under the keys of a file."""

    backend: Annotated[str, Lower, Field(alias="dynamo_backend")] = "no"
    mode: Annotated[
        Literal["default", "reduce-overhead", "max-autotune"] | None, Field(alias="dynamo_mode")
    ] = None
    fullgraph: Annotated[bool | None, Field(alias="dynamo_use_fullgraph")] = None
    dynamic: Annotated[bool | None, Field(alias="dynamo_use_dynamic")] = None
    use_regional_compilation: Annotated[
        bool | None, Field(alias="dynamo_use_regional_compilation")
    ] = None


_NO_FLAGS: Entries = {}


def read_accelerate_file(path: str | Path | None, overrides: Entries = _NO_FLAGS) -> Request:
    """Read an accelerate YAML or JSON, or the flags of ``accelerate launch`` without a file.

    Raises:
        ConfigError: the file, the flags or the DeepSpeed JSON that the file names are wrong.
    """
    doc = read_document(path) if path else None
    entries = read_entries(doc, overrides)
    kind = _distributed_type(doc, entries)
    read = read_values(_File, entries)
    dynamo = read_values(_Dynamo, entries).model_dump(exclude_none=True)
    use_cpu = read.use_cpu or "cpu" in entries
    if kind.value == "DEEPSPEED":
        from .deepspeed_file import read_section

        request = read_section(entries, kind.origin, use_cpu=use_cpu)
    else:
        request = Request(
            strategy=_TYPES[kind.value],
            strategy_origin=kind.origin,
            settings={key: overrides[flag] for flag, key in _FLAGS.items() if flag in overrides},
        )

    settings = request.settings
    world, copies = _processes(kind, read.num_processes, entries, settings)
    if kind.value == "FSDP":
        from .fsdp_file import read_fsdp

        request = read_fsdp(request, entries, copies)
    if dynamo["backend"] != "no":
        request = replace(request, dynamo=dynamo)
        settings["compile"] = entries["dynamo_backend"].meaning(True)
    if "mixed_precision" in entries:
        precision = entries["mixed_precision"].meaning(read.mixed_precision)
        merge(settings, {"mixed_precision": precision})
    return replace(
        request,
        world_size=world,
        num_machines=read.num_machines,
        use_cpu=use_cpu,
        files=(doc.path, *request.files) if doc else request.files,
    )


def read_launch_flags(argv: Sequence[str]) -> tuple[str | None, dict[str, Sourced[Any]]]:
    """Split the words after ``accelerate launch`` into its config file and the typed flags.

    Without ``--config_file`` the default file of ``accelerate config`` counts, as for Accelerate.
    """
    from accelerate.commands.config.config_args import default_config_file
    from accelerate.commands.launch import launch_command_parser

    parsed: Any = launch_command_parser().parse_args(argv)
    typed = parsed.nondefault - {"config_file", "training_script", "training_script_args"}
    flags = {
        name: Sourced(getattr(parsed, name), Origin(COMMAND_LINE, key=f"--{name}"))
        for name in sorted(typed)
    }
    file = parsed.config_file
    if not file and os.path.isfile(default_config_file) and not parsed.cpu:
        file = default_config_file
    return file, flags


def _distributed_type(doc: Document | None, entries: Entries) -> Sourced[str]:
    """Return the distributed type that is asked for. A flag wins over the file."""
    kind: Sourced[Any]
    if not doc:
        # Without a request accelerate launch starts DDP on a machine with several GPUs.
        name = "MULTI_GPU" if "WORLD_SIZE" in os.environ else "NO"
        kind = Sourced(name, Origin(COMMAND_LINE, key="accelerate launch"))
    else:
        kind = entries.get("distributed_type") or Sourced(None, doc.origin("distributed_type"))
    for flag, name in _TYPE_OF_FLAG.items():
        if flag in entries:
            kind = entries[flag].meaning(name)
    if kind.value is False:  # YAML reads a bare NO as false. Accelerate knows.
        return kind.meaning("NO")
    if kind.value not in (*_TYPES, "DEEPSPEED"):
        raise kind.error("must be 'NO', 'MULTI_GPU' (CPUs as well), 'FSDP' or 'DEEPSPEED'")
    return kind


def _processes(
    kind: Sourced[str], number: int, entries: Entries, settings: dict[str, Sourced[Any]]
) -> tuple[Sourced[int] | None, Sourced[int]]:
    """Return the world size, None if the launcher decides it, and the number of whole models.

    Note shared rows. Accelerate has two keys for them, of a method for FSDP2 and of a method for
    DeepSpeed. A single method serves all strategies here.
    """
    cp, sp, shards, copies = (
        entries.get(f"parallelism_config_{name}_size", kind.meaning(1))
        for name in ("cp", "sp", "dp_shard", "dp_replicate")
    )
    shared = cp.value * sp.value
    if shared > 1:
        settings["context_parallel"] = (cp if cp.value > 1 else sp).meaning(shared)
    for asked in (shards, copies):
        if asked.value > 1 and kind.value != "FSDP":
            raise asked.error("needs distributed_type: FSDP; write that, or remove it")

    world = kind.meaning(1) if kind.value == "NO" else None
    if shards.value > 1:  # Accelerate counts without the processes that share rows
        world = shards.meaning(copies.value * shards.value * shared)
    given = world if number == -1 else entries["num_processes"]
    if given and world and given.value != world.value:
        raise given.error(f"must be {world.value} under {world.origin}; change one of the two")
    return given, copies
