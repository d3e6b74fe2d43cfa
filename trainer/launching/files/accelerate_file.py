"""What an accelerate file and the launcher's flags ask for: strategy, processes, precision, compiler."""

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
from .fsdp_file import read_dimensions, read_fsdp, refuse_transformers_fsdp
from .tables import TOP_LEVEL, Entries, annotation, checked, table

_SUPPORTED = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")
_BY_FLAG = {"cpu": "NO", "multi_gpu": "MULTI_GPU", "use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP"}
_ONE_PROCESS = "makes accelerate start one process; leave it out: without a GPU the job rehearses on the CPU"
_NO_FLAGS: Entries = {}


def read_accelerate_file(path: str | Path | None, *, overrides: Entries = _NO_FLAGS) -> Request:
    """Read an accelerate YAML or JSON, or what ``accelerate launch`` was asked for without one.

    Args:
        path: the file, if there is one.
        overrides: flags typed after ``accelerate launch``, by argument name.

    Raises:
        ConfigError: with every problem of the file, of the flags and of the DeepSpeed JSON that it names.
    """
    doc, flags = None if path is None else read_document(path, what="accelerate config file"), overrides
    check = Validator()
    if doc is not None:
        _refuse_other_files(doc)
    entries = read_entries(doc, flags, check)
    top = entries[TOP_LEVEL]
    asked, origin = _strategy(doc, top, flags, check)
    refuse_unsupported(entries, asked, check)
    world, machines = _processes(asked, origin, doc is not None, top, check)
    said: dict[str, Any] = {
        "mixed_precision": mixed_precision(top, check),
        "accumulation_steps": flags.get("gradient_accumulation_steps"),
        "max_grad_norm": flags.get("gradient_clipping"),
    }
    dynamo, compiler = read_dynamo(entries["dynamo_config"], top.get("dynamo_backend"), check)
    request = Request(strategy="ddp" if asked == "MULTI_GPU" else "single", strategy_origin=origin or Origin(""))
    if asked == "FSDP":
        fsdp, origins = read_fsdp(entries["fsdp_config"], check, request.strategy_origin)
        dimensions, typed_at = read_dimensions(entries["parallelism_config"], world, check)
        request = replace(request, strategy="fsdp", fsdp=fsdp | dimensions, origins=origins | typed_at)
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

    Without ``--config_file`` the default file of ``accelerate config`` counts where it exists, as it does there.

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
        raise ConfigError(Problem(origin=Origin(COMMAND_LINE, key="accelerate launch"), rule=rule)) from None
    typed = parsed.nondefault - {"config_file", "training_script", "training_script_args"}
    flags = {name: Sourced(getattr(parsed, name), Origin(COMMAND_LINE, key=f"--{name}")) for name in sorted(typed)}
    if parsed.config_file is None and os.path.isfile(default_config_file) and not parsed.cpu:
        return str(default_config_file), flags
    return parsed.config_file, flags


def _refuse_other_files(doc: Document) -> None:
    refuse_transformers_fsdp(doc)
    if "distributed_type" not in doc.data and "zero_optimization" in doc.data:
        rule = "this is a DeepSpeed config: give it with --deepspeed"
        raise ConfigError(Problem(origin=Origin(doc.path), rule=rule))
    environment = doc.at("compute_environment")
    if environment is not None and environment.value != "LOCAL_MACHINE":
        raise ConfigError(environment.problem("not supported by samecurve; write LOCAL_MACHINE"))


def _strategy(doc: Document | None, top: Entries, flags: Entries, check: Validator) -> tuple[str, Origin | None]:
    """Return one of Accelerate's distributed types, and who asked for it; None where that wish is a problem.

    Accelerate itself refuses two flags that ask.
    """
    in_file = _strategy_of_file(doc, top, check) if doc else None
    if "use_megatron_lm" in flags:
        check.refuse(flags["use_megatron_lm"], f"not supported by samecurve; supported: {', '.join(_BY_FLAG)}")
    for name, asked in _BY_FLAG.items():
        if name in flags and name == "cpu" and in_file is not None and in_file[0] != "NO":
            check.refuse(flags[name], _ONE_PROCESS)
            return "NO", None
        if name in flags:
            return asked, flags[name].origin
    if in_file is not None:
        return in_file
    # Accelerate starts DDP of its own accord on a machine with several GPUs.
    several = visible_gpus() > 1 and ("num_processes" not in top or top["num_processes"].value != 1)
    return ("MULTI_GPU" if several else "NO"), Origin(COMMAND_LINE, key="accelerate launch")


def _strategy_of_file(doc: Document, top: Entries, check: Validator) -> tuple[str, Origin | None]:
    found = top.get("distributed_type", Sourced(None, Origin(doc.path, key="distributed_type")))
    known = table("accelerate")
    name = "NO" if found.value is False else str(found.value)  # YAML reads a bare NO as false; Accelerate knows
    if name in _SUPPORTED:
        return name, found.origin
    if found.value is None:
        check.refuse(found, f"is missing; write one of {', '.join(_SUPPORTED)}")
    elif name == "MULTI_CPU":
        rehearses = "MULTI_GPU with use_cpu: false, which rehearses on the CPU where there is no GPU"
        one = "for one process 'NO' with use_cpu: true"
        check.refuse(found, f"accelerate starts one process for it; write distributed_type: {rehearses}, or {one}")
    elif name in known["top_level"]["distributed_type"]:
        check.refuse(found, f"not supported by samecurve; supported: {', '.join(_SUPPORTED)}")
    elif alias := known["also_called"].get(name.upper().rstrip("123-_")):
        check.refuse(found, f"no such type; did you mean {alias!r} (accelerate's name for {name})?")
    else:
        check.refuse(found, f"no such type; {did_you_mean(name, _SUPPORTED)}")
    return "NO", None


def _processes(
    asked: str, origin: Origin | None, in_file: bool, top: Entries, check: Validator
) -> tuple[Sourced[int] | None, int]:
    """Return the world size, None where the launcher says it, and the number of machines.

    Args:
        asked, origin: the distributed type, and who asked for it; None where that is wrong already.
    """
    machines = top["num_machines"].value if "num_machines" in top else 1
    number, ids = top.get("num_processes"), top.get("gpu_ids")
    if origin is None:
        return None, machines
    if number is None or number.value == -1:
        return (Sourced(1, origin) if asked == "NO" else None), machines
    if number.value < 1:
        check.refuse(number, "must be at least 1")
    elif asked == "NO" and number.value > 1 and origin.key == "--cpu":
        check.refuse(number, f"--cpu {_ONE_PROCESS}")
    elif asked == "NO" and number.value > 1:
        file = "accelerate starts one process under distributed_type 'NO'; write MULTI_GPU, or num_processes: 1"
        check.refuse(number, file if in_file else "accelerate starts one process without --multi_gpu; add it")
    elif number.value % machines:
        check.refuse(number, f"must be a multiple of num_machines {machines}")
    elif asked == "MULTI_GPU" and machines == 1 < number.value and ids is not None and str(ids.value).isdigit():
        check.refuse(ids, f"accelerate wants as many as processes, {number.value}; write 'all'")
    return number, machines


def mixed_precision(top: Entries, check: Validator) -> Sourced[str] | None:
    """Return the precision that is asked for; also by ``fp16: true`` of older files."""
    precision, old = top.get("mixed_precision"), top.get("fp16")
    if old is not None and not old.value:
        old = None
    if precision is None:
        return old and old.meaning("fp16")
    name = check.read(annotation(["no", "bf16", "fp16"], any_case=True), precision)
    if old is not None and name not in (None, "fp16"):
        check.refuse(old, f"disagrees with {precision.value!r} at {precision.origin}; remove it")
    return None if name is None else precision.meaning(name)


def read_dynamo(
    entries: Entries, old: Sourced[Any] | None, check: Validator
) -> tuple[dict[str, Any], Sourced[Any] | None]:
    """Return the arguments of Accelerate's TorchDynamoPlugin and the backend; {} and None where none is asked for.

    Args:
        old: the backend as older files give it, at the top level.
    """
    backend = entries.get("dynamo_backend", old)
    if backend is not None:
        if old is not None and str(backend.value).lower() != str(old.value).lower():
            check.refuse(old, f"disagrees with {backend.value!r} at {backend.origin}; remove it")
        # YAML reads an unquoted `no` as false: here it can mean one thing only.
        entries = {**entries, "dynamo_backend": backend.meaning("no") if backend.value is False else backend}
    values = checked("dynamo_config", entries, check)
    if "dynamo_backend" not in values or values["dynamo_backend"].value == "no":
        return {}, None
    arguments = table("accelerate")["dynamo_plugin"]
    return {argument: values[key].value for argument, key in arguments.items() if key in values}, backend


def refuse_unsupported(entries: dict[str, dict[str, Sourced[Any]]], asked: str, check: Validator) -> None:
    """Refuse sections that samecurve does not run, and say which do not belong to the strategy."""
    sizes = checked("parallelism_config", entries["parallelism_config"], check)
    entries["parallelism_config"] = sizes
    for argument, entry in sizes.items():
        if not argument.endswith("_size") or entry.value == 1:
            continue
        if why := table("accelerate")["unsupported_dimensions"].get(argument):
            check.refuse(entry, f"more than 1 is not supported by samecurve: {why}; write 1, or remove it")
        elif asked != "FSDP":
            check.refuse(entry, "more than 1 runs with FSDP2 only: write distributed_type: FSDP, or remove it")
    tpu = [entries[TOP_LEVEL][name] for name in table("accelerate")["tpu"] if name in entries[TOP_LEVEL]]
    check.idle([entry for entry in tpu if entry.value not in (None, False, "no", "", [])], "read on TPUs only")
    # fp8 and megatron are read for a precision and a type that are refused as such, mpirun where there is no launcher.
    owners = {"fsdp_config": ("FSDP", "--use_fsdp"), "deepspeed_config": ("DEEPSPEED", "--use_deepspeed")}
    for section in ("fp8_config", "megatron_lm_config", "mpirun_config", *owners):
        owner, flag = owners.get(section, ("", ""))
        found = [] if asked == owner else list(entries[section].values())
        typed = [entry for entry in found if flag and entry.origin.source == COMMAND_LINE]
        for entry in typed:
            check.refuse(entry, f"has no effect without {flag}; add that, or remove this")
        if section == "mpirun_config" and asked == "NO" and found:
            check.refuse(found[0], f"{section} is not supported by samecurve; remove it")
        elif unused := [entry for entry in found if entry not in typed]:
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
    if file is not None:
        _check_beside_json(file, entries, all_entries[TOP_LEVEL].get("mixed_precision"), check)
    request = read_inline(entries, check, origin) if file is None else _named_json(file, check)
    init = entries.get("zero3_init_flag")
    if request is not None and init is not None and init.value:
        stage = request.deepspeed["zero_optimization"]["stage"]
        check.notice(init, table("accelerate")["built_whole"] if stage == 3 else f"no effect in stage {stage}")
    return request


def _check_beside_json(file: Sourced[str], entries: Entries, precision: Sourced[Any] | None, check: Validator) -> None:
    """Refuse what a DeepSpeed JSON says as well. Flags may fill its "auto" values."""
    for option, entry in entries.items():
        fills = entry.origin.source == COMMAND_LINE and option in ("gradient_accumulation_steps", "gradient_clipping")
        if not fills and not option.startswith("deepspeed_") and option != "zero3_init_flag":
            at = f"{file.origin.key} at {file.origin.place}"
            check.refuse(entry, f"stands beside {at}, which must say it; remove it here")
    if precision is not None and precision.origin.source != COMMAND_LINE:
        name = str(precision.value).lower()
        instead = f' and write "{name}": {{"enabled": true}} in the JSON' if name in ("bf16", "fp16") else ""
        check.refuse(precision, f"accelerate refuses it beside {file.origin.key}; remove it{instead}")


def _named_json(file: Sourced[str], check: Validator) -> Request | None:
    path = file.value
    if os.path.isfile(path):
        return read_json(path, check)
    rule = "does not exist (accelerate looks for it from the current folder)"
    beside = Path(file.origin.source).parent / path
    check.refuse(file, f"{rule}; it lies beside this file: write {str(beside)!r}" if beside.is_file() else rule)
    return None


def _filled(request: Request, said: dict[str, Any], check: Validator) -> Request:
    """Return the request with what was said beside a DeepSpeed JSON where that is open; it may not contradict it."""
    for name, found in said.items():
        own = getattr(request, name)
        if own is None:
            request = replace(request, **{name: found})
        elif found is not None and found.value != own.value:
            check.refuse(found, f"disagrees with {own.value!r} at {own.origin}; keep one of them")
    return request
