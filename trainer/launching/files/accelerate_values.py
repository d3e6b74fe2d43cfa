"""What the keys of an accelerate file and the launcher's flags mean: strategy, processes, precision, compiler."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from ...config.documents import Document
from ..request import Asked
from .accelerate_keys import for_tpus, parser
from .check import Check, Given

_SUPPORTED = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")
# Names that people write for what Accelerate calls otherwise.
_ALSO_CALLED = {"DDP": "MULTI_GPU", "SINGLE": "NO", "NONE": "NO", "FSDP": "FSDP", "ZERO": "DEEPSPEED"}
_BY_FLAG = {"cpu": "NO", "multi_gpu": "MULTI_GPU", "use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP"}
_ONE_PROCESS = "makes accelerate start one process; leave it out: without a GPU the job rehearses on the CPU"

# Stands for who asked, where the wish itself is a problem.
_NOBODY = Given(value=None, where="", key="")


def strategy_of(
    doc: Document | None, typed: Mapping[str, Given], flags: Mapping[str, Given], check: Check
) -> tuple[str, Given]:
    """One of Accelerate's distributed types that are supported, and who asked for it."""
    in_file = _of_file(doc, typed, check) if doc else None
    for name in ("tpu", "tpu_use_cluster", "use_megatron_lm"):
        if name in flags:
            check.fail(flags[name], f"not supported by samecurve; supported: {', '.join(_BY_FLAG)}")
    asking = [flags[name] for name in _BY_FLAG if name in flags]
    for other in asking[1:]:
        check.fail(other, f"cannot stand beside {asking[0].key}; keep one of them")
    if asking:
        kind = _BY_FLAG[asking[0].key.removeprefix("--")]
        if kind == "NO" and in_file is not None and in_file[0] != "NO":
            check.fail(asking[0], _ONE_PROCESS)
            return kind, _NOBODY
        return kind, asking[0]
    if in_file is not None:
        return in_file
    typed_number = flags.get("num_processes")
    home = Given(value=None, where="command line", key="accelerate launch")
    # Accelerate starts DDP of its own accord on a machine with several GPUs.
    several = _gpus() > 1 and (typed_number is None or typed_number.value != 1)
    return ("MULTI_GPU" if several else "NO"), home


def _of_file(doc: Document, typed: Mapping[str, Given], check: Check) -> tuple[str, Given]:
    from accelerate.utils import DistributedType

    given = typed.get("distributed_type")
    if given is None:
        given = Given(value=None, where=doc.path, key="distributed_type")
        check.fail(given, f"is missing; write one of {', '.join(_SUPPORTED)}")
        return "NO", _NOBODY
    name, known = str(given.value), [kind.value for kind in DistributedType]
    if name in _SUPPORTED:
        return name, given
    if given.value is False:  # what YAML makes of a bare NO, which Accelerate takes as it is meant
        return "NO", given
    if name == "MULTI_CPU":
        number = typed.get("num_processes")
        better = "distributed_type: MULTI_GPU with use_cpu: false, which rehearses on the CPU where there is no GPU"
        if number is not None and number.value == 1:
            better = "distributed_type: 'NO' with use_cpu: true"
        check.fail(given, f"accelerate starts one process for it; write {better}")
    elif name in known:
        check.fail(given, f"not supported by samecurve; supported: {', '.join(_SUPPORTED)}")
    else:
        alias = _ALSO_CALLED.get(name.upper().rstrip("123-_"))
        near = [alias] if alias else difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.6)
        called = f" (accelerate's name for {name})" if alias else ""
        hint = f"did you mean {near[0]!r}{called}?" if near else f"supported: {', '.join(_SUPPORTED)}"
        check.fail(given, f"no such type; {hint}")
    return "NO", _NOBODY


def processes(
    kind: str, home: Given, in_file: bool, given: Mapping[str, Given], check: Check
) -> tuple[Asked[int] | None, int]:
    """World size, None where the launcher says it, and machines."""
    machines = check.whole(_written(given.get("num_machines")), at_least=1) or 1
    number = _written(given.get("num_processes"))
    # Accelerate's own default: "if we use SLURM and the user manually passes it in" (config_args.py).
    number = None if number is not None and number.value == -1 else number
    world = check.whole(number, at_least=1)
    if home is _NOBODY:
        return None, machines  # the type is wrong already: its processes say nothing
    if number is None:
        gpus = 0 if in_file or kind == "NO" else _gpus()
        if kind == "NO":
            return home.asked(1), machines
        if not in_file and not gpus:
            missing = Given(value=None, where=home.where, key="--num_processes")
            check.fail(missing, "is missing; write how many processes run")
        return (Asked(value=gpus, where="command line (every GPU of this machine)") if gpus else None), machines
    if world is not None:
        ids = given.get("gpu_ids")
        if kind == "NO" and world > 1:
            check.fail(number, _one_process(home, in_file))
        elif world % machines:
            check.fail(number, f"must be a multiple of num_machines {machines}")
        elif kind == "MULTI_GPU" and machines == 1 < world and ids is not None and str(ids.value).isdigit():
            check.fail(ids, f"accelerate wants as many as processes, {world}; write 'all'")
        return number.asked(world), machines
    return None, machines


def _written(given: Given | None) -> Given | None:
    """Return what was typed; null is nothing."""
    return None if given is None or given.value is None else given


def _one_process(home: Given, in_file: bool) -> str:
    if home.key == "--cpu":
        return f"--cpu {_ONE_PROCESS}"
    if in_file:
        return "accelerate starts one process under distributed_type 'NO'; write MULTI_GPU, or num_processes: 1"
    return "accelerate starts one process without --multi_gpu; add it"


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def mixed_precision(given: Mapping[str, Given], check: Check) -> Asked[str] | None:
    """The precision that is asked for; also by ``fp16: true`` of older files."""
    precision, old = given.get("mixed_precision"), given.get("fp16")
    old_asks = old is not None and old.value is True
    if precision is None or precision.value is None:
        return old.asked("fp16") if old is not None and old_asks else None
    if precision.value is False:
        check.fail(precision, "write 'no' in quotes: YAML reads it as false")
        return None
    if str(precision.value).lower() == "fp8":
        check.fail(precision, "not supported by samecurve; write bf16")
        return None
    name = check.choice(precision, ("no", "bf16", "fp16"))
    if old is not None and old_asks and name not in (None, "fp16"):
        check.fail(old, f"disagrees with {precision.value!r} at {precision.home}; remove it")
    return None if name is None else precision.asked(name)


def read_dynamo(entries: Mapping[str, Given], old: Given | None, check: Check) -> dict[str, Any]:
    """Arguments of Accelerate's TorchDynamoPlugin; {} where no backend is asked for."""
    choices = {action.dest: action.choices or () for action in parser()._actions}
    backend = entries.get("dynamo_backend", old)
    if backend is not None and old is not None and str(backend.value).lower() != str(old.value).lower():
        check.fail(old, f"disagrees with {backend.value!r} at {backend.home}; remove it")
    # YAML reads an unquoted `no` as false: here it can mean one thing only.
    name = None if backend is None or backend.value is False else check.choice(backend, choices["dynamo_backend"])
    values = {
        "backend": name,
        "mode": check.choice(entries.get("dynamo_mode"), choices["dynamo_mode"]),
        "fullgraph": check.switch(entries.get("dynamo_use_fullgraph")),
        "dynamic": check.switch(entries.get("dynamo_use_dynamic")),
        "use_regional_compilation": check.switch(entries.get("dynamo_use_regional_compilation")),
    }
    if name in (None, "no"):
        return {}
    return {key: value for key, value in values.items() if value is not None}


def refuse_unsupported(
    entries: Mapping[str, Mapping[str, Given]], kind: str, given: Mapping[str, Given], check: Check
) -> None:
    """Sections that samecurve does not run, and those that do not belong to the strategy."""
    # The first two are read for a precision and a type that are refused as such, mpirun where there is no launcher.
    for name in ("fp8_config", "megatron_lm_config", "mpirun_config"):
        for entry in list(entries[name].values())[:1]:
            if name == "mpirun_config" and kind == "NO":
                check.fail(entry, f"{name} is not supported by samecurve; remove it")
            else:
                check.notices.append(f"{entry.where}: {name}: no effect under {kind}")
    for argument, entry in entries["parallelism_config"].items():
        size = check.whole(entry, at_least=1) if argument.endswith("_size") else 1
        if size is not None and size > 1:
            check.fail(entry, "more than 1 is not supported by samecurve yet; write 1, or remove it")
    idle = [entry for name, entry in given.items() if for_tpus(name) and entry.value not in (None, False, "no", "", [])]
    if idle:
        check.notices.append(f"{idle[0].where}: read on TPUs only: {', '.join(entry.key for entry in idle)}")
    for name, owner, flag in (
        ("fsdp_config", "FSDP", "--use_fsdp"),
        ("deepspeed_config", "DEEPSPEED", "--use_deepspeed"),
    ):
        if kind == owner:
            continue
        for entry in entries[name].values():
            if entry.where == "command line":
                check.fail(entry, f"has no effect without {flag}; add that, or remove this")
        unused = [entry for entry in entries[name].values() if entry.where != "command line"]
        if unused:
            check.notices.append(f"{unused[0].where}: {name}: no effect under {kind}")
