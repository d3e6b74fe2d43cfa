"""The sentence at the end of a comparison: which layout to take, as far as measurements tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...text import size

Entry = Mapping[str, Any]

# Medians closer than this are taken as equal, however narrow their spreads are.
_LEAST_DIFFERENCE = 0.05


@dataclass(frozen=True, kw_only=True)
class LayoutSpeed:
    """The speed of one layout, from all of its runs: each is a repeat of the others.

    Args:
        entries: its runs in the report.
        speed: the median of the runs' speeds, in samples a second.
        low, high: the lowest first and the highest third quartile of the runs.
    """

    entries: Sequence[Entry]
    speed: float
    low: float
    high: float

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> LayoutSpeed:
        speeds = sorted(float(entry["samples_per_second"]) for entry in entries)
        quartiles = [entry["samples_per_second_quartiles"] for entry in entries]
        middle = len(speeds) // 2
        return cls(
            entries=entries,
            speed=(speeds[middle] + speeds[-1 - middle]) / 2,
            low=min(low for low, _ in quartiles),
            high=max(high for _, high in quartiles),
        )

    @property
    def name(self) -> str:
        return " and ".join(str(entry["name"]) for entry in self.entries)

    @property
    def memory(self) -> int:
        """Return the peak memory of the rank that needs most, in bytes."""
        return max(int(max(entry["peak_memory_bytes"])) for entry in self.entries)

    @property
    def repeats_differ(self) -> float:
        """Return how much faster the fastest of its runs was than the slowest; 0 for one run."""
        speeds = [float(entry["samples_per_second"]) for entry in self.entries]
        return max(speeds) / min(speeds) - 1

    def text(self) -> str:
        """Return name, speed and spread for people."""
        return f"{self.name} {self.speed:.0f} samples/s ({self.low:.0f} to {self.high:.0f})"


def recommend(entries: Sequence[Entry], group: Mapping[str, Any], runs: int) -> str:
    """Return which layout to take for its speed, and which where memory is short.

    A layout is only recommended where it is faster by more than the spreads.

    Args:
        entries: the runs of the main group, which train under the same settings.
        group: their verdict.
        runs: how many are compared in all.
    """
    if runs == 1:
        return "One run alone: there is nothing to choose."
    if len(entries) == 1:
        return (
            "No two runs train under the same settings: there is nothing to choose by speed or "
            "memory."
        )
    measured = [entry for entry in entries if _is_measured(entry)]
    if len(measured) < 2:
        return (
            "Fewer than two runs with the same settings came to an end and measured their speed: "
            "nothing to choose."
        )

    layouts = _layouts(measured)
    if len(layouts) == 1:
        text = _repeats(layouts[0])
    else:
        text = _choice(layouts) + _doubts(measured, group)
    if len(measured) == runs:
        return f"{text[0].upper()}{text[1:]}."
    return f"Of the {len(measured)} that ended with the same settings: {text}."


def _is_measured(entry: Entry) -> bool:
    """Return whether a run ended, with its speed and its memory measured."""
    return bool(entry["ended"] and entry["samples_per_second"] and entry["peak_memory_bytes"])


def _layouts(entries: Sequence[Entry]) -> list[LayoutSpeed]:
    """Return the speed of each layout, the fastest first."""
    by_layout: dict[str, list[Entry]] = {}
    for entry in entries:
        by_layout.setdefault(entry["layout"], []).append(entry)

    layouts = [LayoutSpeed.of(repeats) for repeats in by_layout.values()]
    return sorted(layouts, key=lambda layout: -layout.speed)


def _repeats(layout: LayoutSpeed) -> str:
    speeds = [f"{entry['samples_per_second']:.0f}" for entry in layout.entries]
    return (
        f"one layout that ran {len(speeds)} times: {', '.join(speeds)} samples/s, "
        f"{layout.repeats_differ:.0%} apart; that is how far its machine moves a speed, "
        "and there is nothing to choose"
    )


def _choice(layouts: Sequence[LayoutSpeed]) -> str:
    """Return which of at least two layouts to take, or that none is faster."""
    fastest, second = layouts[0], layouts[1]
    noise = max(_LEAST_DIFFERENCE, *(layout.repeats_differ for layout in layouts))
    ahead = fastest.speed / second.speed - 1
    smallest = min(layouts, key=lambda layout: layout.memory)
    needs_less = smallest.memory < 0.98 * fastest.memory
    memory = (
        f"{smallest.name} needs {size(smallest.memory)} a rank instead of {size(fastest.memory)}"
    )

    readings_overlap = fastest.low <= second.high
    if readings_overlap or ahead <= noise:
        alike = []
        for layout in layouts:
            if layout.high >= fastest.low or fastest.speed / layout.speed - 1 <= noise:
                alike.append(layout.text())
        text = f"no difference in speed that can be told: {', '.join(alike)}"
        if needs_less:
            return f"{text}; {memory}"
        return f"{text}; and none needs noticeably less memory"

    text = f"take {fastest.name}: {fastest.speed:.0f} samples/s, {ahead:.0%} ahead of {second.name}"
    text += f"; half of the readings are within {fastest.low:.0f} to {fastest.high:.0f}"
    text += f", of {second.name} within {second.low:.0f} to {second.high:.0f}"
    if all(len(layout.entries) == 1 for layout in layouts):
        text += "; each ran once: a repeat of each, compared with these, shows how far the "
        text += "machine moves a speed"

    if not needs_less:
        return f"{text}; and no other needs noticeably less memory ({size(fastest.memory)} a rank)"
    slower = 1 - smallest.speed / fastest.speed
    return f"{text}; where memory is short, {memory} and is {slower:.0%} slower"


def _doubts(entries: Sequence[Entry], group: Mapping[str, Any]) -> str:
    """Return what a reader must know before choosing by speed."""
    text = ""
    if group["verdict"] == "the same curve":
        text += "; the curves are the same, so speed and memory decide"
    elif group["verdict"] == "close curves":
        text += "; whether the curves are the same is not known: see there"
    elif group["verdict"] == "different curves":
        text += "; but the curves differ: find out why before choosing by speed"

    machines = {entry["machine"] for entry in entries if entry["machine"] is not None}
    if len(machines) > 1:
        text += "; but not on the same machine: speed and memory say as much of the machines as of "
        text += "the strategies"
    if any(entry["device"] == "cpu" for entry in entries):
        text += "; measured on CPUs, so measure again on the GPUs that will be used"
    return text
