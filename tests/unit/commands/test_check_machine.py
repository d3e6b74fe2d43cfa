"""``trainer check`` without files: the machine, and what runs on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from launchers import ROOT

from trainer.commands import check_machine, cli

H100 = "NVIDIA H100 80GB HBM3, 81559, 580.159.03"
NVLINK = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tNV18\tPXB\t0-47\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tSYS\t0-47\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tSYS\t48-95\t1\t\tN/A
NIC0\tPXB\tSYS\tSYS\t X
"""
COMMAND = "accelerate launch --config_file accel_configs/{}.yaml{} -m trainer train --config FILE"
Forge = Callable[..., list[str]]


@pytest.fixture
def check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Forge:
    """Return the lines of ``trainer check`` beside a forged nvidia-smi, with as many GPUs as
    PyTorch is to count.
    """

    def ask(
        *listed: str,
        visible: int,
        usable: bool = True,
        topology: str = "",
        code: int = 0,
        cuda: str | None = "13.0",
    ) -> list[str]:
        smi = tmp_path / "bin" / "nvidia-smi"
        smi.parent.mkdir(exist_ok=True)
        (tmp_path / "topology").write_text(topology)
        (tmp_path / "listed").write_text("".join(f"{line}\n" for line in listed))
        smi.write_text(f'#!/bin/sh\nif [ $1 = topo ]; then cat "{tmp_path}/topology"; exit; fi\n'
                       f'cat "{tmp_path}/listed"; exit {0 if listed else 9}\n')  # fmt: skip
        smi.chmod(0o755)
        monkeypatch.setenv("PATH", f"{smi.parent}:/usr/bin:/bin")
        monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
        monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
        monkeypatch.setattr(torch.version, "cuda", cuda)
        assert cli.main(["check"]) == code
        return capsys.readouterr().out.splitlines()

    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    return ask


def command(name: str, number: str = "") -> str:
    return "    " + COMMAND.format(name, number)


def test_eight_gpus_with_nvlink(check: Forge) -> None:
    said = check(H100, H100, H100, visible=3, topology=NVLINK)
    assert said[1:5] == [
        "GPUs          3 x NVIDIA H100 80GB HBM3, 79.6 GiB",
        "interconnect  NVLink (NV18)",
        "driver        580.159.03",
        "PyTorch's     CUDA 13.0, NCCL 2.28.9",
    ]
    at = said.index("accel_configs/fsdp.yaml: fsdp on 2 GPUs")
    assert said[at + 1] == command("fsdp")
    assert "accel_configs/single.yaml: single on 1 GPU" in said


def test_one_gpu_takes_one_process_of_a_file_for_two(check: Forge) -> None:
    said = check(H100, visible=1)
    for name in ("ddp", "fsdp", "zero3"):
        at = said.index(f"accel_configs/{name}.yaml: {name} on 1 GPU, where the file asks for 2")
        assert said[at + 1] == command(name, " --num_processes 1")
    assert command("single") in said
    assert not any(line.startswith("interconnect") for line in said)


def test_gpus_that_pytorch_cannot_use(check: Forge) -> None:
    said = check(H100, H100, visible=2, usable=False, code=1)
    assert "note: PyTorch cannot compute on the GPUs: torch.cuda.is_available() is False" in said
    assert (
        "accel_configs/ddp.yaml: not here: see the note; use_cpu: true rehearses on the CPU" in said
    )
    said = check(H100, visible=0, usable=False, cuda=None)
    assert (
        "note: this PyTorch is built for CPUs only: install one for CUDA to compute on the GPUs"
        in said
    )
    assert "GPUs      1 x NVIDIA H100 80GB HBM3, 79.6 GiB; 0 visible" in said
    assert "accel_configs/ddp.yaml: ddp on 2 CPU processes" in said


def test_hidden_gpus_and_packages_that_are_missing(
    check: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(
        check_machine,
        "versions",
        lambda *, installed: {"torch": "2.13.0", "transformers": "5.23.0"},
    )
    said = check(H100, visible=0)
    assert (
        said[1]
        == "GPUs       1 x NVIDIA H100 80GB HBM3, 79.6 GiB; 0 visible (CUDA_VISIBLE_DEVICES=)"
    )
    assert "accel_configs/ddp.yaml: ddp on 2 CPU processes" in said
    missing = "not here: zero2 needs deepspeed: pip install 'samecurve[deepspeed]'"
    assert f"accel_configs/zero2.yaml: {missing}" in said


def test_own_launch_files_are_judged_else_those_of_the_template(
    check: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = check(visible=0)
    assert any(
        line.endswith("templates/classifier/accel_configs/ddp.yaml: ddp on 2 CPU processes")
        for line in shipped
    )
    (tmp_path / "accel_configs").mkdir()
    (tmp_path / "accel_configs" / "mine.yaml").write_text(
        "distributed_type: MULTI_GPU\nnum_machines: 4\nnum_processes: 8\nmachine_rank: 0\n"
    )
    (tmp_path / "accel_configs" / "typo.yaml").write_text(
        "distributed_type: MULTI_GPU\nnum_proceses: 2\n"
    )
    said = check(visible=0, code=1)
    assert said[-2] == "accel_configs/mine.yaml: not here alone: it asks for 4 machines"
    assert said[-1].startswith(
        "accel_configs/typo.yaml: not here: accel_configs/typo.yaml:2: num_proceses: 2: unknown"
    )
    assert len([line for line in said if line.startswith("accel_configs/")]) == 2


def test_gpu_links_of_different_kinds_are_counted() -> None:
    mixed = NVLINK.replace("GPU0\t X \tNV18\tNV18", "GPU0\t X \tNV18\tSYS").replace("\x1b[4m", "")
    assert (
        check_machine._describe_links(mixed)
        == "NVLink (NV18) for 2 of 3 pairs, PCIe (SYS) for 1 of 3 pairs"
    )
