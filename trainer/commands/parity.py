"""``trainer parity FILES...``: train the same steps under each accelerate YAML and compare the
numbers.

    trainer parity accel_configs/ddp.yaml accel_configs/fsdp.yaml \\
        --config train.yaml --steps 10 --lr 3e-4

Every run has the same seed and the same global batch; accumulation makes up for the number of
processes. The reference is one process without a launcher; or the first file, where one process
fails (its memory), or where a launch file holds the optimizer.

Where a run leaves the strict bound after the first step, the reference is run again from weights
that are nudged in their last place: a network that chooses (ReLU, max pooling) takes another way
after a rounding, and what strays no further than that may be rounding.

With --to the runs are kept: trainer compare DIR/runs/* shows them by the names of their files.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.load import Loaded
from ..errors import ConfigError, Origin, Problem, Sourced
from ..launching.files.accelerate_file import read_accelerate_file
from ..launching.request import Request
from ..script import load_config
from ..text import columns
from .nudged import NUDGED, UNITS, FirstWeights
from .runs import Run
from .trials import (
    BOUNDS,
    NUDGE_FACTOR,
    Bounds,
    Gap,
    Sameness,
    Trial,
    check_script,
    judge,
    measure_gap,
    precision_of,
    relative_gaps,
)
from .usage import local_text, usage_error

if TYPE_CHECKING:
    from torch import Tensor

ONE_PROCESS = "one process"
# Settings that are turned off: evaluations, checkpoints and an early end are not compared.
_OFF = {
    "export_dtype": "float32",
    "eval_every": "null",
    "sanity_evaluation": "false",
    "save_every": "null",
    "best_metric": "null",
    "early_stop_patience": "null",
    "push_to_hub": "null",
}


@dataclass(frozen=True, kw_only=True)
class Split:
    """The way a run splits the global batch.

    Args:
        strategy: of the launch file.
        world: number of processes.
        micro_batch: samples of one process in one forward pass.
        accumulation: forward passes of one process in one optimizer step.
    """

    strategy: str
    world: int
    micro_batch: int
    accumulation: int

    def settings(self) -> dict[str, str]:
        """Return the settings of the training config that make a run split so."""
        global_batch = self.micro_batch * self.accumulation * self.world
        return {
            "micro_batch_size": str(self.micro_batch),
            "accumulation_steps": str(self.accumulation),
            "global_batch_size": str(global_batch),
        }


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference of a run from the reference.

    Args:
        loss, norm: of the loss and of the gradient norm.
        weights: of all weights together, relative to the way that the reference's have moved; NaN
            where a weight is not a number.
    """

    loss: Gap
    norm: Gap
    weights: float

    def numbers(self) -> list[str]:
        """Return the columns of the table."""
        values = (self.loss.first, self.loss.largest, self.norm.largest, self.weights)
        return [f"{value:.1e}" for value in values]


def run(argv: Sequence[str]) -> int:
    """Train under each launch file, and print how far the runs are from the reference.

    Returns:
        0 where all runs are the same within the bounds, 1 where one differs or failed.

    Raises:
        ConfigError: a file or a setting is wrong; nothing was started then.
    """
    args, settings = _parser().parse_known_args(argv)
    check_script(args.script)
    if args.to and Path(args.to).exists():
        raise usage_error("to", args.to, "exists already; give a new folder")
    if args.script is not None:
        sys.path.insert(0, str(Path(args.script).resolve().parent))

    requests = {path: read_accelerate_file(path) for path in args.files}
    config_words = ["--config", args.config] if args.config else []
    loaded = load_config([*config_words, *settings])
    batch = _global_batch(loaded, requests)
    single_settings = single_process_settings(requests, loaded)
    if single_settings is not None:
        here = Origin(ONE_PROCESS)
        single = Request(strategy="single", strategy_origin=here, world_size=Sourced(1, here))
        requests = {ONE_PROCESS: single, **requests}
    splits = {name: _split(batch, request, loaded) for name, request in requests.items()}
    first = FirstWeights.of(loaded)

    with tempfile.TemporaryDirectory() as temporary:
        print(f"{args.steps} steps of {batch} samples, seed {loaded.config.seed}", flush=True)
        folder = Path(args.to or temporary)
        trials = _make_trials(args, config_words, loaded, splits, single_settings or {}, folder)
        runs = [trial.run() for trial in trials.values()]
        bounds = _bounds(runs, args.bound, args.weights_bound)
        verdict = Verdict(runs=runs, initial=first.parameters, bounds=bounds)

        # Weights that the config names cannot be nudged: the setting is taken.
        nudges = 0 if loaded.config.weights is not None else args.nudges
        for seed in range(1, nudges + 1):
            if not verdict.is_open:
                break
            reference = trials[verdict.reference.name]
            verdict.nudged.append(_run_nudged(reference, first, folder, seed))

        same = verdict.report(splits)

    if not same:
        _print_doubts(first, loaded)
    return 0 if same else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainer parity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="everything else is a setting of the training config, as in --lr 3e-4",
        allow_abbrev=False,
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="accelerate YAMLs; before the config's own settings",
    )
    parser.add_argument("--config", help="the training config")
    parser.add_argument(
        "--script", help="your training script; not needed where the config names the task"
    )
    parser.add_argument(
        "--steps", type=int, default=10, help="optimizer steps of each run; default %(default)s"
    )
    parser.add_argument(
        "--bound", type=float, help="for loss and gradient norm; default: by precision"
    )
    parser.add_argument(
        "--weights_bound", type=float, help="for the weights; default: by precision"
    )
    parser.add_argument(
        "--nudges",
        type=int,
        default=3,
        metavar="N",
        help="runs of the reference from nudged weights, at most, where rounding may explain a "
        "difference; default %(default)s",
    )
    parser.add_argument(
        "--to",
        type=local_text,
        metavar="DIR",
        help="keep the runs, in DIR/runs of this new folder; else they are deleted",
    )

    return parser


def _make_trials(
    args: argparse.Namespace,
    config_words: Sequence[str],
    loaded: Loaded,
    splits: Mapping[str, Split],
    single_settings: Mapping[str, str],
    folder: Path,
) -> dict[str, Trial]:
    """Return a training for each launch file and for one process, by name.

    Args:
        args: the options of the command.
        config_words: ``--config FILE``, or empty.
        loaded: the training config.
        splits: how each run splits the global batch, by name.
        single_settings: for one process alone.
        folder: of the runs.
    """
    shared = {**loaded.texts, **_OFF}
    shared["max_steps"] = str(args.steps)
    shared["log_every"] = "1"
    shared["overwrite"] = "false"
    shared.pop("output_dir", None)
    if loaded.config.warmup_steps > args.steps:
        shared["warmup_steps"] = str(args.steps)

    trials = {}
    for number, (name, split) in enumerate(splits.items()):
        settings = dict(shared)
        if name == ONE_PROCESS:
            settings.update(single_settings)
        settings.update(split.settings())
        # Numbered, for two files may have the same name; and named: the run is called so.
        run_name = f"{number}-{Path(name).stem.replace(' ', '-')}"
        trials[name] = Trial(
            name=name,
            launch_file=None if name == ONE_PROCESS else name,
            script=args.script,
            arguments=[*config_words, *(f"--{key}={text}" for key, text in settings.items())],
            output=folder / "runs" / run_name,
            log=folder / "logs" / f"{run_name}.txt",
        )
    return trials


def single_process_settings(
    requests: Mapping[str, Request], loaded: Loaded
) -> dict[str, str] | None:
    """Return the settings that one process needs because only the launch files hold them.

    Returns:
        None where a launch file holds the optimizer or the schedule, which have no such setting.
    """
    if any(request.optimizer or request.scheduler for request in requests.values()):
        return None

    settings: dict[str, str] = {}
    for key in ("mixed_precision", "max_grad_norm"):
        if getattr(loaded.config, key) is not None:
            continue
        for request in requests.values():
            sourced = getattr(request, key)
            if sourced is not None:
                settings[key] = str(sourced.value)
                break
    return settings


def _run_nudged(reference: Trial, first: FirstWeights, folder: Path, seed: int) -> Run:
    """Run the reference from nudged weights.

    Args:
        reference: the training to run again.
        first: the weights that it begins with.
        folder: of all runs.
        seed: decides which weights go up and which down.
    """
    run_name = f"nudged-{seed}"
    weights = folder / "weights" / f"{NUDGED}{seed}"
    first.write_nudged(weights, seed)
    trial = replace(
        reference,
        name=f"{reference.name}, nudged {seed}",
        arguments=[*reference.arguments, f"--weights={weights}"],
        output=folder / "runs" / run_name,
        log=folder / "logs" / f"{run_name}.txt",
    )
    return trial.run()


def _print_doubts(first: FirstWeights, loaded: Loaded) -> None:
    """Print what else may explain that the runs are not the same."""
    if first.dropouts:
        print(
            f"{first.dropouts} dropout modules draw other numbers on each rank: "
            "compare with their p at 0"
        )
    if loaded.config.weights is not None:
        print(f"weights: {loaded.config.weights}: what rounding does to these was not tried")
    sys.stdout.flush()


def _global_batch(loaded: Loaded, requests: Mapping[str, Request]) -> int:
    """Return the config's global batch size, else that of the first launch file."""
    config = loaded.config
    if config.global_batch_size is not None:
        return config.global_batch_size

    first = next(iter(requests.values()))
    micro_batch = config.micro_batch_size
    if first.micro_batch_size is not None:
        micro_batch = first.micro_batch_size.value
    accumulation = config.accumulation_steps or 1
    if first.accumulation_steps is not None:
        accumulation = first.accumulation_steps.value
    return micro_batch * accumulation * _world_size(first)


def _world_size(request: Request) -> int:
    """Return the number of processes that a launch file names, all on this machine."""
    origin, machines = request.strategy_origin, request.num_machines
    if machines > 1:
        rule = "asks for several machines; the runs are compared on this one"
        raise ConfigError(Problem(origin=origin.named("num_machines"), value=machines, rule=rule))
    if request.world_size is None:
        raise ConfigError(Problem(origin=origin.named("num_processes"), rule="is missing"))

    return request.world_size.value


def _split(batch: int, request: Request, loaded: Loaded) -> Split:
    """Split the global batch among the processes of a launch file.

    The micro-batch is the file's, if it names one; else the largest that divides a process's part
    and is not larger than the config's.

    Raises:
        ConfigError: it cannot be split so.
    """
    world = _world_size(request)
    per_process, rest = divmod(batch, world)
    micro_batch = _largest_divisor(per_process, at_most=loaded.config.micro_batch_size)
    if request.accumulation_steps is not None:
        micro_batch = per_process // request.accumulation_steps.value
    if request.micro_batch_size is not None:
        micro_batch = request.micro_batch_size.value

    fits = rest == 0 and micro_batch > 0 and per_process % micro_batch == 0
    if fits and request.accumulation_steps is not None:
        fits = micro_batch * request.accumulation_steps.value == per_process
    if not fits:
        origin = request.strategy_origin.named("num_processes")
        rule = (
            f"cannot cut the global batch of {batch}; "
            "set --global_batch_size to one that all files can cut"
        )
        raise ConfigError(Problem(origin=origin, value=world, rule=rule))

    return Split(
        strategy=request.strategy,
        world=world,
        micro_batch=micro_batch,
        accumulation=per_process // micro_batch,
    )


def _largest_divisor(number: int, *, at_most: int) -> int:
    """Return the largest divisor up to a limit; 0 for the number 0."""
    for divisor in range(min(at_most, number), 0, -1):
        if number % divisor == 0:
            return divisor

    return 0


def compare(run: Run, reference: Run, initial: Mapping[str, Tensor]) -> Difference:
    """Measure how far a run is from the reference.

    Args:
        run, reference: both ended, with the same data, batch and steps.
        initial: the parameters that both began with, by name.
    """
    return Difference(
        loss=_gap(run, reference, "loss"),
        norm=_gap(run, reference, "grad_norm"),
        weights=_weights_gap(run, reference, initial),
    )


def _gap(run: Run, reference: Run, key: str) -> Gap:
    curve, reference_curve = run.curve(key), reference.curve(key)
    assert curve.keys() == reference_curve.keys(), "the same data, batch and steps"
    gap = measure_gap(curve, reference_curve)
    assert gap is not None, "every step is logged"
    return gap


def _weights_gap(run: Run, reference: Run, initial: Mapping[str, Tensor]) -> float:
    """Return the distance of all weights together, relative to the way the reference's moved."""
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


def _bounds(runs: Sequence[Run], bound: float | None, weights_bound: float | None) -> Bounds:
    """Return the bounds of the lowest precision that one of the runs computes in.

    Args:
        runs: all of them; those that failed do not count.
        bound: for loss and gradient norm, where the user gives one.
        weights_bound: for the weights, where the user gives one.
    """
    bounds = BOUNDS["no"]
    for run in runs:
        if run.error:
            continue
        candidate = BOUNDS[precision_of(run.plan)]
        if candidate.step > bounds.step:
            bounds = candidate

    if bound is not None:
        bounds = replace(bounds, first=bound, step=bound)
    if weights_bound is not None:
        bounds = replace(bounds, weights=weights_bound)
    return bounds


@dataclass(kw_only=True)
class Verdict:
    """The verdict on all runs: which are the same as the reference, the first that ended.

    Args:
        runs: in their order.
        initial: the parameters that all began with, by name.
        bounds: up to which they count as the same.
        nudged: runs of the reference from nudged weights.
    """

    runs: Sequence[Run]
    initial: Mapping[str, Tensor]
    bounds: Bounds
    nudged: list[Run] = field(default_factory=list)

    @property
    def ended(self) -> list[Run]:
        return [run for run in self.runs if not run.error]

    @property
    def reference(self) -> Run:
        return self.ended[0]

    @property
    def is_open(self) -> bool:
        """Return whether another nudged run could show that a difference is rounding."""
        if not self.ended or any(run.error for run in self.nudged):
            return False

        for run in self.ended[1:]:
            if self.of(run) is Sameness.DIFFERS and self._may_be_rounding(run):
                return True
        return False

    def _may_be_rounding(self, run: Run) -> bool:
        """Return whether a run began as the reference did, and all its numbers are finite.

        A fault shows in the loss of the first step, which rounding hardly changes.
        """
        difference = compare(run, self.reference, self.initial)
        total = difference.loss.largest + difference.norm.largest + difference.weights
        return difference.loss.first <= self.bounds.first and not math.isnan(total)

    def of(self, run: Run) -> Sameness:
        """Return whether a run that ended is the same as the reference."""
        nudged = [other for other in self.nudged if not other.error]
        steps = judge(run, self.reference, ("loss", "grad_norm"), self.bounds, nudged)
        assert steps is not None, "every step is logged"
        if steps in (Sameness.UNKNOWN, Sameness.DIFFERS):
            return Sameness.DIFFERS

        weights = _weights_gap(run, self.reference, self.initial)
        if weights <= self.bounds.weights:
            return steps
        strayed = [_weights_gap(other, self.reference, self.initial) for other in nudged]
        if weights <= NUDGE_FACTOR * max(strayed, default=0.0):
            return Sameness.ROUNDING
        return Sameness.DIFFERS

    def report(self, splits: Mapping[str, Split]) -> bool:
        """Print the table of the runs and the verdict; return whether all are the same.

        Args:
            splits: how each run splits the global batch, by name; nudged runs as the reference.
        """
        found = {run.name: self.of(run) for run in self.ended[1:]}
        rows = [["", "strategy", "batch", "first loss", "loss", "norm", "weights", "verdict"]]
        for run in self.runs:
            rows.append(self._row(run, splits[run.name], found))
        for run in self.nudged:
            rows.append(self._row(run, splits[self.reference.name], found))

        print("\n".join(columns(rows)))
        print(
            "largest relative differences from the reference over all steps; "
            "weights: relative to the way they moved"
        )
        for run in [*self.runs, *self.nudged]:
            if run.error:
                print(f"{run.name}: {run.error}")

        same = len(self.ended) == len(self.runs) and Sameness.DIFFERS not in found.values()
        self._print_conclusion(same, Sameness.ROUNDING in found.values())
        for run in self.ended[1:]:
            if found[run.name] is Sameness.DIFFERS:
                self._print_first_difference(run)
        return same

    def _row(self, run: Run, split: Split, found: Mapping[str, Sameness]) -> list[str]:
        """Return a row of the table.

        Args:
            run: of the row.
            split: how it splits the global batch.
            found: the verdicts by name; those of nudged runs and the reference are not among them.
        """
        numbers = [""] * 4
        if run.error:
            verdict = "failed"
        elif run is self.reference:
            verdict = "reference"
        else:
            numbers = compare(run, self.reference, self.initial).numbers()
            verdict = found[run.name].value if run.name in found else "nudged"

        batch = f"{split.micro_batch} x {split.accumulation} x {split.world}"
        return [run.name, split.strategy, batch, *numbers, verdict]

    def _print_conclusion(self, same: bool, by_rounding: bool) -> None:
        bounds = self.bounds
        first = f" ({bounds.first:g} at the first step)" if bounds.first != bounds.step else ""
        within = (
            f"within {bounds.step:g}{first} of loss and norm, {bounds.weights:g} of the weights"
        )

        if same and by_rounding:
            print(f"the same within what rounding does to this model: not {within},")
            print(
                f"but no further from the reference than {NUDGE_FACTOR:g} times "
                "where it goes itself from weights"
            )
            print(f"that are nudged by {UNITS} units in the last place", flush=True)
        elif same:
            print(f"the same {within}", flush=True)
        else:
            beyond = ""
            if self.nudged:
                beyond = f", and further than {NUDGE_FACTOR:g} times where rounding leads"
            print(f"NOT the same {within}{beyond}", flush=True)

    def _print_first_difference(self, run: Run) -> None:
        """Print the step at which a run that differs left the bound, and what is special to it."""
        reference = self.reference
        beyond: set[int] = set()
        for key in ("loss", "grad_norm"):
            gaps = relative_gaps(run.curve(key), reference.curve(key))
            beyond.update(step for step, gap in gaps.items() if not gap <= self.bounds.step)
        if not beyond:
            return

        step = min(beyond)
        print(f"{run.name}: beyond the bound from step {step} on")
        if step > 1 and _is_short(step, reference.plan):
            print(
                "  a short step, at the end of an epoch: layouts cut its few examples into "
                "other micro-batches. If drop_last: true"
            )
            print(
                "  makes the runs the same, the model computes an example otherwise beside others: "
                "BatchNorm, a norm or convolution over padding"
            )


def _is_short(step: int, plan: Mapping[str, Any]) -> bool:
    """Return whether a step is the last of an epoch, and has fewer examples than the others."""
    steps_per_epoch = plan.get("steps_per_epoch")
    samples = plan.get("train_samples")
    if steps_per_epoch is None or samples is None:  # a stream
        return False
    rest = samples % plan["global_batch_size"]
    return step % steps_per_epoch == 0 and rest != 0 and not plan.get("drop_last", False)
