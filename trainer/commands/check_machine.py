"""Describe this machine and which launch files run on it, for ``trainer check`` without files."""

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
    """The hardware and the versions that a training finds here; texts that are not known are empty.

    Args:
        gpus: name and bytes of memory of each GPU in this machine, as the driver reports them.
        visible: how many of them this process sees.
        unusable: why PyTorch cannot compute on them.
        interconnect: how the GPUs reach each other.
        driver: its version.
        cuda, nccl: the versions that PyTorch was built with.
        cores: CPU cores that this process may use.
        memory: bytes of host memory.
        versions: of the packages that decide what runs, by name.
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
    """Describe this machine, as PyTorch, the driver's ``nvidia-smi`` and the system report it."""
    import torch

    gpus, driver = _listed_gpus()
    visible = visible_gpus()
    unusable = _why_unusable(len(gpus), visible)
    if visible and not gpus and not unusable:  # AMD's GPUs, which nvidia-smi does not list
        devices = [torch.cuda.get_device_properties(number) for number in range(visible)]
        gpus = [(device.name, device.total_memory) for device in devices]

    nccl = torch.cuda.nccl.version() if torch.version.cuda else ()  # type: ignore[no-untyped-call]
    interconnect = _describe_links(_nvidia_smi("topo", "-m")) if len(gpus) > 1 else ""
    return Machine(
        gpus=tuple(gpus),
        visible=visible,
        unusable=unusable,
        interconnect=interconnect,
        driver=driver,
        cuda=torch.version.cuda or "",
        nccl=".".join(map(str, nccl)),
        cores=_usable_cores(),
        memory=psutil.virtual_memory().total,
        versions=versions(installed=True),
    )


def show_machine() -> int:
    """Print the machine and a verdict on each launch file.

    Returns:
        0 where at least one of the launch files runs here, else 1.
    """
    machine = look_around()
    notices = [machine.unusable] if machine.unusable else []
    notices += other_distributions()
    print(table(_rows(machine), notices))

    paths = sorted(Path("accel_configs").glob("*.yaml"))
    if not paths:
        paths = sorted((TEMPLATE / "accel_configs").glob("*.yaml"))
    any_runs = False
    for path in paths:
        verdict = _judge(path, machine)
        print(f"{path}: {verdict.text}")
        if verdict.command:
            any_runs = True
            print(f"    {verdict.command}")

    return 0 if any_runs else 1


def _nvidia_smi(*words: str) -> str:
    """Return what ``nvidia-smi`` prints; an empty text where it is missing or fails."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *words], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""

    return done.stdout if done.returncode == 0 else ""


def _listed_gpus() -> tuple[list[tuple[str, int]], str]:
    """Return name and bytes of memory of each GPU that the driver lists, and its own version."""
    gpus = []
    driver = ""
    query = "--query-gpu=name,memory.total,driver_version"
    for line in _nvidia_smi(query, "--format=csv,noheader,nounits").splitlines():
        name, mebibytes, driver = (cell.strip() for cell in line.split(","))
        memory = int(mebibytes) * 2**20 if mebibytes.isdecimal() else 0  # some report "[N/A]"
        gpus.append((name, memory))

    return gpus, driver


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return psutil.cpu_count() or 1


def _why_unusable(listed: int, visible: int) -> str:
    """Return why PyTorch cannot compute on the GPUs; an empty text where it can, or there are none.

    Args:
        listed: how many GPUs the driver lists.
        visible: how many PyTorch sees.
    """
    import torch

    hidden_on_purpose = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    if hidden_on_purpose or not (listed or visible):
        return ""
    if not torch.version.cuda and not torch.version.hip and not visible:
        return "this PyTorch is built for CPUs only: install one for CUDA to compute on the GPUs"

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return ""

    reason = "torch.cuda.is_available() is False"
    if caught:
        reason = str(caught[0].message).partition("\n")[0]
    return f"PyTorch cannot compute on the GPUs: {reason}"


def _describe_links(topology: str) -> str:
    """Return how the pairs of GPUs in the table of ``nvidia-smi topo -m`` are connected."""
    rows = []
    for line in re.sub(r"\x1b\[[0-9;]*m", "", topology).splitlines():  # without colours
        cells = line.split()
        # The heading begins with GPU0 as well, but no GPU of it is connected to itself ("X").
        if cells and re.fullmatch(r"GPU\d+", cells[0]) and "X" in cells:
            rows.append(cells[1:])

    links = Counter[str]()
    for number, row in enumerate(rows):
        links.update(row[number + 1 : len(rows)])  # each pair once

    texts = []
    for link, count in links.items():
        # NV18: eighteen NVLinks; the others are ways over PCIe and between processors.
        name = f"NVLink ({link})" if link.startswith("NV") else f"PCIe ({link})"
        pairs = f" for {count} of {links.total()} pairs" if len(links) > 1 else ""
        texts.append(name + pairs)
    return ", ".join(sorted(texts))


def _rows(machine: Machine) -> list[tuple[str, str]]:
    """Return names and values of the table; what is not known has no row."""
    built_with = []
    if machine.cuda:
        built_with.append(f"CUDA {machine.cuda}")
    if machine.nccl:
        built_with.append(f"NCCL {machine.nccl}")
    packages = [f"{package} {version}" for package, version in machine.versions.items()]

    no_gpus = "none: strategies are rehearsed on the CPU, over gloo"
    rows = [
        ("GPUs", _describe_gpus(machine) or no_gpus),
        ("interconnect", machine.interconnect),
        ("driver", machine.driver),
        ("PyTorch's", ", ".join(built_with)),
        ("cores", str(machine.cores)),
        ("memory", size(machine.memory)),
        ("versions", ", ".join(packages)),
    ]
    return [(name, value) for name, value in rows if value]


def _describe_gpus(machine: Machine) -> str:
    """Return the GPUs by kind: ``2 x H100, 79.6 GiB``; and how many are visible, if not all."""
    kinds = []
    for (name, memory), count in Counter(machine.gpus).items():
        kind = f"{count} x {name}"
        if memory:
            kind += f", {size(memory)}"
        kinds.append(kind)
    text = ", ".join(kinds)
    if machine.visible == len(machine.gpus):
        return text

    if not text:
        text = "unknown"
    text += f"; {machine.visible} visible"
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        text += f" (CUDA_VISIBLE_DEVICES={chosen})"
    return text


@dataclass(frozen=True, kw_only=True)
class _Verdict:
    """What a launch file runs here, and the command; or why not, and no command."""

    text: str
    command: str = ""


def _judge(path: Path, machine: Machine) -> _Verdict:
    """Return whether a launch file runs on this machine, and the command that launches it."""
    gpus = machine.visible
    try:
        request = read_launch_file(path)
        world = request.world_size.value if request.world_size else max(1, gpus)
        # One process a GPU: a file for more of them is launched with fewer processes.
        processes = min(world, gpus) if gpus and not request.use_cpu else world
        if processes < world and request.num_machines == 1:
            request = read_launch_file(path, processes)
        check_partitions(request, processes)
    except TrainerError as error:
        return _Verdict(text=f"not here: {error}")

    if request.num_machines > 1:
        return _Verdict(text=f"not here alone: it asks for {request.num_machines} machines")
    missing = _missing_packages(request, machine)
    if missing:
        return _Verdict(text=f"not here: {missing}")
    if gpus and machine.unusable and not request.use_cpu:
        return _Verdict(text="not here: see the note; use_cpu: true rehearses on the CPU")

    number = f" --num_processes {processes}" if processes < world else ""
    launch = f"accelerate launch --config_file {shlex.quote(str(path))}{number}"
    return _Verdict(
        text=_describe(request, world, processes, gpus),
        command=f"{launch} -m trainer train --config FILE",
    )


def _missing_packages(request: Request, machine: Machine) -> str:
    """Return which packages a launch file needs that are not installed, and how to install them."""
    needed = []
    if request.deepspeed:
        needed += ["deepspeed", "transformers"]
    absent = [name for name in needed if name not in machine.versions]
    if not absent:
        return ""
    return f"{request.strategy} needs {' and '.join(absent)}: pip install 'samecurve[deepspeed]'"


def _describe(request: Request, world: int, processes: int, gpus: int) -> str:
    """Return what runs, on how many processes: ``fsdp on 2 GPUs``."""
    if gpus and not request.use_cpu:
        noun = "GPU" if processes == 1 else "GPUs"
    else:
        noun = "CPU process" if processes == 1 else "CPU processes"
    fewer = f", where the file asks for {world}" if processes < world else ""
    return f"{request.strategy} on {processes} {noun}{fewer}"
