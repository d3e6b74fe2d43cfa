"""The meaning of an accelerate file's keys and the launcher's flags: strategy, processes, precision, compiler."""

from __future__ import annotations

import difflib
from typing import Any

from ...config.documents import Document
from ...config.validate import Validator
from ...errors import COMMAND_LINE, Origin, Sourced
from .accelerate_keys import Entries, checked
from .tables import annotation, table

_SUPPORTED = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")
# Names that people write for what Accelerate calls otherwise.
_ALSO_CALLED = {"DDP": "MULTI_GPU", "SINGLE": "NO", "NONE": "NO", "FSDP": "FSDP", "ZERO": "DEEPSPEED"}
_BY_FLAG = {"cpu": "NO", "multi_gpu": "MULTI_GPU", "use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP"}
_ONE_PROCESS = "makes accelerate start one process; leave it out: without a GPU the job rehearses on the CPU"


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
    several = _gpus() > 1 and (number is None or number.value != 1)
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
        alias = _ALSO_CALLED.get(name.upper().rstrip("123-_"))
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
        gpus = 0 if in_file or asked == "NO" else _gpus()
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


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


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
    for argument, entry in checked("parallelism_config", sections["parallelism_config"], check).items():
        if argument.endswith("_size") and entry.value > 1:
            check.refuse(entry, "more than 1 is not supported by samecurve yet; write 1, or remove it")
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
