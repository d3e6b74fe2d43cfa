"""What the environment says beside the files."""

from __future__ import annotations

import pytest
from plans import SAID, launched, plan, request

from trainer import LaunchError
from trainer.launching.start import check_environment


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
