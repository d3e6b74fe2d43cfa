"""The rows of digests.jsonl, and what two of them say about a step."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if "step" in row:
            found.steps[row["step"]] = row
            continue
        for step in [step for step in found.steps if step > row["begins"]]:
            del found.steps[step]  # of an attempt that went on from an earlier checkpoint
        found.tensors[:] = row["tensors"]
        found.facts.update(row["facts"])
    return found


def difference(logged: Digests, replayed: Digests, step: int) -> str:
    """Return which micro-batches and tensors of a step differ. "" if none does."""
    row, other = logged.steps[step], replayed.steps[step]
    if logged.tensors != replayed.tensors:
        return "the runs train other tensors"
    parts = []
    world = row["world"]
    micro_batches = _differing(row["micro_batches"], other["micro_batches"])
    if micro_batches:
        ranks = sorted({number % world for number in micro_batches})
        first = micro_batches[0]
        place = f"rank {first % world}, its micro-batch {first // world + 1}"
        more = f"{len(micro_batches)} micro-batches of {_ranks(ranks)}, first of {place}"
        parts.append(place if len(micro_batches) == 1 else more)
    for kind in ("gradients", "weights"):
        names = [logged.tensors[number] for number in _differing(row[kind], other[kind])]
        if names:
            parts.append(f"{kind} of {listed(names)} ({len(names)} of {len(logged.tensors)})")
    return "; ".join(parts)


def first_difference(logged: Digests, found: Digests) -> str:
    """Return the first step that differs, and what differs there. "" if all steps are the same."""
    for step in sorted(found.steps):
        text = difference(logged, found, step)
        if text:
            return f"step {step}: {text}"
    return ""


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _differing(values: list[str], others: list[str]) -> list[int]:
    """Return the places at which two lists differ."""
    assert len(values) == len(others)
    return [n for n, (own, other) in enumerate(zip(values, others, strict=True)) if own != other]
