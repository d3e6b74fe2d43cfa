"""The sentence at the end of a comparison: which layout to take, as far as what was measured can
tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...text import size

Entry = Mapping[str, Any]
# Medians closer than this are not told apart, however narrow their spreads are.
_LEAST = 0.05


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The speed of one layout, from all of its runs: each is a repeat of the others.

    Args:
        entries: of the report.
        speed: the median of the runs' speeds, in samples a second.
        low, high: the lowest first and the highest third quartile of the runs.
    """

    entries: Sequence[Entry]
    speed: float
    low: float
    high: float

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Measured:
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
        return max(int(count) for entry in self.entries for count in entry["peak_memory_bytes"])

    @property
    def repeats_differ(self) -> float:
        """How much faster the fastest of its runs was than the slowest; 0 for one run."""
        speeds = [float(entry["samples_per_second"]) for entry in self.entries]
        return max(speeds) / min(speeds) - 1

    def text(self) -> str:
        """Return name, speed and spread for people."""
        return f"{self.name} {self.speed:.0f} samples/s ({self.low:.0f} to {self.high:.0f})"


def recommend(entries: Sequence[Entry], group: Mapping[str, Any], runs: int) -> str:
    """Say which layout to take for its speed, where the spreads can tell, and which where memory is
    short.

    Args:
        entries: of the runs that learn the same.
        group: their verdict.
        runs: all that are compared.
    """
    if runs == 1:
        return "One run alone: there is nothing to choose."
    if len(entries) == 1:
        return "No two runs learn under the same settings: there is nothing to choose by speed or memory."
    ended = [
        e for e in entries if e["ended"] and e["samples_per_second"] and e["peak_memory_bytes"]
    ]
    if len(ended) < 2:
        return "Fewer than two runs with the same settings came to an end and measured their speed: nothing to choose."

    repeated: dict[str, list[Entry]] = {}
    for entry in ended:
        repeated.setdefault(entry["layout"], []).append(entry)
    layouts = sorted(map(Measured.of, repeated.values()), key=lambda one: -one.speed)
    text = _repeats(layouts[0]) if len(layouts) == 1 else _choice(layouts) + _doubts(ended, group)
    if len(ended) == runs:
        return f"{text[0].upper()}{text[1:]}."
    return f"Of the {len(ended)} that ended with the same settings: {text}."


def _repeats(only: Measured) -> str:
    speeds = [f"{entry['samples_per_second']:.0f}" for entry in only.entries]
    return (
        f"one layout that ran {len(speeds)} times: {', '.join(speeds)} samples/s, {only.repeats_differ:.0%} apart; "
        "that is how far its machine moves a speed, and there is nothing to choose"
    )


def _choice(layouts: Sequence[Measured]) -> str:
    fastest, second = layouts[0], layouts[1]
    noise = max(_LEAST, *(layout.repeats_differ for layout in layouts))
    ahead = fastest.speed / second.speed - 1
    smallest = min(layouts, key=lambda layout: layout.memory)
    needs_less = smallest.memory < 0.98 * fastest.memory
    memory = (
        f"{smallest.name} needs {size(smallest.memory)} a rank instead of {size(fastest.memory)}"
    )

    readings_overlap = fastest.low <= second.high
    if readings_overlap or ahead <= noise:
        alike = [
            one
            for one in layouts
            if one.high >= fastest.low or fastest.speed / one.speed - 1 <= noise
        ]
        text = f"no difference in speed that can be told: {', '.join(one.text() for one in alike)}"
        return text + (f"; {memory}" if needs_less else "; and none needs noticeably less memory")

    text = f"take {fastest.name}: {fastest.speed:.0f} samples/s, {ahead:.0%} ahead of {second.name}"
    text += f"; half of the readings lie within {fastest.low:.0f} to {fastest.high:.0f}"
    text += f", of {second.name} within {second.low:.0f} to {second.high:.0f}"
    if all(len(layout.entries) == 1 for layout in layouts):
        text += "; each ran once: a repeat of each, compared with these, shows how far the machine moves a speed"

    if not needs_less:
        return f"{text}; and no other needs noticeably less memory ({size(fastest.memory)} a rank)"
    return f"{text}; where memory is short, {memory} and is {1 - smallest.speed / fastest.speed:.0%} slower"


def _doubts(entries: Sequence[Entry], group: Mapping[str, Any]) -> str:
    text = ""
    if group["verdict"] == "the same curve":
        text += "; what is learnt is the same, so speed and memory decide"
    elif group["verdict"] == "close curves":
        text += "; whether they learn the same is not known: see there"
    elif group["verdict"] == "different curves":
        text += "; but the curves differ: find out why before choosing by speed"
    if len({entry["machine"] for entry in entries} - {None}) > 1:
        text += "; but not on the same machine: speed and memory say as much of the machines as of the strategies"
    if any(entry["device"] == "cpu" for entry in entries):
        text += "; measured on CPUs, so measure again on the GPUs that will be used"
    return text
