"""Read the files that say how a job runs, strictly, as one Request. Nothing is started here.

A flag typed after ``accelerate launch`` wins over its file, as it does there. What Accelerate would take
without a word and run as something else is a problem with file, line, key, value and the rule.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...config.documents import Document, read_document
from ...errors import ConfigError, Problem
from ..cpu_rehearsal import rehearsal_changes, rehearsal_notices, rehearsal_precision
from ..request import Asked, Request
from . import accelerate_keys as keys
from .accelerate_values import mixed_precision, processes, read_dynamo, refuse_unsupported, strategy_of
from .check import Check, Given
from .deepspeed_file import accumulation_and_clipping, notice_init, read_deepspeed_file, read_inline, read_json
from .fsdp_file import read_fsdp, refuse_transformers_fsdp

__all__ = [
    "Asked",
    "Given",
    "Request",
    "kind_of",
    "read_accelerate_file",
    "read_deepspeed_file",
    "read_launch_file",
    "read_launch_flags",
    "read_request",
    "rehearsal_changes",
    "rehearsal_notices",
    "rehearsal_precision",
]

# Keys that tell a file apart. A training config shares some names with both of the others.
_TELLING = {
    "accelerate": (
        "compute_environment",
        "distributed_type",
        "num_processes",
        "num_machines",
        "machine_rank",
        "use_cpu",
    ),
    "deepspeed": ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "bf16", "fp16"),
    "training": ("task", "output_dir", "micro_batch_size", "max_steps", "epochs", "lr"),
}

_NO_FLAGS: Mapping[str, Given] = {}


def kind_of(doc: Document) -> str:
    """Return what a file is by its keys: ``accelerate``, ``deepspeed`` or ``training``.

    Raises:
        ConfigError: it is for transformers' own trainer.
    """
    refuse_transformers_fsdp(doc)
    sections = {key for key in ("bf16", "fp16") if isinstance(doc.data.get(key), dict)}  # true or false elsewhere
    keys = {key for key in doc.data if key not in ("bf16", "fp16") or key in sections}
    found = {kind: len(keys & set(telling)) for kind, telling in _TELLING.items()}
    best = max(found, key=lambda kind: found[kind])
    if found[best]:
        return best
    return "deepspeed" if str(doc.path).endswith(".json") else "training"


def read_launch_file(path: str | Path, processes: int | None = None) -> Request:
    """Read a launch file of either kind, for as many processes as the launcher is told. Raises as the others here."""
    told = _flag("processes", processes)
    if kind_of(read_document(path)) == "deepspeed":
        return replace(read_deepspeed_file(path), world_size=None if processes is None else told.asked(processes))
    return read_accelerate_file(path, overrides={} if processes is None else {"num_processes": told})


def read_accelerate_file(path: str | Path, *, overrides: Mapping[str, Given] = _NO_FLAGS) -> Request:
    """Read an accelerate YAML or JSON.

    Args:
        path: the file.
        overrides: flags typed after ``accelerate launch``, by argument name.

    Raises:
        ConfigError: with every problem of the file, of the flags and of the DeepSpeed JSON that it names.
        LaunchError: a DeepSpeed JSON is named, and DeepSpeed is not installed.
    """
    return _read(read_document(path, what="accelerate config file"), overrides)


def read_request(config_file: str | None, flags: Mapping[str, Given]) -> Request:
    """What ``accelerate launch`` was asked for, with or without a file. Raises as ``read_accelerate_file``."""
    if config_file is not None:
        return read_accelerate_file(config_file, overrides=flags)
    return _read(None, flags)


def read_launch_flags(argv: list[str]) -> tuple[str | None, dict[str, Given]]:
    """Split what follows ``accelerate launch`` into its config file and the flags that were typed.

    Without ``--config_file`` the default file of ``accelerate config`` counts where it exists, as it does there.

    Raises:
        ConfigError: Accelerate's own parser refuses the arguments.
    """
    from accelerate.commands.config.config_args import default_config_file

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed = keys.parser().parse_args(argv)
    except SystemExit:
        rule = said.getvalue().strip().rpartition("error: ")[2]
        raise ConfigError(Problem(where="command line", key="accelerate launch", rule=rule)) from None
    typed = parsed.nondefault - {"config_file", "training_script", "training_script_args"}
    flags = {name: _flag(name, getattr(parsed, name)) for name in sorted(typed)}
    if parsed.config_file is None and os.path.isfile(default_config_file) and not parsed.cpu:
        return str(default_config_file), flags
    return parsed.config_file, flags


def _flag(name: str, value: object) -> Given:
    return Given(value=value, where="command line", key=f"--{name}")


def _read(doc: Document | None, flags: Mapping[str, Given]) -> Request:
    check = Check()
    if doc is not None:
        refuse_transformers_fsdp(doc)
        if "distributed_type" not in doc.data and "zero_optimization" in doc.data:
            raise ConfigError(doc.problem((), "this is a DeepSpeed config: give it with --deepspeed"))
        _refuse_other_environment(doc)
        keys.check_top_level(doc, check)
    typed = (
        {name: Given(value=value, where=doc.where(name), key=name) for name, value in doc.data.items()} if doc else {}
    )
    given = {**typed, **flags}
    entries = {name: keys.read_section(doc, name, check) if doc else {} for name in keys.sections()}
    entries = {name: keys.with_flags(section, flags, name) for name, section in entries.items()}
    kind, home = strategy_of(doc, typed, flags, check)
    refuse_unsupported(entries, kind, given, check)
    world, machines = processes(kind, home, doc is not None, given, check)
    use_cpu = bool(check.switch(given.get("use_cpu"), quoted=False)) or "cpu" in flags
    request = Request(strategy="ddp" if kind == "MULTI_GPU" else "single", strategy_where=home.home)
    if kind == "FSDP":
        fsdp, homes = read_fsdp(entries["fsdp_config"], check, home.home)
        request = replace(request, strategy="fsdp", fsdp=fsdp, where=homes)
    elif kind == "DEEPSPEED":
        request = _deepspeed(entries["deepspeed_config"], given, machines, check, home) or request
    precision = mixed_precision(given, check)
    if request.mixed_precision is None:
        request = replace(request, mixed_precision=precision)
    elif precision is not None and precision.value != request.mixed_precision.value:
        rule = f"disagrees with {request.mixed_precision.value!r} at {request.mixed_precision.where}; keep one of them"
        check.fail(given["mixed_precision"], rule)
    dynamo = read_dynamo(entries["dynamo_config"], given.get("dynamo_backend"), check)
    compiler = entries["dynamo_config"].get("dynamo_backend", given.get("dynamo_backend"))
    if check.problems:
        raise ConfigError(check.problems)
    return replace(
        request,
        world_size=world,
        num_machines=machines,
        use_cpu=use_cpu,
        dynamo=dynamo,
        where={**request.where, **({"dynamo": compiler.home} if dynamo and compiler else {})},
        notices=tuple(check.notices),
        files=((doc.path,) if doc else ()) + request.files,
    )


def _refuse_other_environment(doc: Document) -> None:
    environment = doc.data.get("compute_environment", "LOCAL_MACHINE")
    if environment != "LOCAL_MACHINE":
        rule = "not supported by samecurve; write LOCAL_MACHINE"
        raise ConfigError(doc.problem(("compute_environment",), rule, environment))


def _deepspeed(
    entries: Mapping[str, Given], given: Mapping[str, Given], machines: int, check: Check, home: Given
) -> Request | None:
    from accelerate.utils.constants import DEEPSPEED_MULTINODE_LAUNCHERS

    launcher = entries.get("deepspeed_multinode_launcher")
    name = check.choice(launcher, DEEPSPEED_MULTINODE_LAUNCHERS)
    if machines > 1 and name != "standard":
        absent = Given(value=None, where=home.where, key="deepspeed_config.deepspeed_multinode_launcher")
        rule = "several machines need standard; accelerate's default, pdsh, starts one separate world on each"
        check.fail(launcher or absent, rule)
    for option in ("deepspeed_hostfile", "deepspeed_exclusion_filter", "deepspeed_inclusion_filter"):
        check.text(entries.get(option))
    file = entries.get("deepspeed_config_file")
    if file is None:
        return read_inline(entries, check, home.where)
    for option, entry in entries.items():
        # Flags may fill the JSON's "auto" values; the rest would be ignored, or refused later.
        fills = entry.where == "command line" and option in ("gradient_accumulation_steps", "gradient_clipping")
        if not fills and not option.startswith("deepspeed_") and option != "zero3_init_flag":
            check.fail(entry, f"stands beside {file.key} at {file.where}, which must say it; remove it here")
    precision = given.get("mixed_precision")
    if precision is not None and precision.value is not None and precision.where != "command line":
        name = str(precision.value).lower()
        instead = f' and write "{name}": {{"enabled": true}} in the JSON' if name in ("bf16", "fp16") else ""
        check.fail(precision, f"accelerate refuses it beside {file.key}; remove it{instead}")
    request = _named_json(file, check)
    if request is not None:
        notice_init(entries.get("zero3_init_flag"), request.deepspeed["zero_optimization"]["stage"], check)
    return request and _filled(request, entries, check)


def _named_json(file: Given, check: Check) -> Request | None:
    path = check.text(file)
    if path is None or os.path.isfile(path):
        return None if path is None else read_json(path, check)
    rule = "does not exist (accelerate looks for it from the current folder)"
    beside = Path(file.where.rpartition(":")[0]).parent / path
    check.fail(file, f"{rule}; it lies beside this file: write {str(beside)!r}" if beside.is_file() else rule)
    return None


def _filled(request: Request, entries: Mapping[str, Given], check: Check) -> Request:
    """A flag fills what the JSON leaves open ("auto"), and may not contradict it."""
    flags = {name: entry for name, entry in entries.items() if entry.where == "command line"}
    steps, norm = accumulation_and_clipping(flags, check)
    for name, flag, own in (
        ("gradient_accumulation_steps", steps, request.accumulation_steps),
        ("gradient_clipping", norm, request.max_grad_norm),
    ):
        if flag is not None and own is not None and flag.value != own.value:
            check.fail(flags[name], f"disagrees with {own.value!r} at {own.where}; keep one of them")
    return replace(
        request,
        accumulation_steps=request.accumulation_steps or steps,
        max_grad_norm=request.max_grad_norm or norm,
    )
