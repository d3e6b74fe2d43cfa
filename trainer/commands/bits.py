"""The rows of digests.jsonl, and what two of them say about a step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import usage_error
from ..text import listed


def read_digests(path: Path) -> tuple[Mapping[str, Any], dict[int, Mapping[str, Any]]]:
    """Read digests.jsonl, without a row that a killed run did not write to the end.

    Of several attempts the last counts, and the steps before its checkpoint.

    Returns:
        The row of the last attempt, with the names of ``tensors`` and ``facts`` that change bits,
        and the rows of the steps.

    Raises:
        ConfigError: there is no such file.
    """
    if not path.exists():
        raise usage_error("", str(path), "is missing: the run was not trained with same_bits: true")
    attempt: Mapping[str, Any] = {}
    steps: dict[int, Mapping[str, Any]] = {}
    for line in path.read_bytes().splitlines():
        with suppress(ValueError):
            row = json.loads(line)
            if "step" in row:
                steps[row["step"]] = row
            else:
                attempt = row
                steps = {step: of for step, of in steps.items() if step <= row["begins"]}
    return attempt, steps


def first_difference(
    tensors: list[str],
    logged: Mapping[int, Mapping[str, Any]],
    found: Mapping[int, Mapping[str, Any]],
) -> str:
    """Return the first step that differs, and what differs there. "" if all steps are the same.

    Args:
        tensors: the names of the trainable parameters, in the order of the digests.
        logged: whose ranks are named.
        found: whose steps are compared.
    """
    for step in sorted(found):
        row = logged[step]
        parts = []
        for kind in ("micro_batches", "gradients", "weights"):
            names = tensors
            if kind == "micro_batches":
                places = (divmod(place, row["world"]) for place in range(len(row[kind])))
                names = [f"{number + 1} of rank {rank}" for number, rank in places]
            digests = zip(names, row[kind], found[step][kind], strict=True)
            differing = [name for name, own, other in digests if own != other]
            if differing:
                parts.append(f"{kind} {listed(differing)} ({len(differing)} of {len(names)})")
        if parts:
            return f"step {step} differs: {'; '.join(parts)}"
    return ""
