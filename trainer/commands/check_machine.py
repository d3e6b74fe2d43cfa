"""Describe this machine, and which launch files run on it: ``trainer check`` without files."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import warnings
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from ..errors import TrainerError
from ..launching.request import Request, visible_gpus
from ..launching.resolve import check_partitions
from ..text import size, table, versions
from .launch_files import read_launch_file
from .new import TEMPLATE
from .shadowed import other_distributions


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a training finds here; text that is not known is empty.

    Args:
        gpus: those of this machine, by the name and the bytes of memory that the driver gives.
        visible: how many of them this process sees; ``unusable`` says why PyTorch cannot compute on
            them.
        interconnect: how the GPUs reach each other.
        driver, cuda, nccl: versions; the last two are those that PyTorch was built with.
        cores: that this process may use.
        memory: of the machine, in bytes.
    """

    gpus: tuple[tuple[str, int], ...]
    visible: int
    unusable: str
    interconnect: str
    driver: str
    cuda: str
    nccl: str
    cores: int
    memory: int
    versions: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def look_around() -> Machine:
    """Ask PyTorch, the driver's ``nvidia-smi`` and the system."""
    import torch

    listed = _ask(
        "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"
    ).splitlines()
    cells = [[cell.strip() for cell in line.split(",")] for line in listed]
    gpus = tuple((name, int(mib) * 2**20 if mib.isdecimal() else 0) for name, mib, _ in cells)
    visible = visible_gpus()
    unusable = _why_unusable(len(gpus), visible)
    if visible and not gpus and not unusable:  # AMD's
        devices = [torch.cuda.get_device_properties(number) for number in range(visible)]
        gpus = tuple((device.name, device.total_memory) for device in devices)
    nccl = torch.cuda.nccl.version() if torch.version.cuda else ()  # type: ignore[no-untyped-call]
    return Machine(
        gpus=gpus,
        visible=visible,
        unusable=unusable,
        interconnect=_describe_links(_ask("topo", "-m")) if len(gpus) > 1 else "",
        driver=cells[0][2] if cells else "",
        cuda=torch.version.cuda or "",
        nccl=".".join(map(str, nccl)),
        cores=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else psutil.cpu_count() or 1,
        memory=psutil.virtual_memory().total,
        versions=versions(installed=True),
    )


def show_machine() -> int:
    """Print the machine and a verdict on each launch file; return 0 where one of them runs here,
    else 1.
    """
    machine = look_around()
    print(
        table(
            _rows(machine),
            [*([machine.unusable] if machine.unusable else []), *other_distributions()],
        )
    )
    own = sorted(Path("accel_configs").glob("*.yaml"))
    runs = 0
    for path in own or sorted((TEMPLATE / "accel_configs").glob("*.yaml")):
        fits, verdict, command = _judge(path, machine)
        print(f"{path}: {verdict}")
        if fits:
            runs += 1
            print(f"    {command}")
    return 0 if runs else 1


def _ask(*words: str) -> str:
    """Return what ``nvidia-smi`` prints; nothing where it is missing or fails."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *words], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _why_unusable(listed: int, visible: int) -> str:
    import torch

    if not (listed or visible) or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return ""
    if not torch.version.cuda and not torch.version.hip and not visible:
        return "this PyTorch is built for CPUs only: install one for CUDA to compute on the GPUs"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return ""
    reason = (
        str(caught[0].message).partition("\n")[0]
        if caught
        else "torch.cuda.is_available() is False"
    )
    return f"PyTorch cannot compute on the GPUs: {reason}"


def _describe_links(topology: str) -> str:
    """Return how the pairs of GPUs in the table of ``nvidia-smi topo -m`` are connected."""
    lines = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", topology).splitlines()]
    rows = [line[1:] for line in lines if line and re.fullmatch(r"GPU\d+", line[0]) and "X" in line]
    links = Counter(
        row[column] for number, row in enumerate(rows) for column in range(number + 1, len(rows))
    )
    # NV18: eighteen NVLinks; the others are ways over PCIe and between processors.
    named = {
        f"{'NVLink' if link.startswith('NV') else 'PCIe'} ({link})": count
        for link, count in links.items()
    }
    shares = {
        name: f" for {count} of {links.total()} pairs" if len(named) > 1 else ""
        for name, count in named.items()
    }
    return ", ".join(name + shares[name] for name in sorted(named))


def _rows(machine: Machine) -> list[tuple[str, str]]:
    counted = Counter(machine.gpus)
    shown = ", ".join(
        f"{n} x {name}" + (f", {size(held)}" if held else "") for (name, held), n in counted.items()
    )
    if machine.visible != len(machine.gpus):
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        setting = f" (CUDA_VISIBLE_DEVICES={hidden})" if hidden is not None else ""
        shown = f"{shown or 'unknown'}; {machine.visible} visible{setting}"
    built = [
        f"{name} {value}"
        for name, value in (("CUDA", machine.cuda), ("NCCL", machine.nccl))
        if value
    ]
    rows = [
        ("GPUs", shown or "none: strategies are rehearsed on the CPU, over gloo"),
        ("interconnect", machine.interconnect),
        ("driver", machine.driver),
        ("PyTorch's", ", ".join(built)),
        ("cores", str(machine.cores)),
        ("memory", size(machine.memory)),
        (
            "versions",
            ", ".join(f"{package} {version}" for package, version in machine.versions.items()),
        ),
    ]
    return [(name, value) for name, value in rows if value]


def _judge(path: Path, machine: Machine) -> tuple[bool, str, str]:
    """Return whether a launch file runs here, what will run or why not, and the command."""
    gpus = machine.visible
    try:
        request = read_launch_file(path)
        world = request.world_size.value if request.world_size else max(1, gpus)
        # As many processes as there are GPUs: where a file asks for more, the command line says
        # fewer.
        processes = min(world, gpus) if gpus and not request.use_cpu else world
        if processes < world and request.num_machines == 1:
            request = read_launch_file(path, processes)
        check_partitions(request, processes)
    except TrainerError as error:
        return False, f"not here: {error}", ""
    if request.num_machines > 1:
        return False, f"not here alone: it asks for {request.num_machines} machines", ""
    divides_layers = request.tensor_parallel_size > 1
    needed = (
        ("deepspeed", "transformers")
        if request.deepspeed
        else ("transformers",)
        if divides_layers
        else ()
    )
    absent = [name for name in needed if name not in machine.versions]
    if absent:
        what, extra = (
            ("tensor parallelism", "llm") if divides_layers else (request.strategy, "deepspeed")
        )
        return (
            False,
            f"not here: {what} needs {' and '.join(absent)}: pip install 'samecurve[{extra}]'",
            "",
        )
    if gpus and machine.unusable and not request.use_cpu:
        return False, "not here: see the note; use_cpu: true rehearses on the CPU", ""
    number = f" --num_processes {processes}" if processes < world else ""
    launch = f"accelerate launch --config_file {shlex.quote(str(path))}{number} -m trainer train --config FILE"
    return True, _describe(request, world, processes, gpus), launch


def _describe(request: Request, world: int, processes: int, gpus: int) -> str:
    """Return what runs, on how many processes."""
    one, several = (
        ("GPU", "GPUs") if gpus and not request.use_cpu else ("CPU process", "CPU processes")
    )
    fewer = f", where the file asks for {world}" if processes < world else ""
    return f"{request.strategy} on {processes} {one if processes == 1 else several}{fewer}"
