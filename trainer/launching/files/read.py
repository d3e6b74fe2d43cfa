"""Read the files that say how a job runs, strictly, as one Request. Nothing is started here.

A flag typed after ``accelerate launch`` wins over its file, as it does there. What Accelerate would take
without a word and run as something else is a problem with file, line, key, value and the rule.
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
from ..request import Request
from .accelerate_keys import OWNER, Entries, checked, read_sections, read_top_level
from .accelerate_values import mixed_precision, processes, read_dynamo, refuse_unsupported, strategy_of
from .deepspeed_file import notice_init, read_deepspeed_file, read_inline, read_json
from .fsdp_file import read_fsdp, refuse_transformers_fsdp

__all__ = ["kind_of", "read_accelerate_file", "read_deepspeed_file", "read_launch_file", "read_launch_flags",
           "read_request"]  # fmt: skip

# Keys that tell a file apart. A training config shares some names with both of the others.
_TELLING = {
    "accelerate": ("compute_environment", "distributed_type", "num_processes", "num_machines", "machine_rank",
                   "use_cpu"),
    "deepspeed": ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "bf16", "fp16"),
    "training": ("task", "output_dir", "micro_batch_size", "max_steps", "epochs", "lr"),
}  # fmt: skip
_NO_FLAGS: Entries = {}


def kind_of(doc: Document) -> str:
    """Return what a file is by its keys: ``accelerate``, ``deepspeed`` or ``training``.

    Raises:
        ConfigError: it is for transformers' own trainer.
    """
    refuse_transformers_fsdp(doc)
    # In other files bf16 and fp16 are true or false.
    keys = {key for key, value in doc.data.items() if key not in ("bf16", "fp16") or isinstance(value, dict)}
    found = {kind: len(keys & set(telling)) for kind, telling in _TELLING.items()}
    best = max(found, key=lambda kind: found[kind])
    if found[best]:
        return best
    return "deepspeed" if str(doc.path).endswith(".json") else "training"


def read_launch_file(path: str | Path, processes: int | None = None) -> Request:
    """Read a launch file of either kind, for as many processes as the launcher is told. Raises as the others here."""
    count = None if processes is None else Sourced(processes, Origin(COMMAND_LINE, key="--processes"))
    if kind_of(read_document(path)) == "deepspeed":
        return replace(read_deepspeed_file(path), world_size=count)
    return read_accelerate_file(path, overrides={} if count is None else {"num_processes": count})


def read_accelerate_file(path: str | Path, *, overrides: Entries = _NO_FLAGS) -> Request:
    """Read an accelerate YAML or JSON.

    Args:
        path: the file.
        overrides: flags typed after ``accelerate launch``, by argument name.

    Raises:
        ConfigError: with every problem of the file, of the flags and of the DeepSpeed JSON that it names.
    """
    return _read(read_document(path, what="accelerate config file"), overrides)


def read_request(config_file: str | None, flags: Entries) -> Request:
    """Read what ``accelerate launch`` was asked for, with or without a file. Raises as ``read_accelerate_file``."""
    return _read(None, flags) if config_file is None else read_accelerate_file(config_file, overrides=flags)


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


def _read(doc: Document | None, flags: Entries) -> Request:
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
