"""The rows of digests.jsonl, and what two of them say about a step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import usage_error
from ..text import listed


@dataclass(frozen=True, kw_only=True)
class Digests:
    """The content of digests.jsonl.

    Args:
        tensors: the names of the trainable parameters, in the order of the digests.
        facts: of the last attempt that change bits.
        steps: the row of each step. Of several attempts the last counts.
    """

    tensors: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    steps: dict[int, Mapping[str, Any]] = field(default_factory=dict)


def read_digests(path: Path) -> Digests:
    """Read digests.jsonl, without a row that a killed run did not write to the end.

    Raises:
        ConfigError: there is no such file.
    """
    if not path.exists():
        rule = "there is no such file: the run was not trained with same_bits: true"
        raise usage_error("", str(path), rule)
    found = Digests()
    for line in path.read_bytes().splitlines():
        with suppress(ValueError):
            row = json.loads(line)
            if "step" in row:
                found.steps[row["step"]] = row
                continue
            # Of an earlier attempt the steps behind the checkpoint do not count.
            kept = {step: of for step, of in found.steps.items() if step <= row["begins"]}
            found = Digests(tensors=row["tensors"], facts=row["facts"], steps=kept)
    return found


def first_difference(logged: Digests, found: Digests) -> str:
    """Return the first step that differs, and what differs there. "" if all steps are the same.

    Args:
        logged: whose ranks are named.
        found: whose steps are compared.
    """
    for step in sorted(found.steps):
        row, other = logged.steps[step], found.steps[step]
        world = row["world"]
        places = range(len(row["micro_batches"]))
        names = {
            "micro_batches": [f"{n // world + 1} of rank {n % world}" for n in places],
            "gradients": logged.tensors,
            "weights": logged.tensors,
        }
        parts = []
        for kind, known in names.items():
            digests = zip(known, row[kind], other[kind], strict=True)
            differing = [name for name, own, others in digests if own != others]
            if differing:
                parts.append(f"{kind} {listed(differing)} ({len(differing)} of {len(known)})")
        if parts:
            return f"step {step} differs: {'; '.join(parts)}"
    return ""
