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
from ..errors import COMMAND_LINE, ConfigError, Origin, Problem, Sourced
from ..launching.files.read import read_accelerate_file
from ..launching.request import Request
from ..main import load_task
from .trial import BOUNDS, ONE, Bounds, Cut, Gap, Result, check_script, gap, try_out

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far a run is from the reference; ``weights`` relative to the way that the reference's weights have come, by
    the norm of all together. NaN where a value is not a number."""

    loss: Gap
    norm: Gap
    weights: float

    def within(self, bounds: Bounds) -> bool:
        steps = self.loss.largest <= bounds.step and self.norm.largest <= bounds.step
        return self.loss.first <= bounds.first and steps and self.weights <= bounds.weights


def run(argv: Sequence[str]) -> int:
    """0: all runs are the same within the bounds. 1: one differs, or failed. Raises ConfigError for wrong files."""
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
    parser.add_argument("--to", help="keep the runs in this new folder; else they are deleted")
    args, typed = parser.parse_known_args(argv)

    check_script(args.script)
    if args.to and Path(args.to).exists():
        raise _wrong("to", args.to, "exists already; give a new folder")
    if args.script is not None:
        sys.path.insert(0, str(Path(args.script).resolve().parent))
    requests = {path: read_accelerate_file(path) for path in args.files}
    files = ["--config", args.config] if args.config else []
    loaded = load_config([*files, *typed])
    batch = _global_batch(loaded, requests)
    alone = _alone(requests, loaded)
    if alone is not None:
        one = Request(strategy="single", strategy_origin=Origin(ONE), world_size=Sourced(1, Origin(ONE)))
        requests = {ONE: one, **requests}
    cuts = {name: _cut(batch, request, loaded) for name, request in requests.items()}
    settings = dict(loaded.texts)
    if loaded.config.warmup_steps > args.steps:
        settings["warmup_steps"] = str(args.steps)
    from torch.nn.modules.dropout import _DropoutNd

    from ..checkpoint.export import ModelFile  # after the mistakes that need no torch

    model = build_model(loaded)
    form = ModelFile.of(model)
    initial = {form.name(name) or "": parameter.detach() for name, parameter in model.named_parameters()}
    dropouts = sum(isinstance(module, _DropoutNd) and module.p > 0 for module in model.modules())

    with tempfile.TemporaryDirectory() as temporary:
        print(f"{args.steps} steps of {batch} samples, seed {loaded.config.seed}", flush=True)
        results = []
        for number, (name, cut) in enumerate(cuts.items()):
            print(f"{name} ...", flush=True)
            place = Path(args.to or temporary) / f"{number}-{Path(name).stem.replace(' ', '-')}"
            more = settings | (alone or {}) if name == ONE else settings
            results.append(try_out(name, cut, place, args.script, files, more, args.steps))
        code = _report(results, initial, bound=args.bound, weights_bound=args.weights_bound)
        if code and dropouts:
            print(f"{dropouts} dropout modules draw other numbers on each rank: compare with their p at 0", flush=True)
        return code


def _alone(requests: Mapping[str, Request], loaded: Loaded) -> dict[str, str] | None:
    """What one process must be told because only the launch files say it; None where it cannot be told."""
    if any(request.optimizer or request.scheduler for request in requests.values()):
        return None
    told = {}
    for key in ("mixed_precision", "max_grad_norm"):
        asked = [value for request in requests.values() if (value := getattr(request, key)) is not None]
        if asked and getattr(loaded.config, key) is None:
            told[key] = str(asked[0].value)
    return told


def build_model(loaded: Loaded) -> nn.Module:
    """Build the model as every run does, on the CPU."""
    from accelerate.utils import set_seed

    task, _ = load_task(loaded)
    task.build_data()  # a model may be built after what the data prepared
    set_seed(loaded.config.seed)
    return task.build_model()


def _global_batch(loaded: Loaded, requests: Mapping[str, Request]) -> int:
    """That of the config, else what the first file makes of it."""
    first, config = next(iter(requests.values())), loaded.config
    if config.global_batch_size is not None:
        return config.global_batch_size
    micro = first.micro_batch_size.value if first.micro_batch_size else config.micro_batch_size
    accumulation = first.accumulation_steps.value if first.accumulation_steps else config.accumulation_steps or 1
    return micro * accumulation * _world(first)


def _world(request: Request) -> int:
    origin, machines = request.strategy_origin, request.num_machines
    if machines > 1:
        rule = "asks for several machines; the runs are compared on this one"
        raise ConfigError(Problem(origin=origin.named("num_machines"), value=machines, rule=rule))
    if request.world_size is None:
        raise ConfigError(Problem(origin=origin.named("num_processes"), rule="is missing"))
    return request.world_size.value


def _cut(batch: int, request: Request, loaded: Loaded) -> Cut:
    """The largest micro-batch up to the config's that divides what a process gets, unless the file says otherwise."""
    world = _world(request)
    each, left = divmod(batch, world)
    asked_micro, asked_steps = request.micro_batch_size, request.accumulation_steps
    micro = next((n for n in range(min(loaded.config.micro_batch_size, each), 0, -1) if each % n == 0), 0)
    if asked_steps is not None:
        micro = each // asked_steps.value
    if asked_micro is not None:
        micro = asked_micro.value
    if left or not micro or each % micro or (asked_steps is not None and micro * asked_steps.value != each):
        rule = f"cannot cut the global batch of {batch}; set --global_batch_size to one that all files can cut"
        raise ConfigError(Problem(origin=request.strategy_origin.named("num_processes"), value=world, rule=rule))
    return Cut(strategy=request.strategy, world=world, micro=micro, accumulation=each // micro)


def compare(result: Result, reference: Result, initial: Mapping[str, Tensor]) -> Difference:
    """Measure a run against the reference."""
    assert result.rows.keys() == reference.rows.keys(), "the same data, batch and steps"
    loss, norm = (gap(result.curve(key), reference.curve(key)) for key in ("loss", "grad_norm"))
    assert loss and norm, "every step is logged"
    return Difference(loss=loss, norm=norm, weights=_moved(result, reference, initial))


def _moved(result: Result, reference: Result, initial: Mapping[str, Tensor]) -> float:
    from safetensors import safe_open

    apart = way = 0.0
    with safe_open(result.model, "pt") as ours, safe_open(reference.model, "pt") as theirs:
        for name in set(initial) & set(theirs.keys()):
            there = theirs.get_tensor(name).double()
            apart += float((ours.get_tensor(name).double() - there).square().sum())
            way += float((there - initial[name].double()).square().sum())
    return math.sqrt(apart / way) if way else math.nan


def _report(
    results: list[Result], initial: Mapping[str, Tensor], *, bound: float | None, weights_bound: float | None
) -> int:
    ran = [result for result in results if not result.error]
    heads = ["", "strategy", "batch", "first loss", "loss", "norm", "weights", "verdict"]
    table, good = [heads], len(ran) == len(results)
    # Where one of the runs computes in less than the others, its bounds count for all.
    bounds = max((BOUNDS[result.precision] for result in ran), key=lambda one: one.step, default=BOUNDS["no"])
    if bound is not None:
        bounds = replace(bounds, first=bound, step=bound)
    if weights_bound is not None:
        bounds = replace(bounds, weights=weights_bound)
    for result in results:
        cut = result.cut
        told = [result.name, cut.strategy, f"{cut.micro} x {cut.accumulation} x {cut.world}"]
        if result.error:
            table.append([*told, "", "", "", "", "failed"])
        elif result is ran[0]:
            table.append([*told, "", "", "", "", "reference"])
        else:
            off = compare(result, ran[0], initial)
            same = off.within(bounds)
            good = good and same
            numbers = [f"{value:.1e}" for value in (off.loss.first, off.loss.largest, off.norm.largest, off.weights)]
            table.append([*told, *numbers, "same" if same else "differs"])
    widths = [max(len(row[column]) for row in table) for column in range(len(heads))]
    for row in table:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    print("largest relative differences from the reference over all steps; weights: relative to the way they moved")
    for result in results:
        if result.error:
            print(f"{result.name}: {result.error}")
    verdict = "the same" if good else "NOT the same"
    first = f" ({bounds.first:g} at the first step)" if bounds.first != bounds.step else ""
    print(f"{verdict} within {bounds.step:g}{first} of loss and norm, {bounds.weights:g} of the weights", flush=True)
    return 0 if good else 1


def _wrong(key: str, value: str, rule: str) -> ConfigError:
    return ConfigError(Problem(origin=Origin(COMMAND_LINE, key=key), value=value, rule=rule))
