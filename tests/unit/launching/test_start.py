"""What the environment says beside the files."""

from __future__ import annotations

import dataclasses

import pytest
from plans import SAID, launched, plan, request

from trainer import LaunchError
from trainer.launching.start import _accelerator, check_environment


@pytest.mark.parametrize(
    ("name", "stray", "settings", "refused"),
    [
        ("torchrun", "bf16", {}, True),
        ("torchrun", "bf16", {"mixed_precision": "no"}, True),
        ("torchrun", "BF16", {"mixed_precision": "bf16"}, False),
        ("torchrun", "fp16", {"mixed_precision": "fp16"}, False),  # rehearsed in bf16
        ("torchrun", "no", {"mixed_precision": "bf16"}, False),  # what a launcher around this one sets for nothing
        ("accelerate", "no", {"mixed_precision": "bf16"}, False),
        ("accelerate", "fp16", {"mixed_precision": "fp16"}, False),
    ],
)
def test_a_stray_precision_of_the_environment(
    name: str, stray: str, settings: dict[str, str], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", stray)
    launcher, asked = launched(2, name), settings.get("mixed_precision", "no")
    made = plan(request("zero2"), launcher=launcher, **settings)
    if not refused:
        check_environment(made, launcher, asked)
        return
    home = SAID if settings else "default"
    with pytest.raises(LaunchError) as caught:
        check_environment(made, launcher, asked)
    assert str(caught.value) == (
        f"ACCELERATE_MIXED_PRECISION=bf16 is set, but mixed_precision is no ({home}); unset it, "
        "or write mixed_precision: bf16"
    )


@pytest.mark.parametrize(
    ("device", "float32", "expected"),
    [("cuda", "exact", ("highest", False)), ("cuda", "tf32", ("high", True)), ("cpu", "tf32", ("highest", False))],
)
def test_float32_is_computed_as_the_plan_says(
    device: str, float32: str, expected: tuple[str, bool], fresh_accelerate: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's own default, without a word, is to compute convolutions in tf32."""
    import torch

    monkeypatch.setattr("accelerate.Accelerator", lambda **given: None)  # there is no GPU
    torch.backends.cudnn.allow_tf32 = True
    made = dataclasses.replace(plan(float32=float32, launcher=launched(1)), device=device)
    _accelerator(made, launched(1))
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == expected
    assert torch.backends.cuda.matmul.allow_tf32 == expected[1], "no error of mixed settings"
