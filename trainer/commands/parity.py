"""``trainer parity FILES...``: train the same steps under each accelerate YAML and compare the
numbers.

    trainer parity accel_configs/ddp.yaml accel_configs/fsdp.yaml --config train.yaml --steps 10
    --lr 3e-4

Every run has the same seed and the same global batch; accumulation makes up for the number of
processes. The reference is one process without a launcher; or the first file, where one process
fails (its memory), or where a launch file holds the optimizer.

Where a run leaves the strict bound after the first step, the reference is run again from weights
that are nudged in their last place: a network that chooses (ReLU, max pooling) goes another way
after a rounding, and what strays no further than that is not told from rounding.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

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
)
from .usage import local_text, usage_error

if TYPE_CHECKING:
    from torch import Tensor

ONE_PROCESS = "one process"
# Settings off, because what ends, measures or keeps a model on the way says nothing about the
# steps.
_OFF = {
    "export_dtype": "float32",
    "eval_every": "null",
    "save_every": "null",
    "best_metric": "null",
    "early_stop_patience": "null",
}


@dataclass(frozen=True, kw_only=True)
class Split:
    """The way one run splits the global batch: ``micro_batch`` x ``accumulation`` x ``world``
    samples.
    """

    strategy: str
    world: int
    micro_batch: int
    accumulation: int

    def settings(self) -> dict[str, str]:
        """Return the settings of the training config that make a run split so."""
        return {
            "micro_batch_size": str(self.micro_batch),
            "accumulation_steps": str(self.accumulation),
            "global_batch_size": str(self.micro_batch * self.accumulation * self.world),
        }


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference of a run from the reference.

    Args:
        weights: of all together, relative to the way that the reference's weights have come; NaN
            where one is not a number.
    """

    loss: Gap
    norm: Gap
    weights: float

    def numbers(self) -> list[str]:
        """Return the columns of the table."""
        return [
            f"{value:.1e}"
            for value in (self.loss.first, self.loss.largest, self.norm.largest, self.weights)
        ]


def run(argv: Sequence[str]) -> int:
    """Return 0 where all runs are the same within the bounds, 1 where one differs or failed.

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
    files = ["--config", args.config] if args.config else []
    loaded = load_config([*files, *settings])
    batch = _global_batch(loaded, requests)
    alone = single_process_settings(requests, loaded)
    if alone is not None:
        here = Origin(ONE_PROCESS)
        single = Request(strategy="single", strategy_origin=here, world_size=Sourced(1, here))
        requests = {ONE_PROCESS: single, **requests}
    splits = {name: _split(batch, request, loaded) for name, request in requests.items()}
    shared = {
        **loaded.texts,
        **_OFF,
        "max_steps": str(args.steps),
        "log_every": "1",
        "overwrite": "false",
    }
    shared.pop("output_dir", None)
    if loaded.config.warmup_steps > args.steps:
        shared["warmup_steps"] = str(args.steps)
    first = FirstWeights.of(loaded)

    with tempfile.TemporaryDirectory() as temporary:
        print(f"{args.steps} steps of {batch} samples, seed {loaded.config.seed}", flush=True)
        trials, runs = {}, []
        for number, (name, split) in enumerate(splits.items()):
            folder = Path(args.to or temporary) / f"{number}-{Path(name).stem.replace(' ', '-')}"
            own = {**shared, **(alone or {} if name == ONE_PROCESS else {}), **split.settings()}
            trials[name] = Trial(
                name=name,
                launch_file=None if name == ONE_PROCESS else name,
                script=args.script,
                arguments=[*files, *(f"--{key}={text}" for key, text in own.items())],
                output=folder / "run",
                log=folder / "log.txt",
            )
            runs.append(trials[name].run())
        verdict = Verdict(
            runs=runs,
            initial=first.parameters,
            bounds=_bounds(runs, args.bound, args.weights_bound),
        )
        nudges = 0 if loaded.config.weights is not None else args.nudges
        for number in range(nudges):
            if not verdict.is_open:
                break
            folder = Path(args.to or temporary) / f"nudged-{number + 1}"
            verdict.nudged.append(
                _run_nudged(trials[verdict.reference.name], first, folder, number + 1)
            )
        same = verdict.report(splits)
        if not same and first.dropouts:
            text = f"{first.dropouts} dropout modules draw other numbers on each rank: compare with their p at 0"
            print(text, flush=True)
        if not same and loaded.config.weights is not None:
            print(
                f"weights: {loaded.config.weights}: what rounding does to these was not tried",
                flush=True,
            )
        return 0 if same else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainer parity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="everything else is a setting of the training config, as in --lr 3e-4", allow_abbrev=False,
    )  # fmt: skip
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
    parser.add_argument("--nudges", type=int, default=3, metavar="N",
                        help="runs of the reference from nudged weights, at most, where rounding may explain a "
                        "difference; default %(default)s")  # fmt: skip
    parser.add_argument(
        "--to", type=local_text, help="keep the runs in this new folder; else they are deleted"
    )
    return parser


def single_process_settings(
    requests: Mapping[str, Request], loaded: Loaded
) -> dict[str, str] | None:
    """Return the settings that only the launch files hold, for one process without one; None where
    it has no word.
    """
    if any(request.optimizer or request.scheduler for request in requests.values()):
        return None
    settings = {}
    for key in ("mixed_precision", "max_grad_norm"):
        asked = [
            value for request in requests.values() if (value := getattr(request, key)) is not None
        ]
        if asked and getattr(loaded.config, key) is None:
            settings[key] = str(asked[0].value)
    return settings


def _run_nudged(reference: Trial, first: FirstWeights, folder: Path, seed: int) -> Run:
    weights = folder / f"{NUDGED}{seed}"
    first.write_nudged(weights, seed)
    trial = replace(
        reference,
        name=f"{reference.name}, nudged {seed}",
        arguments=[*reference.arguments, f"--weights={weights}"],
        output=folder / "run",
        log=folder / "log.txt",
    )
    return trial.run()


def _global_batch(loaded: Loaded, requests: Mapping[str, Request]) -> int:
    """Return the config's global batch size, else what the first launch file makes of it."""
    first, config = next(iter(requests.values())), loaded.config
    if config.global_batch_size is not None:
        return config.global_batch_size
    micro = first.micro_batch_size.value if first.micro_batch_size else config.micro_batch_size
    accumulation = (
        first.accumulation_steps.value
        if first.accumulation_steps
        else config.accumulation_steps or 1
    )
    return micro * accumulation * _world_size(first)


def _world_size(request: Request) -> int:
    origin, machines = request.strategy_origin, request.num_machines
    if machines > 1:
        rule = "asks for several machines; the runs are compared on this one"
        raise ConfigError(Problem(origin=origin.named("num_machines"), value=machines, rule=rule))
    if request.world_size is None:
        raise ConfigError(Problem(origin=origin.named("num_processes"), rule="is missing"))
    return request.world_size.value


def _split(batch: int, request: Request, loaded: Loaded) -> Split:
    """Take the largest micro-batch up to the config's that divides a process's share, unless the
    file names one.
    """
    world = _world_size(request)
    share, rest = divmod(batch, world)
    asked_micro, asked_steps = request.micro_batch_size, request.accumulation_steps
    micro = next(
        (n for n in range(min(loaded.config.micro_batch_size, share), 0, -1) if share % n == 0), 0
    )
    if asked_steps is not None:
        micro = share // asked_steps.value
    if asked_micro is not None:
        micro = asked_micro.value
    if (
        rest
        or not micro
        or share % micro
        or (asked_steps is not None and micro * asked_steps.value != share)
    ):
        rule = f"cannot cut the global batch of {batch}; set --global_batch_size to one that all files can cut"
        raise ConfigError(
            Problem(origin=request.strategy_origin.named("num_processes"), value=world, rule=rule)
        )
    return Split(
        strategy=request.strategy, world=world, micro_batch=micro, accumulation=share // micro
    )


def compare(run: Run, reference: Run, initial: Mapping[str, Tensor]) -> Difference:
    """Measure a run against the reference."""
    curves = [(run.curve(key), reference.curve(key)) for key in ("loss", "grad_norm")]
    assert all(one.keys() == other.keys() for one, other in curves), (
        "the same data, batch and steps"
    )
    loss, norm = (measure_gap(one, other) for one, other in curves)
    assert loss and norm, "every step is logged"
    return Difference(loss=loss, norm=norm, weights=_weights_gap(run, reference, initial))


def _weights_gap(run: Run, reference: Run, initial: Mapping[str, Tensor]) -> float:
    from safetensors import safe_open

    apart = way = 0.0
    with (
        safe_open(_model_file(run), "pt") as ours,
        safe_open(_model_file(reference), "pt") as theirs,
    ):
        for name in set(initial) & set(theirs.keys()):
            there = theirs.get_tensor(name).double()
            apart += float((ours.get_tensor(name).double() - there).square().sum())
            way += float((there - initial[name].double()).square().sum())
    return math.sqrt(apart / way) if way else math.nan


def _model_file(run: Run) -> Path:
    from ..checkpoint.export import exported_file

    path = exported_file(Path(run.path) / "model")
    assert path is not None, "a run that ended has written its model"
    return path


def _bounds(runs: Sequence[Run], bound: float | None, weights_bound: float | None) -> Bounds:
    """Return the bounds: where one of the runs computes in less than the others, its bounds count
    for all.
    """
    precisions = [BOUNDS[precision_of(run.plan)] for run in runs if not run.error]
    bounds = max(precisions, key=lambda one: one.step, default=BOUNDS["no"])
    if bound is not None:
        bounds = replace(bounds, first=bound, step=bound)
    if weights_bound is not None:
        bounds = replace(bounds, weights=weights_bound)
    return bounds


@dataclass(kw_only=True)
class Verdict:
    """Which runs are the same as the reference, the first that ended.

    Args:
        runs: in their order.
        initial: the weights that all began with.
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
        """Tell whether a run differs by what rounding may have done, as far as the nudged runs so
        far can tell.
        """
        if not self.ended or any(run.error for run in self.nudged):
            return False
        return any(
            self._may_be_rounding(run) for run in self.ended[1:] if self.of(run) is Sameness.DIFFERS
        )

    def _may_be_rounding(self, run: Run) -> bool:
        """Tell whether a run began as the reference: a fault shows in the first step, which
        rounding leaves alone.
        """
        off = compare(run, self.reference, self.initial)
        return off.loss.first <= self.bounds.first and not math.isnan(
            off.loss.largest + off.norm.largest + off.weights
        )

    def of(self, run: Run) -> Sameness:
        """Return whether a run that ended is the same as the reference."""
        nudged = [one for one in self.nudged if not one.error]
        steps = judge(run, self.reference, ("loss", "grad_norm"), self.bounds, nudged)
        assert steps is not None, "every step is logged"
        weights = _weights_gap(run, self.reference, self.initial)
        if steps in (Sameness.UNKNOWN, Sameness.DIFFERS):
            return Sameness.DIFFERS
        if weights <= self.bounds.weights:
            return steps
        carried = [_weights_gap(one, self.reference, self.initial) for one in nudged]
        return (
            Sameness.ROUNDING
            if weights <= NUDGE_FACTOR * max(carried, default=0.0)
            else Sameness.DIFFERS
        )

    def report(self, splits: Mapping[str, Split]) -> bool:
        """Print the table of the runs and the verdict; return whether all are the same."""
        found = {run.name: self.of(run) for run in self.ended[1:]}
        rows = [["", "strategy", "batch", "first loss", "loss", "norm", "weights", "verdict"]]
        for run in [*self.runs, *self.nudged]:
            split = splits.get(run.name, splits[self.reference.name] if self.ended else None)
            assert split is not None, "only runs of the reference are nudged"
            numbers, verdict = [""] * 4, "failed" if run.error else "reference"
            if not run.error and run is not self.reference:
                numbers = compare(run, self.reference, self.initial).numbers()
                verdict = found[run.name].value if run.name in found else "nudged"
            batch = f"{split.micro_batch} x {split.accumulation} x {split.world}"
            rows.append([run.name, split.strategy, batch, *numbers, verdict])
        print("\n".join(columns(rows)))
        print(
            "largest relative differences from the reference over all steps; weights: relative to the way they moved"
        )
        for run in [*self.runs, *self.nudged]:
            if run.error:
                print(f"{run.name}: {run.error}")
        return self._conclude(list(found.values()))

    def _conclude(self, found: Sequence[Sameness]) -> bool:
        same = len(self.ended) == len(self.runs) and Sameness.DIFFERS not in found
        bounds = self.bounds
        first = f" ({bounds.first:g} at the first step)" if bounds.first != bounds.step else ""
        within = (
            f"within {bounds.step:g}{first} of loss and norm, {bounds.weights:g} of the weights"
        )
        if same and Sameness.ROUNDING in found:
            print(f"the same within what rounding does to this model: not {within},")
            print(
                f"but no further from the reference than {NUDGE_FACTOR:g} times where it goes itself from weights"
            )
            print(f"that are nudged by {UNITS} units in the last place", flush=True)
        elif same:
            print(f"the same {within}", flush=True)
        else:
            beyond = (
                f", and further than {NUDGE_FACTOR:g} times where rounding leads"
                if self.nudged
                else ""
            )
            print(f"NOT the same {within}{beyond}", flush=True)
        return same
