"""``trainer parity FILES...``: train the same steps under each accelerate YAML and compare the numbers.

    trainer parity accel_configs/ddp.yaml accel_configs/fsdp.yaml --config train.yaml --steps 10 --lr 3e-4

Every run has the same seed and the same global batch; accumulation makes up for the number of processes. The reference
is one process without a launcher; or the first file, where one process fails (its memory), or where a launch file
holds the optimizer.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.load import Loaded, load_config
from ..errors import ConfigError, Origin, Problem, Sourced
from ..launching.files.accelerate_file import read_accelerate_file
from ..launching.request import Request
from ..script import load_task
from ..text import columns
from .runs import Run
from .trials import BOUNDS, Bounds, Gap, Trial, check_script, measure_gap, precision_of
from .usage import local_text, usage_error

if TYPE_CHECKING:
    from torch import Tensor

ONE_PROCESS = "one process"
# Settings off, because what ends, measures or keeps a model on the way says nothing about the steps.
_OFF = {"eval_every": "null", "save_every": "null", "best_metric": "null", "early_stop_patience": "null"}


@dataclass(frozen=True, kw_only=True)
class Split:
    """The way one run splits the global batch: ``micro_batch`` x ``accumulation`` x ``world`` samples."""

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
        weights: of all together, relative to the way that the reference's weights have come; NaN where one is not a
            number.
    """

    loss: Gap
    norm: Gap
    weights: float

    def within(self, bounds: Bounds) -> bool:
        """Tell whether the runs count as the same."""
        steps = self.loss.largest <= bounds.step and self.norm.largest <= bounds.step
        return self.loss.first <= bounds.first and steps and self.weights <= bounds.weights


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
    shared = {**loaded.texts, **_OFF, "max_steps": str(args.steps), "log_every": "1", "overwrite": "false"}
    shared.pop("output_dir", None)
    if loaded.config.warmup_steps > args.steps:
        shared["warmup_steps"] = str(args.steps)
    initial, dropouts = _initial_weights(loaded)

    with tempfile.TemporaryDirectory() as temporary:
        print(f"{args.steps} steps of {batch} samples, seed {loaded.config.seed}", flush=True)
        runs = []
        for number, (name, split) in enumerate(splits.items()):
            folder = Path(args.to or temporary) / f"{number}-{Path(name).stem.replace(' ', '-')}"
            own = {**shared, **(alone or {} if name == ONE_PROCESS else {}), **split.settings()}
            trial = Trial(
                name=name,
                launch_file=None if name == ONE_PROCESS else name,
                script=args.script,
                arguments=[*files, *(f"--{key}={text}" for key, text in own.items())],
                output=folder / "run",
                log=folder / "log.txt",
            )
            runs.append(trial.run())
        same = _report(runs, splits, initial, bound=args.bound, weights_bound=args.weights_bound)
        if not same and dropouts:
            print(f"{dropouts} dropout modules draw other numbers on each rank: compare with their p at 0", flush=True)
        return 0 if same else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainer parity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="everything else is a setting of the training config, as in --lr 3e-4", allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("files", nargs="+", metavar="FILE", help="accelerate YAMLs; before the config's own settings")
    parser.add_argument("--config", help="the training config")
    parser.add_argument("--script", help="your training script; not needed where the config names the task")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps of each run; default %(default)s")
    parser.add_argument("--bound", type=float, help="for loss and gradient norm; default: by precision")
    parser.add_argument("--weights_bound", type=float, help="for the weights; default: by precision")
    parser.add_argument("--to", type=local_text, help="keep the runs in this new folder; else they are deleted")
    return parser


def single_process_settings(requests: Mapping[str, Request], loaded: Loaded) -> dict[str, str] | None:
    """Return the settings that only the launch files hold, for one process without one; None where it has no word."""
    if any(request.optimizer or request.scheduler for request in requests.values()):
        return None
    settings = {}
    for key in ("mixed_precision", "max_grad_norm"):
        asked = [value for request in requests.values() if (value := getattr(request, key)) is not None]
        if asked and getattr(loaded.config, key) is None:
            settings[key] = str(asked[0].value)
    return settings


def _initial_weights(loaded: Loaded) -> tuple[dict[str, Tensor], int]:
    """Build the model as every run does, on the CPU.

    Returns:
        Its parameters, by their names in a model file, and how many dropout modules it has.
    """
    from torch.nn.modules.dropout import _DropoutNd

    from ..checkpoint.export import ModelFile
    from .whole_model import build_whole

    task, _ = load_task(loaded)
    task.build_data()  # a model may be built after what the data prepared
    model = build_whole(task, loaded.config.seed)
    form = ModelFile.of(model)
    weights = {form.name(name) or "": parameter.detach() for name, parameter in model.named_parameters()}
    return weights, sum(isinstance(module, _DropoutNd) and module.p > 0 for module in model.modules())


def _global_batch(loaded: Loaded, requests: Mapping[str, Request]) -> int:
    """Return the config's global batch size, else what the first launch file makes of it."""
    first, config = next(iter(requests.values())), loaded.config
    if config.global_batch_size is not None:
        return config.global_batch_size
    micro = first.micro_batch_size.value if first.micro_batch_size else config.micro_batch_size
    accumulation = first.accumulation_steps.value if first.accumulation_steps else config.accumulation_steps or 1
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
    """Take the largest micro-batch up to the config's that divides a process's share, unless the file names one."""
    world = _world_size(request)
    share, rest = divmod(batch, world)
    asked_micro, asked_steps = request.micro_batch_size, request.accumulation_steps
    micro = next((n for n in range(min(loaded.config.micro_batch_size, share), 0, -1) if share % n == 0), 0)
    if asked_steps is not None:
        micro = share // asked_steps.value
    if asked_micro is not None:
        micro = asked_micro.value
    if rest or not micro or share % micro or (asked_steps is not None and micro * asked_steps.value != share):
        rule = f"cannot cut the global batch of {batch}; set --global_batch_size to one that all files can cut"
        raise ConfigError(Problem(origin=request.strategy_origin.named("num_processes"), value=world, rule=rule))
    return Split(strategy=request.strategy, world=world, micro_batch=micro, accumulation=share // micro)


def compare(run: Run, reference: Run, initial: Mapping[str, Tensor]) -> Difference:
    """Measure a run against the reference."""
    curves = [(run.curve(key), reference.curve(key)) for key in ("loss", "grad_norm")]
    assert all(one.keys() == other.keys() for one, other in curves), "the same data, batch and steps"
    loss, norm = (measure_gap(one, other) for one, other in curves)
    assert loss and norm, "every step is logged"
    return Difference(loss=loss, norm=norm, weights=_weights_gap(run, reference, initial))


def _weights_gap(run: Run, reference: Run, initial: Mapping[str, Tensor]) -> float:
    from safetensors import safe_open

    apart = way = 0.0
    with safe_open(_model_file(run), "pt") as ours, safe_open(_model_file(reference), "pt") as theirs:
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


def _report(
    runs: Sequence[Run],
    splits: Mapping[str, Split],
    initial: Mapping[str, Tensor],
    *,
    bound: float | None,
    weights_bound: float | None,
) -> bool:
    """Print the table of the runs and the verdict; return whether all are the same."""
    ended = [run for run in runs if not run.error]
    # Where one of the runs computes in less than the others, its bounds count for all.
    bounds = max((BOUNDS[precision_of(run.plan)] for run in ended), key=lambda one: one.step, default=BOUNDS["no"])
    if bound is not None:
        bounds = replace(bounds, first=bound, step=bound)
    if weights_bound is not None:
        bounds = replace(bounds, weights=weights_bound)
    rows, same = (
        [["", "strategy", "batch", "first loss", "loss", "norm", "weights", "verdict"]],
        len(ended) == len(runs),
    )
    for run in runs:
        split, numbers = splits[run.name], [""] * 4
        verdict = "failed" if run.error else "reference"
        if not run.error and run is not ended[0]:
            off = compare(run, ended[0], initial)
            numbers = [f"{value:.1e}" for value in (off.loss.first, off.loss.largest, off.norm.largest, off.weights)]
            verdict = "same" if off.within(bounds) else "differs"
            same = same and off.within(bounds)
        batch = f"{split.micro_batch} x {split.accumulation} x {split.world}"
        rows.append([run.name, split.strategy, batch, *numbers, verdict])
    print("\n".join(columns(rows)))
    print("largest relative differences from the reference over all steps; weights: relative to the way they moved")
    for run in runs:
        if run.error:
            print(f"{run.name}: {run.error}")
    answer = "the same" if same else "NOT the same"
    first = f" ({bounds.first:g} at the first step)" if bounds.first != bounds.step else ""
    print(f"{answer} within {bounds.step:g}{first} of loss and norm, {bounds.weights:g} of the weights", flush=True)
    return same
