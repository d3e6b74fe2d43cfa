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

With --to the runs are kept, and DIR/compare.html shows their curves.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..config.train_config import TrainConfig
from ..errors import ConfigError, usage_error
from ..launching.files.accelerate_file import read_accelerate_file
from ..launching.request import Request
from ..script import load_config
from ..text import columns
from .curves import EXACT, Bounds, Gaps, bounds_of, gaps_of, judge, largest
from .page import write_page
from .runs import Run
from .trials import train
from .usage import command_parser, local_text

# Every run trains all steps, without evaluations and checkpoints, which are not compared.
_OFF = (
    "--eval_every=null",
    "--sanity_evaluation=false",
    "--save_every=null",
    "--best_metric=null",
    "--early_stop_patience=null",
    "--push_to_hub=null",
    "--log_every=1",
    "--overwrite=false",
)


def run(argv: Sequence[str]) -> int:
    """Train under each launch file, and print how far the runs are from the reference.

    Returns:
        0 if all runs are the same within the bounds, 1 if a run differs or failed.

    Raises:
        ConfigError: a file or a setting is wrong. Nothing was started then.
    """
    args, settings = _parser().parse_known_args(argv)
    requests = {path: read_accelerate_file(path) for path in args.files}
    words = [f"--config={args.config}"] if args.config else []
    words += settings
    config = load_config(words).config
    if config.global_batch_size is None:
        raise usage_error("global_batch_size", None, "is missing: the batch that all runs share")
    for path, request in requests.items():
        if request.num_machines > 1:
            raise usage_error("", path, "has num_machines above 1; runs start on this machine")

    warmup_steps = min(config.warmup_steps, args.steps)
    words += [*_OFF, f"--max_steps={args.steps}", f"--warmup_steps={warmup_steps}"]
    alone = _one_process(requests.values(), config)
    files: list[str | None] = [*requests] if alone is None else [None, *requests]
    # Numbered, because two files may have the same name.
    names = [f"{number}-{Path(file or 'one-process').stem}" for number, file in enumerate(files)]

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.to or temporary)

        def start(name: str, file: str | None, seed: int = 0) -> Run:
            own = [] if file else alone or []
            return train(name, file, seed, [*words, *own], folder)

        runs = [*map(start, names, files)]
        ended = [run for run in runs if not run.error]
        if not ended:
            return _report(runs, {}, {}, EXACT)

        reference = ended[0]

        def gaps_from_reference(run: Run) -> Gaps:
            gaps = {key: gaps_of(run, reference, key) for key in ("loss", "grad_norm")}
            return {**gaps, "weights": {args.steps: _weights_gap(run, reference)}}

        bounds = max(bounds_of(run.plan) for run in ended)
        gaps = {run.name: gaps_from_reference(run) for run in ended}
        nudged: dict[str, Gaps] = {}
        while True:
            verdicts = {name: judge(own, bounds, [*nudged.values()]) for name, own in gaps.items()}
            unsettled = "differs" if nudged else "unknown"
            if len(nudged) >= args.nudges or all(
                word != unsettled for word, _ in verdicts.values()
            ):
                break
            name = f"nudged-{len(nudged) + 1}"
            file = files[runs.index(reference)]
            runs.append(start(name, file, seed=len(nudged) + 1))
            if runs[-1].error:
                break
            nudged[name] = gaps_from_reference(runs[-1])

        verdicts |= {name: ("nudged", "") for name in nudged}
        verdicts[reference.name] = "reference", ""
        return _report(runs, gaps | nudged, verdicts, bounds, args.to)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "parity",
        __doc__,
        epilog="everything else is a setting of the training config, as in --lr 3e-4",
    )
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="accelerate YAMLs, before the settings")
    add("--config", help="the training config")
    add("--steps", type=int, default=10, help="optimizer steps of each run; default %(default)s")
    add("--nudges", type=int, default=3, metavar="N", help="nudged runs at most; default 3")
    add("--to", type=local_text, metavar="DIR", help="keep the runs in DIR/runs, a new folder")
    return parser


def _one_process(requests: Iterable[Request], config: TrainConfig) -> list[str] | None:
    """Return the settings of the run of a single process that only launch files hold.

    Returns:
        None if a launch file holds the optimizer or the schedule: the training config has no such
        setting.
    """
    words = []
    for request in requests:
        if request.optimizer or request.scheduler:
            return None
        for key in ("mixed_precision", "max_grad_norm"):
            found = getattr(request, key)
            if found and getattr(config, key) is None:
                words.append(f"--{key}={found.value}")
    return words


def _report(
    runs: Sequence[Run],
    gaps: Mapping[str, Gaps],
    verdicts: Mapping[str, tuple[str, str]],
    bounds: Bounds,
    to: str | None = None,
) -> int:
    """Print the table of the runs and the verdict, and return the exit code.

    Args:
        runs: all runs, also those from nudged weights.
        gaps: the differences of each run that ended from the reference, by name.
        verdicts: word and text on each run that ended, by name.
        bounds: the differences up to which runs are the same.
        to: the folder for the page of the runs.
    """
    rows = [["run", "batch", "loss", "norm", "weights", "verdict"]]
    wrong = []
    for run in runs:
        if run.error:
            wrong.append(f"{run.name}: {run.error}")
            continue
        batch = "{micro_batch_size} x {accumulation_steps} x {world_size}".format_map(run.plan)
        numbers = [f"{largest(by_step):.1e}" for by_step in gaps[run.name].values()]
        word, text = verdicts[run.name]
        rows.append([run.name, batch, *numbers, word])
        if word in ("unknown", "differs"):
            wrong.append(f"{run.name}: {word}: {text}")

    within = f"within {bounds.step:g} of loss and norm, {bounds.weights:g} of the weights"
    if any("rounding" in row for row in rows):
        within = f"within what rounding does to this model, not {within}"
    head = "largest relative differences; weights: relative to how far they moved"
    text = "\n".join([*columns(rows), head, f"{'NOT ' if wrong else ''}the same {within}", *wrong])
    print(text)
    if to:
        page = Path(to, "compare.html")
        try:
            write_page(page, text, runs)
            print(f"curves: {page}")
        except ConfigError as error:
            print(error)
    return int(bool(wrong))


def _weights_gap(run: Run, reference: Run) -> float:
    """Return the distance of all weights together, relative to how far the reference's moved."""
    import torch
    from safetensors.torch import load_file

    from .nudged import FIRST, LAST

    first, expected = (load_file(Path(reference.path, file)) for file in (FIRST, LAST))
    found = load_file(Path(run.path, LAST))
    distance, way = torch.zeros(2, dtype=torch.double)
    for name, end in expected.items():
        distance += (found[name].double() - end).square().sum()
        way += (first[name].double() - end).square().sum()
    return float((distance / way).sqrt())  # NaN if nothing moved
