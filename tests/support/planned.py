"""What ``trainer plan --json`` answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainer.commands.cli import main


def plan(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert main(["plan", *words, "--json"]) == code
    return dict(json.loads(capsys.readouterr().out))


def by_name(
    told: dict[str, Any], *, recompute: bool = False
) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (row["strategy"], row["offload"]): row
        for row in told["rows"]
        if row["recompute"] == recompute
    }
