"""The peak arithmetic of GPUs, by the names that their drivers report."""

from __future__ import annotations

import pytest

from trainer.reporting.gpus import memory_of, peak_of


@pytest.mark.parametrize(
    ("device", "bf16", "tf32", "fp32"),
    [
        ("NVIDIA H100 80GB HBM3", 989, 495, 67),
        ("NVIDIA H100 NVL", 835, 418, 60),
        ("NVIDIA GB200", 2500, 1250, 80),
        ("NVIDIA A100-SXM4-40GB", 312, 156, 19.5),
        ("NVIDIA A10", 125, 62.5, 31.2),
        ("NVIDIA A10G", 70, 35, 35),
        ("NVIDIA L40", 181, 90.5, 90.5),
        ("NVIDIA L40S", 362, 183, 91.6),
        ("Tesla T4", 65, 8.1, 8.1),
        ("Tesla V100-SXM2-32GB", 125, 15.7, 15.7),
    ],
)
def test_a_peak_depends_on_the_variant_of_the_chip_and_the_precision(
    device: str, bf16: float, tf32: float, fp32: float
) -> None:
    found = [peak_of(device, precision) for precision in ("bf16", "fp16", "tf32", "fp32")]
    assert found == [bf16, bf16, tf32, fp32]


@pytest.mark.parametrize(
    "device",
    [
        "Voodoo 2",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA RTX 6000 Ada Generation",
    ],
)
def test_a_chip_with_a_similar_name_has_no_known_peak(device: str) -> None:
    assert peak_of(device, "bf16") is None


@pytest.mark.parametrize("name", ["H100", "h100", "H100-80", "H100-80GB", "80GiB", "80"])
def test_names_of_a_gpu(name: str) -> None:
    assert memory_of(name) == 80
