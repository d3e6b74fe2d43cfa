"""``trainer parity FILES...``: train the same steps under each accelerate YAML and compare the
numbers.

    trainer parity accel_configs/ddp.yaml accel_configs/fsdp.yaml \\
        --config train.yaml --steps 10 --lr 3e-4

Every run has the same seed and the same global batch (--global_batch_size): accumulation makes up
for the number of processes. The reference is a single process without a launcher. The first file is
the reference if the single process fails, or if a launch file holds the optimizer.

If a run leaves the strict bound after the first step, the reference is run again from weights that
are nudged in the last place: a network that chooses (ReLU, max pooling) takes another way after a
rounding. Dropout draws other numbers on each rank: compare with p at 0.

With --to the runs are kept: trainer compare DIR/runs/* shows their curves.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.train_config import TrainConfig
from ..errors import usage_error
from ..launching.files.accelerate_file import read_accelerate_file
from ..launching.request import Request
from ..script import load_config
from ..text import columns
from .curves import EXACT, Bounds, Gaps, Sameness, Verdict, bounds_of, gaps_of, judge
from .nudged import NUDGED, first_weights, is_nudged, write_nudged
from .runs import Run
from .trials import train
from .usage import local_text

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
    config = loaded.config
    if config.global_batch_size is None:
        raise usage_error("global_batch_size", None, "is missing: the batch that all runs share")
    for path, request in requests.items():
        if request.num_machines > 1:
            raise usage_error("", path, "has num_machines above 1; runs start on this machine")

    warmup_steps = min(config.warmup_steps, args.steps)
    shared = {**loaded.texts, **_OFF, "max_steps": args.steps, "warmup_steps": warmup_steps}
    words += [f"--{key}={value}" for key, value in shared.items()]

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.to or temporary)
        alone = _one_process(requests, config)
        layouts: dict[str, tuple[str | None, list[str]]] = {}
        layouts |= {} if alone is None else {"0-one-process": (None, [*words, *alone])}
        for path in requests:  # numbered, because two files may have the same name
            layouts[f"{len(layouts)}-{Path(path).stem}"] = path, words
        runs = [train(name, *layout, folder) for name, layout in layouts.items()]
        ended = [run for run in runs if not run.error]
        if not ended:
            return _report(runs, {}, EXACT)

        file, first = first_weights(loaded)

        def gaps_from_reference(run: Run) -> Gaps:
            gaps = {key: gaps_of(run, reference, key) for key in ("loss", "grad_norm")}
            model, other = (Path(each.path) / "model" / file for each in (run, reference))
            return {**gaps, "weights": {args.steps: _weights_gap(model, other, first)}}

        reference, *others = ended
        bounds = max((bounds_of(run.plan) for run in ended), key=lambda bounds: bounds.step)
        gaps = {run.name: gaps_from_reference(run) for run in others}
        verdicts = {name: judge(own, bounds) for name, own in gaps.items()}
        unknown = {name for name in gaps if verdicts[name].sameness is Sameness.UNKNOWN}
        nudged: list[Gaps] = []
        # Weights that the config names are not nudged: the key is taken.
        while unknown and config.weights is None and len(nudged) < args.nudges:
            seed = len(nudged) + 1
            weights = folder / "weights" / f"{NUDGED}{seed}"
            write_nudged(first, weights / file, seed)
            path, arguments = layouts[reference.name]
            runs.append(train(f"nudged-{seed}", path, [*arguments, f"--weights={weights}"], folder))
            if runs[-1].error:
                break
            nudged.append(gaps_from_reference(runs[-1]))
            verdicts = {name: judge(own, bounds, nudged) for name, own in gaps.items()}
            if all(verdicts[name].sameness is Sameness.ROUNDING for name in unknown):
                break
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
    add("--steps", type=int, default=10, help="optimizer steps of each run; default %(default)s")
    add("--nudges", type=int, default=3, metavar="N", help="nudged runs at most; default 3")
    add("--to", type=local_text, metavar="DIR", help="keep the runs in DIR/runs, a new folder")
    return parser


def _one_process(requests: Mapping[str, Request], config: TrainConfig) -> list[str] | None:
    """Return the settings of the run of a single process that only launch files hold.

    Returns:
        None if a launch file holds the optimizer or the schedule: the training config has no such
        setting.
    """
    words: dict[str, str] = {}
    for request in requests.values():
        if request.optimizer or request.scheduler:
            return None
        for key in ("mixed_precision", "max_grad_norm"):
            found = getattr(request, key)
            if found is not None and getattr(config, key) is None:
                words.setdefault(key, f"--{key}={found.value}")
    return [*words.values()]


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
            numbers = [f"{gap:.1e}" for gap in verdicts[run.name].largest.values()]
            word = verdicts[run.name].sameness.value
        rows.append([run.name, batch, *numbers, word])
    print("\n".join(columns(rows)))
    print("largest relative differences; weights: relative to how far they moved")

    wrong = [f"{run.name}: {run.error}" for run in runs if run.error]
    for name, verdict in verdicts.items():
        if verdict.sameness in (Sameness.UNKNOWN, Sameness.DIFFERS):
            wrong.append(f"{name}: {verdict}")
    within = f"within {bounds.step:g} of loss and norm, {bounds.weights:g} of the weights"
    if any(verdict.sameness is Sameness.ROUNDING for verdict in verdicts.values()):
        within = f"within what rounding does to this model, not {within}"
    print("\n".join([f"{'NOT ' if wrong else ''}the same {within}", *wrong]))
    return int(bool(wrong))


def _weights_gap(run: Path, reference: Path, initial: Mapping[str, Tensor]) -> float:
    """Return the distance of all weights together, relative to how far the reference's moved.

    Args:
        run, reference: model files.
        initial: the first weights, by name in the files.
    """
    from safetensors.torch import load_file
    from torch.nn import Parameter

    found, expected = load_file(run), load_file(reference)
    distance, way = 0.0, 0.0
    for name in expected:
        if isinstance(initial.get(name), Parameter):
            end = expected[name].double()
            distance += float((found[name].double() - end).square().sum())
            way += float((end - initial[name].detach().double()).square().sum())
    return math.sqrt(distance / way) if way else math.nan
