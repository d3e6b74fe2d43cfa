"""``trainer parity FILES...``: train the same steps under each accelerate YAML and compare the
numbers.

    trainer parity accel_configs/ddp.yaml accel_configs/fsdp.yaml \\
        --config train.yaml --steps 10 --lr 3e-4

Every run has the same seed and the same global batch (--global_batch_size): accumulation makes up
for the number of processes. The reference is one process without a launcher. The first file is the
reference if the one process fails, or if a launch file holds the optimizer.

If a run leaves the strict bound after the first step, the reference is run again from weights that
are nudged in their last place: a network that chooses (ReLU, max pooling) takes another way after a
rounding. Dropout draws other numbers on each rank: compare with p at 0.

With --to the runs are kept: trainer compare DIR/runs/* shows their curves.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.load import Loaded
from ..errors import ConfigError, Problem
from ..launching.files.accelerate_file import read_accelerate_file
from ..launching.request import Request
from ..script import load_config
from ..text import columns
from .curves import EXACT, Bounds, Gaps, Sameness, Verdict, bounds_of, gaps_of, judge
from .nudged import NUDGED, FirstWeights, is_nudged
from .runs import Run
from .trials import Trial
from .usage import local_text, usage_error

if TYPE_CHECKING:
    from torch import Tensor

# Settings that are turned off: evaluations, checkpoints and an early end are not compared.
_OFF = {
    "export_dtype": "float32",
    "eval_every": "null",
    "sanity_evaluation": "false",
    "save_every": "null",
    "best_metric": "null",
    "early_stop_patience": "null",
    "push_to_hub": "null",
    "log_every": "1",
    "overwrite": "false",
}


def run(argv: Sequence[str]) -> int:
    """Train under each launch file, and print how far the runs are from the reference.

    Returns:
        0 if all runs are the same within the bounds, 1 if a run differs or failed.

    Raises:
        ConfigError: a file or a setting is wrong. Nothing was started then.
    """
    args, settings = _parser().parse_known_args(argv)
    requests = {path: read_accelerate_file(path) for path in args.files}
    words = ["--config", args.config] if args.config else []
    loaded = load_config([*words, *settings])
    _check(requests, loaded)

    shared = {**loaded.texts, **_OFF, "max_steps": args.steps}
    shared["global_batch_size"] = loaded.config.global_batch_size
    shared["warmup_steps"] = min(loaded.config.warmup_steps, args.steps)
    shared.pop("output_dir", None)
    words += [f"--{key}={value}" for key, value in shared.items()]

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.to or temporary)
        trials: dict[str, Trial] = {}
        for path, more in [*_one_process(requests, loaded), *((path, []) for path in requests)]:
            # Numbered, because two files may have the same name.
            name = f"{len(trials)}-{'one-process' if path is None else Path(path).stem}"
            trials[name] = Trial(
                name=name,
                launch_file=path,
                script=args.script,
                arguments=[*words, *more],
                folder=folder,
            )
        runs = [trial.run() for trial in trials.values()]
        ended = [run for run in runs if not run.error]
        if not ended:
            return _report(runs, {}, EXACT)

        first = FirstWeights.of(loaded)
        reference = ended[0]
        bounds = max((bounds_of(run.plan) for run in ended), key=lambda bounds: bounds.step)
        gaps = {run.name: _gaps(run, reference, first) for run in ended[1:]}
        nudged: list[Gaps] = []

        # Weights that the config names are not nudged: the key is taken.
        nudges = 0 if loaded.config.weights is not None else args.nudges
        unknown = [own for own in gaps.values() if judge(own, bounds).sameness is Sameness.UNKNOWN]
        for seed in range(1, nudges + 1):
            if all(judge(own, bounds, nudged).sameness is Sameness.ROUNDING for own in unknown):
                break
            weights = folder / "weights" / f"{NUDGED}{seed}"
            first.write_nudged(weights, seed)
            trial = trials[reference.name]
            arguments = [*trial.arguments, f"--weights={weights}"]
            again = replace(trial, name=f"nudged-{seed}", arguments=arguments).run()
            runs.append(again)
            if again.error:
                break
            nudged.append(_gaps(again, reference, first))

        verdicts = {name: judge(own, bounds, nudged) for name, own in gaps.items()}
        return _report(runs, verdicts, bounds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainer parity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="everything else is a setting of the training config, as in --lr 3e-4",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="accelerate YAMLs, before the settings")
    add("--config", help="the training config")
    add("--script", help="your training script; not needed if the config names the task")
    add("--steps", type=int, default=10, help="optimizer steps of each run; default %(default)s")
    add("--nudges", type=int, default=3, metavar="N", help="nudged runs at most; default 3")
    add("--to", type=local_text, metavar="DIR", help="keep the runs in DIR/runs, a new folder")
    return parser


def _check(requests: Mapping[str, Request], loaded: Loaded) -> None:
    """Check that all runs can share a global batch on this machine.

    Raises:
        ConfigError: they cannot.
    """
    if loaded.config.global_batch_size is None:
        raise usage_error("global_batch_size", None, "is missing: the batch that all runs share")
    for request in requests.values():
        if request.num_machines > 1:
            origin = request.strategy_origin.named("num_machines")
            rule = "the runs are compared on this machine alone; set 1"
            raise ConfigError(Problem(origin=origin, value=request.num_machines, rule=rule))


def _one_process(
    requests: Mapping[str, Request], loaded: Loaded
) -> list[tuple[str | None, list[str]]]:
    """Return the run of one process: no launch file, and the settings that only the files hold.

    Returns:
        An empty list if a launch file holds the optimizer or the schedule: the training config has
        no such setting.
    """
    words = []
    for key in ("mixed_precision", "max_grad_norm"):
        given = [getattr(request, key) for request in requests.values()]
        values = [sourced.value for sourced in given if sourced is not None]
        if values and getattr(loaded.config, key) is None:
            words.append(f"--{key}={values[0]}")

    is_held = any(request.optimizer or request.scheduler for request in requests.values())
    return [] if is_held else [(None, words)]


def _gaps(run: Run, reference: Run, first: FirstWeights) -> Gaps:
    """Return how far a run is from the reference: loss, gradient norm and weights."""
    gaps = {key: gaps_of(run, reference, key) for key in ("loss", "grad_norm")}
    gaps["weights"] = {max(gaps["loss"]): _weights_gap(run, reference, first.parameters)}
    return gaps


def _report(runs: Sequence[Run], verdicts: Mapping[str, Verdict], bounds: Bounds) -> int:
    """Print the table of the runs and the verdict, and return the exit code.

    Args:
        runs: all runs, also those from nudged weights.
        verdicts: those on the runs that ended, by name, without the reference.
        bounds: the differences up to which runs are the same.
    """
    rows = [["run", "batch", "loss", "norm", "weights", "verdict"]]
    for run in runs:
        batch, numbers, word = "", [""] * 3, "failed"
        if not run.error:
            keys = ("micro_batch_size", "accumulation_steps", "world_size")
            batch = " x ".join(str(run.plan[key]) for key in keys)
            word = "nudged" if is_nudged(run) else "reference"
        if run.name in verdicts:
            verdict = verdicts[run.name]
            numbers = [f"{gap:.1e}" for gap in verdict.largest.values()]
            word = verdict.sameness.value
        rows.append([run.name, batch, *numbers, word])
    print("\n".join(columns(rows)))
    print("largest relative differences; weights: relative to how far they moved")

    failed = [run for run in runs if run.error]
    for run in failed:
        print(f"{run.name}: {run.error}")
    found = {verdict.sameness for verdict in verdicts.values()}
    within = f"within {bounds.step:g} of loss and norm, {bounds.weights:g} of the weights"
    if failed or found & {Sameness.UNKNOWN, Sameness.DIFFERS}:
        print(f"NOT the same {within}")
        for name, verdict in verdicts.items():
            print(f"{name}: {verdict}")
        return 1

    if Sameness.ROUNDING in found:
        within = f"within what rounding does to this model, not {within}"
    print(f"the same {within}")
    return 0


def _weights_gap(run: Run, reference: Run, initial: Mapping[str, Tensor]) -> float:
    """Return the distance of all weights together, relative to how far the reference's moved."""
    from safetensors import safe_open

    squared_distance = 0.0
    squared_way = 0.0
    with (
        safe_open(_model_file(run), "pt") as run_file,
        safe_open(_model_file(reference), "pt") as reference_file,
    ):
        for name in set(initial) & set(reference_file.keys()):
            expected = reference_file.get_tensor(name).double()
            found = run_file.get_tensor(name).double()
            squared_distance += float((found - expected).square().sum())
            squared_way += float((expected - initial[name].double()).square().sum())

    return math.sqrt(squared_distance / squared_way) if squared_way else math.nan


def _model_file(run: Run) -> Path:
    from ..checkpoint.export import exported_file

    path = exported_file(Path(run.path) / "model")
    assert path is not None, "a run that ended has written its model"
    return path
