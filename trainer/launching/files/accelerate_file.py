"""An accelerate file and the launcher's flags: the keys held against the table, and what they mean.

Accelerate refuses unknown keys at the top level only: nested ones become launcher arguments that nobody reads.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...config.documents import Document, read_document
from ...config.validate import Validator
from ...errors import COMMAND_LINE, ConfigError, Origin, Problem, Sourced
from ..request import Request, visible_gpus
from .deepspeed_file import notice_init, read_inline, read_json
from .fsdp_file import read_dimensions, read_fsdp, refuse_transformers_fsdp
from .tables import Entries, accelerate_keys, annotation, checked, deepspeed_keys, table

OWNER = "accelerate's config file"
# Accelerate adds the prefix itself in these sections (commands/launch.py), so both spellings are known.
_PREFIXES = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}
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
    check = Validator(owner=OWNER)
    if doc is not None:
        _refuse_other_files(doc)
    typed = read_top_level(doc, check) if doc else {}
    given = {**typed, **flags}
    sections = read_sections(doc, flags, check)
    asked, origin = strategy_of(doc, typed, flags, check)
    refuse_unsupported(sections, asked, given, check)
    world, machines = processes(asked, origin, doc is not None, given, check)
    request = Request(strategy="ddp" if asked == "MULTI_GPU" else "single", strategy_origin=origin or Origin(""))
    if asked == "FSDP":
        fsdp, origins = read_fsdp(sections["fsdp_config"], check, request.strategy_origin)
        dimensions, typed_at = read_dimensions(sections["parallelism_config"], world, check)
        fsdp, origins = {**fsdp, **dimensions}, {**origins, **typed_at}
        request = replace(request, strategy="fsdp", fsdp=fsdp, origins=origins)
    elif asked == "DEEPSPEED":
        request = _deepspeed(sections["deepspeed_config"], given, machines, check, request.strategy_origin) or request
    precision = mixed_precision(given, check)
    if request.mixed_precision is None:
        request = replace(request, mixed_precision=precision)
    elif precision is not None and precision.value != request.mixed_precision.value:
        rule = f"disagrees with {request.mixed_precision.value!r} at {request.mixed_precision.origin}; keep one of them"
        check.refuse(given["mixed_precision"], rule)
    dynamo, compiler = read_dynamo(sections["dynamo_config"], given.get("dynamo_backend"), check)
    if check.problems:
        raise ConfigError(check.problems)
    use_cpu = given.get("use_cpu")
    return replace(
        request,
        world_size=world,
        num_machines=machines,
        use_cpu="cpu" in flags or (use_cpu is not None and use_cpu.value),
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


def _deepspeed(entries: Entries, given: Entries, machines: int, check: Validator, origin: Origin) -> Request | None:
    entries = checked("deepspeed_config", entries, check)
    absent = Sourced(None, origin.named("deepspeed_config.deepspeed_multinode_launcher"))
    launcher = entries.get("deepspeed_multinode_launcher", absent)
    if machines > 1 and launcher.value != "standard":
        rule = "several machines need standard; accelerate's default, pdsh, starts one separate world on each"
        check.refuse(launcher, rule)
    file = entries.get("deepspeed_config_file")
    if file is None:
        return read_inline(entries, check, origin)
    for option, entry in entries.items():
        # Flags may fill the JSON's "auto" values; the rest would be ignored, or refused later.
        fills = entry.origin.source == COMMAND_LINE and option in ("gradient_accumulation_steps", "gradient_clipping")
        if not fills and not option.startswith("deepspeed_") and option != "zero3_init_flag":
            at = f"{file.origin.key} at {file.origin.place}"
            check.refuse(entry, f"stands beside {at}, which must say it; remove it here")
    precision = given.get("mixed_precision")
    if precision is not None and precision.origin.source != COMMAND_LINE:
        name = str(precision.value).lower()
        instead = f' and write "{name}": {{"enabled": true}} in the JSON' if name in ("bf16", "fp16") else ""
        check.refuse(precision, f"accelerate refuses it beside {file.origin.key}; remove it{instead}")
    request = _named_json(file, check)
    if request is not None:
        notice_init(entries.get("zero3_init_flag"), request.deepspeed["zero_optimization"]["stage"], check)
    return request and _filled(request, entries, check)


def _named_json(file: Sourced[str], check: Validator) -> Request | None:
    path = file.value
    if os.path.isfile(path):
        return read_json(path, check)
    rule = "does not exist (accelerate looks for it from the current folder)"
    beside = Path(file.origin.source).parent / path
    check.refuse(file, f"{rule}; it lies beside this file: write {str(beside)!r}" if beside.is_file() else rule)
    return None


def _filled(request: Request, entries: Entries, check: Validator) -> Request:
    """Return the request with what a flag fills where the JSON is open ("auto"); it may not contradict the JSON."""
    flags = {name: entry for name, entry in entries.items() if entry.origin.source == COMMAND_LINE}
    steps, norm = flags.get("gradient_accumulation_steps"), flags.get("gradient_clipping")
    for flag, own in ((steps, request.accumulation_steps), (norm, request.max_grad_norm)):
        if flag is not None and own is not None and flag.value != own.value:
            check.refuse(flag, f"disagrees with {own.value!r} at {own.origin}; keep one of them")
    return replace(
        request,
        accumulation_steps=request.accumulation_steps or steps,
        max_grad_norm=request.max_grad_norm or norm,
    )


def section_names() -> list[str]:
    return list(table("accelerate")["sections"])


def spellings(section: str) -> set[str]:
    """Return all names that a section of the file may hold."""
    arguments = accelerate_keys(section).keys()
    return {*arguments, *(name.removeprefix(_PREFIXES.get(section, "")) for name in arguments)}


def read_top_level(doc: Document, check: Validator) -> dict[str, Sourced[Any]]:
    """Return the values at the top level that are of the right type; null counts as absent."""
    known, sections, typed = accelerate_keys(), section_names(), {}
    for key in doc.data:
        found = doc.at(key)
        assert found is not None
        if key in known and found.value is not None:
            typed[key] = found
        elif key.startswith("_"):
            check.refuse(found, "accelerate refuses keys that it does not know; write a # comment instead")
        elif key not in known and key not in sections:
            owners = [name for name in sections if key in accelerate_keys(name)]
            check.unknown(found, [*known, *sections], (key,), f"it belongs under {owners[0]}" if owners else "")
    return checked("top_level", typed, check)


def read_sections(doc: Document | None, flags: Entries, check: Validator) -> dict[str, dict[str, Sourced[Any]]]:
    """Return the entries of all sections; a flag wins over its file."""
    found = {}
    for name in section_names():
        typed = {flag: given for flag, given in flags.items() if flag in accelerate_keys(name)}
        found[name] = (_section(doc, name, check) if doc else {}) | typed
    return found


def _section(doc: Document, name: str, check: Validator) -> dict[str, Sourced[Any]]:
    section, known = doc.at(name), accelerate_keys(name)
    if section is None or section.value is None:
        return {}
    if not isinstance(section.value, dict):
        check.refuse(section, "must be a mapping")
        return {}
    entries: dict[str, Sourced[Any]] = {}
    for raw, value in section.value.items():
        key = str(raw)
        found = Sourced(value, doc.origin((name, key)))
        if key.startswith("_"):
            continue  # a comment
        argument = key if key in known else _PREFIXES.get(name, "") + key
        if argument not in known:
            check.unknown(found, spellings(name), (name, key), _belongs(key, name))
        elif argument in entries:
            first = entries[argument].origin
            check.refuse(found, f"stands twice, also as {first.key} at {first.place}; keep one")
        elif found.value is not None:
            entries[argument] = found
    return entries


def _belongs(key: str, section: str) -> str:
    """Return where an unknown key of a section belongs; "" where it looks like a misspelling."""
    if (full := f"{section}_{key}") in accelerate_keys(section):
        return f"did you mean {full!r}?"
    if key in accelerate_keys():
        return "it belongs at the top level"
    if others := [other for other in section_names() if key in accelerate_keys(other)]:
        return f"it belongs under {others[0]}"
    path = _path_in_json(key) if section == "deepspeed_config" else None
    return f"it is {'.'.join(path)} of DeepSpeed's JSON: name one with deepspeed_config_file" if path else ""


def _path_in_json(name: str) -> tuple[str, ...] | None:
    """Return the key of DeepSpeed's JSON that ``name`` means where it is written flat, such as ``bf16_enabled``."""
    zero = "zero_optimization"
    for section in ((), (zero,), (zero, "offload_optimizer"), (zero, "offload_param"), ("fp16",), ("bf16",)):
        for key in deepspeed_keys(section) or ():
            path = (*section, key)
            if name in ("_".join(path), "_".join(path[section[:1] == (zero,) :])):
                return path
    return None


def strategy_of(doc: Document | None, typed: Entries, flags: Entries, check: Validator) -> tuple[str, Origin | None]:
    """Return one of Accelerate's distributed types, and who asked for it; None where that wish is a problem."""
    in_file = _of_file(doc, typed, check) if doc else None
    for name in ("tpu", "tpu_use_cluster", "use_megatron_lm"):
        if name in flags:
            check.refuse(flags[name], f"not supported by samecurve; supported: {', '.join(_BY_FLAG)}")
    asking = [(name, flags[name]) for name in _BY_FLAG if name in flags]
    for _, other in asking[1:]:
        check.refuse(other, f"cannot stand beside {asking[0][1].origin.key}; keep one of them")
    if asking:
        name, first = asking[0]
        if name == "cpu" and in_file is not None and in_file[0] != "NO":
            check.refuse(first, _ONE_PROCESS)
            return "NO", None
        return _BY_FLAG[name], first.origin
    if in_file is not None:
        return in_file
    number = flags.get("num_processes")
    # Accelerate starts DDP of its own accord on a machine with several GPUs.
    several = visible_gpus() > 1 and (number is None or number.value != 1)
    return ("MULTI_GPU" if several else "NO"), Origin(COMMAND_LINE, key="accelerate launch")


def _of_file(doc: Document, typed: Entries, check: Validator) -> tuple[str, Origin | None]:
    found = typed.get("distributed_type")
    if found is None:
        missing = Sourced(None, Origin(doc.path, key="distributed_type"))
        check.refuse(missing, f"is missing; write one of {', '.join(_SUPPORTED)}")
        return "NO", None
    name, known = str(found.value), table("accelerate")["top_level"]["distributed_type"]
    if name in _SUPPORTED:
        return name, found.origin
    if found.value is False:  # what YAML makes of a bare NO, which Accelerate takes as it is meant
        return "NO", found.origin
    if name == "MULTI_CPU":
        number = typed.get("num_processes")
        better = "distributed_type: MULTI_GPU with use_cpu: false, which rehearses on the CPU where there is no GPU"
        if number is not None and number.value == 1:
            better = "distributed_type: 'NO' with use_cpu: true"
        check.refuse(found, f"accelerate starts one process for it; write {better}")
    elif name in known:
        check.refuse(found, f"not supported by samecurve; supported: {', '.join(_SUPPORTED)}")
    else:
        alias = table("accelerate")["also_called"].get(name.upper().rstrip("123-_"))
        near = [alias] if alias else difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.6)
        called = f" (accelerate's name for {name})" if alias else ""
        hint = f"did you mean {near[0]!r}{called}?" if near else f"supported: {', '.join(_SUPPORTED)}"
        check.refuse(found, f"no such type; {hint}")
    return "NO", None


def processes(
    asked: str, origin: Origin | None, in_file: bool, given: Entries, check: Validator
) -> tuple[Sourced[int] | None, int]:
    """Return the world size, None where the launcher says it, and the number of machines.

    Args:
        asked, origin: the distributed type, and who asked for it.
    """
    found = checked("top_level", {key: given[key] for key in ("num_machines", "num_processes") if key in given}, check)
    machines = found["num_machines"].value if "num_machines" in found else 1
    number = found.get("num_processes")
    if origin is None or ("num_processes" in given and number is None):
        return None, machines  # one of them is wrong already: the number says nothing
    if number is None or number.value == -1:
        gpus = 0 if in_file or asked == "NO" else visible_gpus()
        if asked == "NO":
            return Sourced(1, origin), machines
        if not in_file and not gpus:
            missing = Sourced(None, Origin(origin.source, key="--num_processes"))
            check.refuse(missing, "is missing; write how many processes run")
        every = Origin(COMMAND_LINE, key="every GPU of this machine")
        return (Sourced(gpus, every) if gpus else None), machines
    ids = given.get("gpu_ids")
    if number.value < 1:
        check.refuse(number, "must be at least 1")
    elif asked == "NO" and number.value > 1:
        check.refuse(number, _one_process(origin, in_file))
    elif number.value % machines:
        check.refuse(number, f"must be a multiple of num_machines {machines}")
    elif asked == "MULTI_GPU" and machines == 1 < number.value and ids is not None and str(ids.value).isdigit():
        check.refuse(ids, f"accelerate wants as many as processes, {number.value}; write 'all'")
    return number, machines


def _one_process(origin: Origin, in_file: bool) -> str:
    if origin.key == "--cpu":
        return f"--cpu {_ONE_PROCESS}"
    if in_file:
        return "accelerate starts one process under distributed_type 'NO'; write MULTI_GPU, or num_processes: 1"
    return "accelerate starts one process without --multi_gpu; add it"


def mixed_precision(given: Entries, check: Validator) -> Sourced[str] | None:
    """Return the precision that is asked for; also by ``fp16: true`` of older files."""
    precision, old = given.get("mixed_precision"), given.get("fp16")
    asks = old is not None and old.value is True
    if precision is None:
        return old.meaning("fp16") if old is not None and asks else None
    if str(precision.value).lower() == "fp8":
        check.refuse(precision, "not supported by samecurve; write bf16")
    name = check.read(annotation(["no", "bf16", "fp16"], any_case=True), precision)
    if old is not None and asks and name not in (None, "fp16"):
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
    if backend is not None and old is not None and str(backend.value).lower() != str(old.value).lower():
        check.refuse(old, f"disagrees with {backend.value!r} at {backend.origin}; remove it")
    if backend is not None:
        # YAML reads an unquoted `no` as false: here it can mean one thing only.
        entries = {**entries, "dynamo_backend": backend.meaning("no") if backend.value is False else backend}
    values = {name.removeprefix("dynamo_"): one.value for name, one in checked("dynamo_config", entries, check).items()}
    if values.get("backend", "no") == "no":
        return {}, None
    return {name.replace("use_f", "f").replace("use_d", "d"): value for name, value in values.items()}, backend


def refuse_unsupported(
    sections: dict[str, dict[str, Sourced[Any]]], asked: str, given: Entries, check: Validator
) -> None:
    """Refuse sections that samecurve does not run, and say which do not belong to the strategy."""
    # The first two are read for a precision and a type that are refused as such, mpirun where there is no launcher.
    for name in ("fp8_config", "megatron_lm_config", "mpirun_config"):
        for entry in list(sections[name].values())[:1]:
            if name == "mpirun_config" and asked == "NO":
                check.refuse(entry, f"{name} is not supported by samecurve; remove it")
            else:
                check.notices.append(f"{entry.origin.place}: {name}: no effect under {asked}")
    sections["parallelism_config"] = checked("parallelism_config", sections["parallelism_config"], check)
    for argument, entry in sections["parallelism_config"].items():
        if not argument.endswith("_size") or entry.value == 1:
            continue
        if why := table("accelerate")["unsupported_dimensions"].get(argument):
            check.refuse(entry, f"more than 1 is not supported by samecurve: {why}; write 1, or remove it")
        elif asked != "FSDP":
            check.refuse(entry, "more than 1 runs with FSDP2 only: write distributed_type: FSDP, or remove it")
    idle = [given[name] for name in given if name in table("accelerate")["tpu"]]
    if idle := [entry for entry in idle if entry.value not in (None, False, "no", "", [])]:
        names = ", ".join(entry.origin.key for entry in idle)
        check.notices.append(f"{idle[0].origin.place}: read on TPUs only: {names}")
    for name, owner, flag in (
        ("fsdp_config", "FSDP", "--use_fsdp"),
        ("deepspeed_config", "DEEPSPEED", "--use_deepspeed"),
    ):
        entries = sections[name].values() if asked != owner else ()
        typed = [entry for entry in entries if entry.origin.source == COMMAND_LINE]
        for entry in typed:
            check.refuse(entry, f"has no effect without {flag}; add that, or remove this")
        if unused := [entry for entry in entries if entry not in typed]:
            check.notices.append(f"{unused[0].origin.place}: {name}: no effect under {asked}")
