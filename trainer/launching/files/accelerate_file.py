"""What an accelerate file and the launcher's flags ask for.

That is the strategy, the processes, the precision and the compiler.
"""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...config.documents import Document, read_document
from ...config.validate import Validator
from ...errors import COMMAND_LINE, ConfigError, Origin, Problem, Sourced
from ...text import did_you_mean
from ..request import Request, visible_gpus
from .accelerate_entries import Entries, of_right_type, read_entries
from .accelerate_schema import TOP_LEVEL
from .deepspeed_file import INLINE, read_inline, read_json
from .fsdp_file import read_dimensions, read_fsdp
from .other_files import refuse_other_files
from .unused import note_unused

_SUPPORTED = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")
_TYPE_OF_FLAG = {
    "use_megatron_lm": "MEGATRON_LM",
    "cpu": "NO",
    "multi_gpu": "MULTI_GPU",
    "use_deepspeed": "DEEPSPEED",
    "use_fsdp": "FSDP",
}

# What people write as distributed_type, and what to write instead.
_ONE_PROCESS = "accelerate calls it 'NO'"
_OTHER_TYPES = {
    "DDP": "accelerate calls it MULTI_GPU",
    "SINGLE": _ONE_PROCESS,
    "NONE": _ONE_PROCESS,
    "FSDP": "accelerate calls it FSDP, and says the version under fsdp_config",
    "ZERO": "accelerate calls it DEEPSPEED, and says the stage under deepspeed_config",
    "MULTI_CPU": "accelerate starts one process for it; write MULTI_GPU with use_cpu: false, which "
    "rehearses on the CPU where there is no GPU, or for one process 'NO' with use_cpu: true",
}

# Dimensions of parallelism_config that are refused, and why.
_UNSUPPORTED_DIMENSIONS = {
    "parallelism_config_cp_size": "torch has no kernel of context-parallel attention for the CPU, "
    "where it would be rehearsed",
    "parallelism_config_tp_size": "no strategy here divides matrices; FSDP2 shards layers",
    "parallelism_config_sp_size": "sequence parallelism is DeepSpeed's Ulysses, whose attention "
    "runs on GPUs only",
}

# Sections that belong to one distributed type; the others are read for none that can run.
_OWNERS = {"fsdp_config": "FSDP", "deepspeed_config": "DEEPSPEED"}
_SWITCHES = {"fsdp_config": "--use_fsdp", "deepspeed_config": "--use_deepspeed"}
_OPTIONAL_SECTIONS = ("fp8_config", "megatron_lm_config", "mpirun_config", *_OWNERS)

# Arguments of Accelerate's TorchDynamoPlugin, and the key of each.
_DYNAMO_ARGUMENTS = {
    "backend": "dynamo_backend",
    "mode": "dynamo_mode",
    "fullgraph": "dynamo_use_fullgraph",
    "dynamic": "dynamo_use_dynamic",
    "use_regional_compilation": "dynamo_use_regional_compilation",
}

_NO_FLAGS: Entries = {}


def read_accelerate_file(path: str | Path | None, *, overrides: Entries = _NO_FLAGS) -> Request:
    """Read an accelerate YAML or JSON, or what ``accelerate launch`` was asked for without one.

    Args:
        path: the file, if there is one.
        overrides: flags typed after ``accelerate launch``, by argument name.

    Raises:
        ConfigError: with every problem of the file, of the flags and of the DeepSpeed JSON that it
            names.
    """
    doc = None
    if path is not None:
        doc = read_document(path, what="accelerate config file")
        refuse_other_files(doc, "distributed_type")

    check = Validator()
    entries = read_entries(doc, overrides, check)
    top = entries[TOP_LEVEL]
    kind, origin = _distributed_type(doc, top, overrides, check)
    entries["parallelism_config"] = _parallel_sizes(entries["parallelism_config"], kind, check)
    _note_unused_sections(entries, kind, check)
    world, machines = _processes(kind, origin, top, check)
    precision = mixed_precision(top, check)
    dynamo, compiler = read_dynamo(entries["dynamo_config"], top.get("dynamo_backend"), check)

    strategy_origin = origin or Origin("")
    if kind == "FSDP":
        request = _fsdp_request(entries, world, check, strategy_origin)
    elif kind == "DEEPSPEED":
        request = _deepspeed_request(entries, machines, check, strategy_origin)
    elif kind == "MULTI_GPU":
        request = Request(strategy="ddp", strategy_origin=strategy_origin)
    else:
        request = Request(strategy="single", strategy_origin=strategy_origin)

    beside = {
        "mixed_precision": precision,
        "accumulation_steps": overrides.get("gradient_accumulation_steps"),
        "max_grad_norm": overrides.get("gradient_clipping"),
    }
    request = _fill_open_values(request, beside, check)
    if check.problems:
        raise ConfigError(check.problems)

    use_cpu = "cpu" in overrides or ("use_cpu" in top and top["use_cpu"].value)
    origins = dict(request.origins)
    if compiler is not None:
        origins["dynamo"] = compiler.origin
    files = request.files
    if doc is not None:
        files = (doc.path, *files)
    return replace(
        request,
        world_size=world,
        num_machines=machines,
        use_cpu=use_cpu,
        dynamo=dynamo,
        origins=origins,
        notices=tuple(check.notices),
        files=files,
    )


def read_launch_flags(argv: list[str]) -> tuple[str | None, dict[str, Sourced[Any]]]:
    """Split what follows ``accelerate launch`` into its config file and the flags that were typed.

    Without ``--config_file`` the default file of ``accelerate config`` counts where it exists, as
    it does there.

    Raises:
        ConfigError: Accelerate's own parser refuses the arguments.
    """
    from accelerate.commands.config.config_args import default_config_file
    from accelerate.commands.launch import launch_command_parser

    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            parsed: Any = launch_command_parser().parse_args(argv)
    except SystemExit:
        rule = printed.getvalue().strip().rpartition("error: ")[2]
        origin = Origin(COMMAND_LINE, key="accelerate launch")
        raise ConfigError(Problem(origin=origin, rule=rule)) from None

    typed = parsed.nondefault - {"config_file", "training_script", "training_script_args"}
    flags = {}
    for name in sorted(typed):
        origin = Origin(COMMAND_LINE, key=f"--{name}")
        flags[name] = Sourced(getattr(parsed, name), origin)

    file = parsed.config_file
    if file is None and os.path.isfile(default_config_file) and not parsed.cpu:
        file = str(default_config_file)
    return file, flags


def _distributed_type(
    doc: Document | None, top: Entries, flags: Entries, check: Validator
) -> tuple[str, Origin | None]:
    """Return one of Accelerate's distributed types, and the origin of the request for it.

    A flag wins over the file. Where the request cannot run, the type is NO and the origin None.
    """
    requests: list[Sourced[Any]] = []
    for flag, kind in _TYPE_OF_FLAG.items():
        if flag in flags:
            requests.append(flags[flag].meaning(kind))
    if doc is not None:
        absent = Sourced(None, Origin(doc.path, key="distributed_type"))
        requests.append(top.get("distributed_type", absent))
    if not requests:
        requests.append(_type_without_request(top))

    found = requests[0]
    name, *others = [_type_name(request) for request in requests]
    if name not in _SUPPORTED:
        hint = _OTHER_TYPES.get(name.upper().rstrip("123-_")) or did_you_mean(name, _SUPPORTED)
        check.refuse(found, f"must be a type that samecurve runs; {hint}")
        return "NO", None
    if found.origin.key == "--cpu" and set(others) - {"NO"}:
        rule = "makes accelerate start one process; leave it out to rehearse without a GPU"
        check.refuse(flags["cpu"], rule)
        return "NO", None
    return name, found.origin


def _type_name(request: Sourced[Any]) -> str:
    # YAML reads a bare NO as false; Accelerate knows.
    return "NO" if request.value is False else str(request.value or "")


def _type_without_request(top: Entries) -> Sourced[Any]:
    """Return the type that ``accelerate launch`` takes where neither file nor flag gives one.

    It starts DDP of its own accord on a machine with several GPUs.
    """
    processes = top.get("num_processes")
    wants_several = processes is None or processes.value != 1
    kind = "MULTI_GPU" if visible_gpus() > 1 and wants_several else "NO"
    return Sourced(kind, Origin(COMMAND_LINE, key="accelerate launch"))


def _processes(
    kind: str, origin: Origin | None, top: Entries, check: Validator
) -> tuple[Sourced[int] | None, int]:
    """Return the world size, None where the launcher decides it, and the number of machines.

    Args:
        kind: the distributed type.
        origin: of the request for it; None where that is refused already.
    """
    machines = top["num_machines"].value if "num_machines" in top else 1
    number = top.get("num_processes")
    if origin is None:
        return None, machines
    if number is None or number.value == -1:  # Accelerate's default
        world = Sourced(1, origin) if kind == "NO" else None
        return world, machines

    if number.value < 1:
        check.refuse(number, "must be at least 1")
    elif kind == "NO" and number.value > 1:
        check.refuse(
            number,
            f"accelerate starts one process under {origin}; write 1, or ask for "
            "distributed_type: MULTI_GPU (--multi_gpu), which rehearses on the CPU where there is "
            "no GPU",
        )
    elif number.value % machines:
        check.refuse(number, f"must be a multiple of num_machines {machines}")
    return number, machines


def mixed_precision(top: Entries, check: Validator) -> Sourced[str] | None:
    """Return the requested precision, which older files give as ``fp16: true``."""
    precision = top.get("mixed_precision")
    old = top.get("fp16")
    if old is None or not old.value:
        return precision
    if precision is None:
        return old.meaning("fp16")
    if precision.value != "fp16":
        check.refuse(old, f"disagrees with {precision.value!r} at {precision.origin}; remove it")
    return precision


def read_dynamo(
    entries: Entries, old: Sourced[Any] | None, check: Validator
) -> tuple[dict[str, Any], Sourced[Any] | None]:
    """Return the arguments of Accelerate's TorchDynamoPlugin and the backend; {} and None for none.

    Args:
        old: the backend as older files give it, at the top level.
    """
    backend = entries.get("dynamo_backend", old)
    if backend is not None:
        if old is not None and str(backend.value).lower() != str(old.value).lower():
            check.refuse(old, f"disagrees with {backend.value!r} at {backend.origin}; remove it")
        entries = {**entries, "dynamo_backend": backend}

    values = of_right_type("dynamo_config", entries, check)
    if "dynamo_backend" not in values or values["dynamo_backend"].value == "no":
        return {}, None
    arguments = {}
    for argument, key in _DYNAMO_ARGUMENTS.items():
        if key in values:
            arguments[argument] = values[key].value
    return arguments, backend


def _parallel_sizes(entries: Entries, kind: str, check: Validator) -> Entries:
    """Return the entries of parallelism_config; refuse the dimensions that cannot run."""
    sizes = of_right_type("parallelism_config", entries, check)
    for name, entry in sizes.items():
        if not name.endswith("_size") or entry.value == 1:
            continue
        reason = _UNSUPPORTED_DIMENSIONS.get(name)
        if reason is not None:
            rule = f"more than 1 is not supported by samecurve: {reason}; write 1, or remove it"
            check.refuse(entry, rule)
        elif kind != "FSDP":
            rule = "more than 1 runs with FSDP2 only: write distributed_type: FSDP, or remove it"
            check.refuse(entry, rule)
    return sizes


def _note_unused_sections(entries: dict[str, Entries], kind: str, check: Validator) -> None:
    """Note sections of other strategies; refuse typed flags of them, which ask for another run."""
    for section in _OPTIONAL_SECTIONS:
        if kind == _OWNERS.get(section):
            continue
        switch = _SWITCHES.get(section)
        in_file = []
        for entry in entries[section].values():
            if switch and entry.origin.source == COMMAND_LINE:
                check.refuse(entry, f"has no effect without {switch}; add that, or remove this")
            else:
                in_file.append(entry)
        check.idle(in_file, f"{section}: no effect under {kind}")


def _fsdp_request(
    entries: dict[str, Entries], world: Sourced[int] | None, check: Validator, origin: Origin
) -> Request:
    dimensions = read_dimensions(entries["parallelism_config"], world, check)
    fsdp, origins = read_fsdp(entries["fsdp_config"], dimensions, check, origin)
    return Request(strategy="fsdp", strategy_origin=origin, fsdp=fsdp, origins=origins)


def _deepspeed_request(
    all_entries: dict[str, Entries], machines: int, check: Validator, origin: Origin
) -> Request:
    """Return the request of the section deepspeed_config, or of the JSON that it names.

    Where there are problems, the request is one for a single process, and nobody uses it.
    """
    entries = of_right_type("deepspeed_config", all_entries["deepspeed_config"], check)
    absent = Sourced(None, origin.named("deepspeed_config.deepspeed_multinode_launcher"))
    launcher = entries.get("deepspeed_multinode_launcher", absent)
    if machines > 1 and launcher.value != "standard":
        rule = (
            "several machines need standard; accelerate's default, pdsh, starts one separate world "
            "on each"
        )
        check.refuse(launcher, rule)
    if "zero3_init_flag" in entries:
        note_unused([entries["zero3_init_flag"]], "no effect on how a model is built", check)

    file = entries.get("deepspeed_config_file")
    if file is None:
        request = read_inline(entries, check, origin)
    else:
        beside = {**all_entries[TOP_LEVEL], **entries}
        request = _read_named_json(file, beside, check)
    return request or Request(strategy="single", strategy_origin=origin)


def _read_named_json(file: Sourced[str], beside: Entries, check: Validator) -> Request | None:
    """Read the JSON that a file or a flag names; refuse what must be written in it.

    Flags may fill its "auto" values.
    """
    may_be_typed = ("mixed_precision", "gradient_accumulation_steps", "gradient_clipping")
    for name in ("mixed_precision", *INLINE):
        entry = beside.get(name)
        if entry is None:
            continue
        is_flag = entry.origin.source == COMMAND_LINE
        if not (is_flag and name in may_be_typed):
            rule = f"is given beside {file.origin}, which must say it; remove it here"
            check.refuse(entry, rule)

    if os.path.isfile(file.value):
        return read_json(file.value, check)
    rule = (
        "does not exist; accelerate looks for it from the current folder, not from that of this "
        "file"
    )
    check.refuse(file, rule)
    return None


def _fill_open_values(
    request: Request, beside: dict[str, Sourced[Any] | None], check: Validator
) -> Request:
    """Return the request with the values that are given beside a DeepSpeed JSON.

    They fill what it leaves open, and may not contradict it.
    """
    for name, found in beside.items():
        own = getattr(request, name)
        if own is None:
            request = replace(request, **{name: found})  # type: ignore[arg-type]
        elif found is not None and found.value != own.value:
            check.refuse(found, f"disagrees with {own.value!r} at {own.origin}; keep one of them")
    return request
