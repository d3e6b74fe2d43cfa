"""What ``trainer compare`` shows: which runs train under the same settings, whether their curves
are the same, and what each cost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from ...config.fingerprint import fingerprint
from ...config.plain import dotted
from ...errors import ConfigError, Origin, Problem
from ...optim.groups import group_names
from ...reporting.speed import steady_speed
from ...text import is_headline
from ..curves import bounds_of, gaps_of, judge
from ..nudged import is_nudged
from ..runs import Run

# Settings of the layout of a run, which change no numbers.
_LAYOUT = ("strategy", "world_size", "micro_batch_size", "accumulation_steps", "device")
_LOSS_OF_SET = re.compile(r"eval/([^/]+/)?loss")


def make_report(runs: Sequence[Run]) -> dict[str, Any]:
    """Collect everything that the table, the JSON and the page show.

    Runs with equal settings form a group, and are compared with the first run of their group.

    Raises:
        ConfigError: no run has logged a step.
    """
    if not any(_losses(run) for run in runs):
        paths = ", ".join(run.path for run in runs)
        raise ConfigError(Problem(origin=Origin(paths), rule="no step was logged"))

    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
    groups: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        if _losses(run):
            key = json.dumps(_settings(run), sort_keys=True, default=str)
            groups.setdefault(key, []).append(index)
    return {
        "runs": [_entry(run, name) for run, name in zip(runs, names, strict=True)],
        "groups": [
            _verdict([(names[index], runs[index]) for index in at]) for at in groups.values()
        ],
        "settings": _split_settings(dict(zip(names, runs, strict=True))),
    }


def _losses(run: Run) -> list[dict[str, Any]]:
    """Return the rows of the run that hold a finite loss."""
    return [row for row in run.rows if row.get("loss") is not None]


def _settings(run: Run) -> dict[str, Any]:
    """Return the settings that decide the numbers, by dotted key."""
    settings = fingerprint(run.plan)
    if is_nudged(run):  # the weights are those of the reference, but for their last places
        settings["weights"] = None
    groups = settings.pop("optimizer_groups", None)
    if groups:  # the groups show the settings, whoever built the optimizer
        settings.pop("optimizer_settings", None)
        settings["optimizer_groups"] = {
            name: {key: value for key, value in group.items() if key not in ("name", "lr")}
            for name, group in zip(group_names(groups), groups, strict=True)
        }
    return {key: value for key, value in dotted(settings) if value is not None}


def _split_settings(runs: Mapping[str, Run]) -> dict[str, dict[str, Any]]:
    """Split the settings into those that all runs share and those that differ.

    Returns:
        ``same``, the value by key, and ``different``, the value of each run by key and name.
    """
    by_run = {
        name: {**{key: run.plan.get(key) for key in _LAYOUT}, **_settings(run)}
        for name, run in runs.items()
    }
    same, different = {}, {}
    for key in dict.fromkeys(chain(*by_run.values())):
        values = {name: settings.get(key) for name, settings in by_run.items()}
        first, *others = values.values()
        if others.count(first) == len(others):
            same[key] = first
        else:
            different[key] = values
    return {"same": same, "different": different}


def _verdict(runs: Sequence[tuple[str, Run]]) -> dict[str, Any]:
    """Judge whether the runs of a group have the curve of the first run.

    Runs from nudged weights show how far rounding leads the first run.
    """
    (reference_name, reference), *others = runs
    nudged = []
    compared = []
    for name, run in others:
        gaps = {"loss": gaps_of(run, reference, "loss")}
        if is_nudged(run):
            nudged.append(gaps)
        elif gaps["loss"]:
            compared.append((name, gaps))

    texts = [f"{name}: {judge(gaps, bounds_of(reference.plan), nudged)}" for name, gaps in compared]
    return {"runs": [name for name, _ in runs], "reference": reference_name, "verdicts": texts}


def _entry(run: Run, name: str) -> dict[str, Any]:
    """Return what the report shows of a run. A value that is not known is None."""
    logged = _losses(run)
    last = logged[-1] if logged else {"step": 0}
    keys = ("strategy", "world_size", "state_bytes_per_rank", "device")
    entry = {key: run.plan.get(key) for key in keys}

    final = {"loss": last["loss"]} if logged else {}
    for row in run.rows:
        for key, value in row.items():
            if key.startswith("eval/") and is_headline(key) and value is not None:
                final[key] = value

    peaks = run.summary.get("peak_memory_bytes") or [last.get("peak_memory_bytes")]
    return {
        **entry,
        "name": name,
        "state": _state(run, last["step"]),
        "steps": last["step"],
        "samples_per_second": steady_speed(run.rows, "samples"),
        "tokens_per_second": steady_speed(run.rows, "tokens"),
        "peak_memory_bytes": [peak for peak in peaks if peak],
        "seconds": run.summary.get("seconds", {}),
        "final": final,
        "curves": _curves(run, logged),
    }


def _state(run: Run, step: int) -> str:
    """Return what became of a run that did not reach its last step, or ""."""
    total = run.plan.get("total_steps")
    if not step:
        return "logged no step"
    if not run.summary:
        return f"did not end; last logged step {step} of {total}"
    return "" if step == total else f"ended at step {step} of {total}"


def _curves(run: Run, logged: Sequence[Mapping[str, Any]]) -> dict[str, list[list[Any]]]:
    """Return the points of the curves: step, samples, seconds, loss.

    The curves are ``train`` and ``eval``, and ``eval/clean`` of an evaluation set with a name.
    """
    curves: dict[str, list[list[Any]]] = {"train": [], "eval": []}
    seconds = 0.0
    for row in run.rows:
        seconds = row.get("seconds") or seconds
        for key, loss in row.items():
            if loss is None or not (key == "loss" or _LOSS_OF_SET.fullmatch(key)):
                continue
            name = "train" if key == "loss" else key.removesuffix("/loss")
            point = [row["step"], row["samples"], seconds, loss]
            curves.setdefault(name, []).append(point)
    return curves
