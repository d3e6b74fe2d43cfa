"""``trainer parity FILE ...``: train the same steps under each launch file and compare the numbers.

    trainer parity accel_configs/*.yaml train.yaml --steps 10 --lr 3e-4

Every run has the same seed and the same global batch (--global_batch_size): accumulation makes up
for the number of processes. The reference is a single process without a launcher. The first file is
the reference if the single process fails, or if a launch file holds the optimizer.

If a run leaves the strict bound after the first step, the reference is run again from weights that
are nudged in the last place: a network that chooses (ReLU, max pooling) takes another way after a
rounding. Dropout draws other numbers on each rank: compare with p at 0.

With --to the runs are kept, and DIR/compare.html shows their curves.

With --bits each file trains with same_bits: true and then without. The table says the first step
and tensor whose bits differ. The exit code is 1 if bits differ with the mode.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ..callbacks.digest_file import FILE
from ..config.paths import LocalPath
from ..config.train_config import TrainConfig
from ..errors import ConfigError, usage_error
from ..launching.launched import read_launch_file
from ..launching.request import Request
from ..rehearsal.steps_alone import STEPS_ALONE
from ..script import load_config
from ..text import columns
from .bits import first_difference, read_digests
from .curves import EXACT, Bounds, Gaps, bounds_of, gaps_of, judge, largest
from .finished_runs import Run
from .page import write_page
from .trials import train
from .usage import read_training


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    steps: Annotated[int, "optimizer steps of each run", Field(ge=1)] = 10
    nudges: Annotated[int, "nudged runs at most", Field(ge=0)] = 3
    bits: Annotated[bool, "compare bits, with same_bits and without"] = False
    to: Annotated[LocalPath | None, "keep the runs in DIR/runs, a new folder"] = None


def run(options: Options, settings: Sequence[str], words: Sequence[str]) -> int:
    """Train under each launch file, and print how far the runs are from the reference.

    Return 0 if all runs are the same within the bounds, 1 if a run differs or failed.
    """
    training, launch_files = read_training(words, settings)
    config = load_config(training).config
    if not launch_files:
        raise usage_error("", None, "name launch files, as in accel_configs/")
    paths = [file.path for file in launch_files]
    alone = _one_process(map(_request, paths), config)
    if not config.global_batch_size:
        raise usage_error("global_batch_size", None, "is missing: the batch that all runs share")
    training += [
        *STEPS_ALONE,
        "--log_every=1",
        "--overwrite=false",
        f"--max_steps={options.steps}",
        f"--warmup_steps={min(config.warmup_steps, options.steps)}",
    ]
    if alone is not None:
        paths.insert(0, "")
    # Numbered, because two files may have the same name.
    files = {f"{at}-{Path(path or 'one-process').stem}": path for at, path in enumerate(paths)}

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.to or temporary)

        def start(name: str, file: str, seed: int = 0) -> Run:
            callbacks = [*config.callbacks, {"trainer.commands.nudged:Weights": {"seed": seed}}]
            if "--same_bits=false" in training:
                callbacks.append("trainer.callbacks.digest_file:Digests")
            own = [] if file else alone or []
            more = f"--callbacks={json.dumps(callbacks)}"
            return train(name, file, [*training, *own, more], folder)

        if options.bits:
            return _compare_bits(files, start, training)
        runs = [start(*item) for item in files.items()]
        ended = [run for run in runs if not run.error]
        bounds = max((bounds_of(run.plan) for run in ended), default=EXACT)
        gaps = {run.name: _gaps(run, ended[0]) for run in ended}
        nudged: dict[str, Gaps] = {}
        while True:
            verdicts = {name: judge(own, bounds, nudged.values()) for name, own in gaps.items()}
            unsettled = "differs" if nudged else "unknown"
            if len(nudged) == options.nudges or unsettled not in dict(verdicts.values()):
                break
            seed = len(nudged) + 1
            run = start(f"nudged-{seed}", files[ended[0].name], seed)
            runs.append(run)
            if run.error:
                break
            nudged[run.name] = _gaps(run, ended[0])

        verdicts |= dict.fromkeys(nudged, ("nudged", ""))
        verdicts |= {run.name: ("reference", "") for run in ended[:1]}
        return _report(runs, gaps | nudged, verdicts, bounds, options.to)


def _compare_bits(
    files: Mapping[str, str], start: Callable[[str, str], Run], training: list[str]
) -> int:
    """Train under each file with the mode and without, and print the first bits that differ."""
    rows = [["run", "same_bits", "first difference"]]
    is_wrong = False
    for mode in ("true", "false"):
        training.append(f"--same_bits={mode}")
        reference = None
        for name, file in files.items():
            run = start(f"{name}-{mode}", file)
            text = run.error
            if not text:
                attempt, steps = read_digests(Path(run.path, FILE))
                text = "no bit differs" if reference else "reference"
                reference = reference or steps
                text = first_difference(attempt["tensors"], steps, reference) or text
            is_wrong |= mode == "true" and text not in ("reference", "no bit differs")
            rows.append([run.name, mode, text])
    print(columns(rows))
    return is_wrong


def _request(path: str) -> Request:
    """Read a launch file, whose job must run on this machine."""
    request = read_launch_file(path)
    if request.num_machines > 1:
        raise usage_error("", path, "has num_machines above 1; runs start on this machine")
    return request


def _one_process(requests: Iterable[Request], config: TrainConfig) -> list[str] | None:
    """Return the settings that only launch files hold. None if a file holds an optimizer."""
    words = []
    for request in requests:
        for key, found in request.settings.items():
            if key in ("optimizer", "schedule"):
                return None
            if key in ("mixed_precision", "max_grad_norm") and getattr(config, key) is None:
                words.append(f"--{key}={found.value}")
    return words


def _report(
    runs: Sequence[Run],
    gaps: Mapping[str, Gaps],
    verdicts: Mapping[str, tuple[str, str]],
    bounds: Bounds,
    to: str | None,
) -> int:
    """Print the table of the runs and the verdict, and return the exit code."""
    rows = [["run", "batch", "loss", "norm", "weights", "verdict"]]
    wrong = []
    for run in runs:
        word, text = verdicts.get(run.name, ("failed", run.error))
        if word in ("unknown", "differs", "failed"):
            wrong.append(f"{run.name}: {word}: {text}")
        if not run.error:
            batch = "{micro_batch_size} x {accumulation_steps} x {world_size}".format_map(run.plan)
            numbers = [f"{largest(by_step):.1e}" for by_step in gaps[run.name].values()]
            rows.append([run.name, batch, *numbers, word])

    within = f"within {bounds.step:g} of loss and norm, {bounds.weights:g} of the weights"
    if any("rounding" in row for row in rows):
        within = f"within what rounding does to this model, not {within}"
    head = "largest relative differences; weights: relative to how far they moved"
    text = "\n".join([columns(rows), head, "NOT " * bool(wrong) + f"the same {within}", *wrong])
    print(text)
    if to:
        try:
            write_page(Path(to, "compare.html"), text, runs)
            print(f"curves: {to}/compare.html")
        except ConfigError as error:
            print(error)
    return bool(wrong)


def _gaps(run: Run, reference: Run) -> Gaps:
    """Return how far a run is from the reference."""
    gaps = {key: gaps_of(run, reference, key) for key in ("loss", "grad_norm")}
    return {**gaps, "weights": {max(gaps["loss"]): _weights_gap(run, reference)}}


def _weights_gap(run: Run, reference: Run) -> float:
    """Return the distance of all weights together, relative to how far the reference's moved."""
    import torch
    from safetensors.torch import load_file

    from .nudged import FIRST, LAST

    expected = load_file(Path(reference.path, LAST))

    def distance(ended: Run, file: str) -> Any:
        weights = load_file(Path(ended.path, file))
        norms = [(weights[name].double() - end).norm() for name, end in expected.items()]
        return torch.stack(norms).norm()

    # NaN if nothing moved.
    return float(distance(run, LAST) / distance(reference, FIRST))
