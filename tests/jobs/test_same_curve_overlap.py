"""ZeRO-1 and 2 exchange while the backward pass runs, as they do on GPUs: the same losses.

| promised | strategies and worlds | tests |
|---|---|---|
| An exchange during the backward pass has the losses of one after it | ZeRO-1, ZeRO-2 on 2 | test_an_exchange_in_the_backward_pass_has_the_same_numbers |
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launchers import ranks


def test_an_exchange_in_the_backward_pass_has_the_same_numbers(tmp_path: Path) -> None:
    done = ranks(["tests/workers/overlapped.py", tmp_path])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    found = json.loads((tmp_path / "found.json").read_text())
    for after, during in found.values():
        assert len(after) == 8 and during == pytest.approx(after, rel=1e-6)
