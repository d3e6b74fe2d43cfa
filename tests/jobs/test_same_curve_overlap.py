"""ZeRO-1 and 2 exchange while the backward pass runs, as they do on GPUs: the same losses.

| promised | strategies and worlds | tests |
|---|---|---|
| An exchange during the backward pass has the losses of one after it | ZeRO-1, ZeRO-2 on 2 | test_an_exchange_in_the_backward_pass_has_the_same_numbers |
"""

from __future__ import annotations

from pathlib import Path

import pytest
from launchers import json_in, worked


def test_an_exchange_in_the_backward_pass_has_the_same_numbers(tmp_path: Path) -> None:
    worked(["tests/workers/overlapped.py", tmp_path])
    found = json_in(tmp_path / "found.json")
    for after, during in found.values():
        assert len(after) == 8 and during == pytest.approx(after, rel=1e-6)
