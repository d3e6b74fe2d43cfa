"""What an accelerate file and the launcher's flags ask for: strategy, processes, precision,
compiler.
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
from .accelerate_keys import read_entries
from .deepspeed_file import read_inline, read_json
from .fsdp_file import read_dimensions, read_fsdp, refuse_other_files
from .tables import TOP_LEVEL, Entries, checked, table

_SUPPORTED = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")
_BY_FLAG = {
    "use_megatron_lm": "MEGATRON_LM",
    "cpu": "NO", "multi_gpu": "MULTI_GPU", "use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP",
}  # fmt: skip
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
    doc, flags = (
        None if path is None else read_document(path, what="accelerate config file"),
        overrides,
    )
    check = Validator()
    if doc is not None:
        refuse_other_files(doc, "distributed_type")
    entries = read_entries(doc, flags, check)
    top = entries[TOP_LEVEL]
    asked, origin = _strategy(doc, top, flags, check)
    refuse_unsupported(entries, asked, check)
    world, machines = _processes(asked, origin, top, check)
    said: dict[str, Any] = {
        "mixed_precision": mixed_precision(top, check),
        "accumulation_steps": flags.get("gradient_accumulation_steps"),
        "max_grad_norm": flags.get("gradient_clipping"),
    }
    dynamo, compiler = read_dynamo(entries["dynamo_config"], top.get("dynamo_backend"), check)
    request = Request(
        strategy="ddp" if asked == "MULTI_GPU" else "single", strategy_origin=origin or Origin("")
    )
    if asked == "FSDP":
        dimensions = read_dimensions(entries["parallelism_config"], world, check)
        fsdp, origins = read_fsdp(
            entries["fsdp_config"], dimensions, check, request.strategy_origin
        )
        request = replace(request, strategy="fsdp", fsdp=fsdp, origins=origins)
    elif asked == "DEEPSPEED":
        request = _deepspeed(entries, machines, check, request.strategy_origin) or request
    request = _filled(request, said, check)
    if check.problems:
        raise ConfigError(check.problems)
    return replace(
        request,
        world_size=world,
        num_machines=machines,
        use_cpu="cpu" in flags or ("use_cpu" in top and top["use_cpu"].value),
        dynamo=dynamo,
        origins={**request.origins, **({"dynamo": compiler.origin} if compiler else {})},
        notices=tuple(check.notices),
        files=((doc.path,) if doc else ()) + request.files,
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

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed: Any = launch_command_parser().parse_args(argv)
    except SystemExit:
        rule = said.getvalue().strip().rpartition("error: ")[2]
        raise ConfigError(
            Problem(origin=Origin(COMMAND_LINE, key="accelerate launch"), rule=rule)
        ) from None
    typed = parsed.nondefault - {"config_file", "training_script", "training_script_args"}
    flags = {
        name: Sourced(getattr(parsed, name), Origin(COMMAND_LINE, key=f"--{name}"))
        for name in sorted(typed)
    }
    if parsed.config_file is None and os.path.isfile(default_config_file) and not parsed.cpu:
        return str(default_config_file), flags
    return parsed.config_file, flags


def _strategy(
    doc: Document | None, top: Entries, flags: Entries, check: Validator
) -> tuple[str, Origin | None]:
    """Return one of Accelerate's distributed types, and who asked for it; None where that wish is a
    problem.

    A flag wins over the file; Accelerate itself refuses two of them, but for Megatron's, which it
    would pass over.
    """
    wishes: list[Sourced[Any]] = [
        flags[name].meaning(asked) for name, asked in _BY_FLAG.items() if name in flags
    ]
    if doc is not None:
        wishes.append(
            top.get("distributed_type", Sourced(None, Origin(doc.path, key="distributed_type")))
        )
    if not wishes:
        # Accelerate starts DDP of its own accord on a machine with several GPUs.
        several = visible_gpus() > 1 and (
            "num_processes" not in top or top["num_processes"].value != 1
        )
        wishes.append(
            Sourced("MULTI_GPU" if several else "NO", Origin(COMMAND_LINE, key="accelerate launch"))
        )
    found = wishes[0]
    # YAML reads a bare NO as false; Accelerate knows.
    name, *others = ["NO" if wish.value is False else str(wish.value or "") for wish in wishes]
    if name not in _SUPPORTED:
        hint = table("accelerate")["other_types"].get(name.upper().rstrip("123-_")) or did_you_mean(
            name, _SUPPORTED
        )
        check.refuse(found, f"must be a type that samecurve runs; {hint}")
    elif found.origin.key == "--cpu" and set(others) - {"NO"}:
        check.refuse(
            flags["cpu"],
            "makes accelerate start one process; leave it out to rehearse without a GPU",
        )
    else:
        return name, found.origin
    return "NO", None


def _processes(
    asked: str, origin: Origin | None, top: Entries, check: Validator
) -> tuple[Sourced[int] | None, int]:
    """Return the world size, None where the launcher says it, and the number of machines.

    Args:
        asked, origin: the distributed type, and who asked for it; None where that is wrong already.
    """
    machines, number = (
        top["num_machines"].value if "num_machines" in top else 1,
        top.get("num_processes"),
    )
    if origin is None:
        return None, machines
    if number is None or number.value == -1:
        return (Sourced(1, origin) if asked == "NO" else None), machines
    if number.value < 1:
        check.refuse(number, "must be at least 1")
    elif asked == "NO" and number.value > 1:
        several = "distributed_type: MULTI_GPU (--multi_gpu), which rehearses on the CPU where there is no GPU"
        check.refuse(
            number, f"accelerate starts one process under {origin}; write 1, or ask for {several}"
        )
    elif number.value % machines:
        check.refuse(number, f"must be a multiple of num_machines {machines}")
    return number, machines


def mixed_precision(top: Entries, check: Validator) -> Sourced[str] | None:
    """Return the precision that is asked for; also by ``fp16: true`` of older files."""
    precision, old = top.get("mixed_precision"), top.get("fp16")
    if old is None or not old.value:
        return precision
    if precision is not None and precision.value != "fp16":
        check.refuse(old, f"disagrees with {precision.value!r} at {precision.origin}; remove it")
    return precision or old.meaning("fp16")


def read_dynamo(
    entries: Entries, old: Sourced[Any] | None, check: Validator
) -> tuple[dict[str, Any], Sourced[Any] | None]:
    """Return the arguments of Accelerate's TorchDynamoPlugin and the backend; {} and None where
    none is asked for.

    Args:
        old: the backend as older files give it, at the top level.
    """
    backend = entries.get("dynamo_backend", old)
    if backend is not None:
        if old is not None and str(backend.value).lower() != str(old.value).lower():
            check.refuse(old, f"disagrees with {backend.value!r} at {backend.origin}; remove it")
        entries = {**entries, "dynamo_backend": backend}
    values = checked("dynamo_config", entries, check)
    if "dynamo_backend" not in values or values["dynamo_backend"].value == "no":
        return {}, None
    arguments = table("accelerate")["dynamo_plugin"]
    return {
        argument: values[key].value for argument, key in arguments.items() if key in values
    }, backend


def refuse_unsupported(
    entries: dict[str, dict[str, Sourced[Any]]], asked: str, check: Validator
) -> None:
    """Refuse sections that samecurve does not run, and say which do not belong to the strategy."""
    sizes = checked("parallelism_config", entries["parallelism_config"], check)
    entries["parallelism_config"] = sizes
    for argument, entry in sizes.items():
        if not argument.endswith("_size") or entry.value == 1:
            continue
        if why := table("accelerate")["unsupported_dimensions"].get(argument):
            check.refuse(
                entry, f"more than 1 is not supported by samecurve: {why}; write 1, or remove it"
            )
        elif asked != "FSDP":
            check.refuse(
                entry,
                "more than 1 runs with FSDP2 only: write distributed_type: FSDP, or remove it",
            )
    tpu = [
        entries[TOP_LEVEL][name]
        for name in table("accelerate")["tpu"]
        if name in entries[TOP_LEVEL]
    ]
    check.idle(
        [entry for entry in tpu if entry.value not in (None, False, "no", "", [])],
        "read on TPUs only",
    )
    # fp8 and megatron are read for a precision and a type that are refused as such.
    owners = {
        "fsdp_config": ("FSDP", "--use_fsdp"),
        "deepspeed_config": ("DEEPSPEED", "--use_deepspeed"),
    }
    for section in ("fp8_config", "megatron_lm_config", "mpirun_config", *owners):
        owner, flag = owners.get(section, ("", ""))
        unused = [] if asked == owner else list(entries[section].values())
        for entry in unused:
            if flag and entry.origin.source == COMMAND_LINE:
                check.refuse(entry, f"has no effect without {flag}; add that, or remove this")
        if unused:
            check.notices.append(f"{unused[0].origin.place}: {section}: no effect under {asked}")


def _deepspeed(
    all_entries: dict[str, dict[str, Sourced[Any]]], machines: int, check: Validator, origin: Origin
) -> Request | None:
    entries = checked("deepspeed_config", all_entries["deepspeed_config"], check)
    absent = Sourced(None, origin.named("deepspeed_config.deepspeed_multinode_launcher"))
    launcher = entries.get("deepspeed_multinode_launcher", absent)
    if machines > 1 and launcher.value != "standard":
        rule = "several machines need standard; accelerate's default, pdsh, starts one separate world on each"
        check.refuse(launcher, rule)
    file = entries.get("deepspeed_config_file")
    if file is None:
        return read_inline(entries, check, origin)
    return _named_json(file, {**all_entries[TOP_LEVEL], **entries}, check)


def _named_json(file: Sourced[str], beside: Entries, check: Validator) -> Request | None:
    """Read the JSON, and refuse what it must say itself. Flags may fill its "auto" values."""
    for option in ("mixed_precision", *table("deepspeed")["inline"]):
        entry = beside.get(option)
        fills = option in ("mixed_precision", "gradient_accumulation_steps", "gradient_clipping")
        if entry is not None and not (fills and entry.origin.source == COMMAND_LINE):
            check.refuse(entry, f"stands beside {file.origin}, which must say it; remove it here")
    if os.path.isfile(file.value):
        return read_json(file.value, check)
    check.refuse(
        file,
        "does not exist; accelerate looks for it from the current folder, not from that of this file",
    )
    return None


def _filled(request: Request, said: dict[str, Any], check: Validator) -> Request:
    """Return the request with what was said beside a DeepSpeed JSON where that is open; it may not
    contradict it.
    """
    for name, found in said.items():
        own = getattr(request, name)
        if own is None:
            request = replace(request, **{name: found})
        elif found is not None and found.value != own.value:
            check.refuse(found, f"disagrees with {own.value!r} at {own.origin}; keep one of them")
    return request
