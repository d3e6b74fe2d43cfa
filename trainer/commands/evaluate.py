r"""``trainer evaluate RUN | MODEL``: measure a model on evaluation sets, without training.

    trainer evaluate runs/digits
    trainer evaluate runs/digits/best --predictions predictions.jsonl
    trainer evaluate runs/digits/checkpoints/step-00000040
    trainer evaluate path/to/model --config digits.yaml --evaluation_batch_size 64
    accelerate launch --config_file accel_configs/fsdp.yaml -m trainer evaluate runs/digits
    torchrun --nproc_per_node 2 -m trainer evaluate runs/digits \
        --accel_config accel_configs/fsdp.yaml

RUN is the folder of a run: the exported model is measured with the run's task and settings. A
folder of safetensors needs a --config. The values are printed, and written to
RUN/evaluations/NAME.json. NAME is the measured folder (model, best, step-00000040). No other file
of the run is touched, so the run may be training.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..checkpoint.discover import inspect
from ..checkpoint.export import exported_file
from ..checkpoint.store import MANIFEST
from ..checkpoint.untrusted import read_json
from ..config.fingerprint import task_facts
from ..config.train_config import TrainConfig
from ..distributed.exit import run_and_exit
from ..distributed.main_process import is_main
from ..errors import TrainerError, usage_error
from ..reporting.directory import json_text
from ..script import launch_as, load_config, load_task
from ..text import metrics_text
from .runs import read_run
from .usage import local_path, local_text

if TYPE_CHECKING:
    from ..config.load import Loaded
    from ..task import Task

CONFIG, PLAN = "config.yaml", "plan.json"

# Settings of a training alone.
_WITHOUT_TRAINING: dict[str, Any] = {
    "resume": "none",
    "overwrite": False,
    "global_batch_size": None,
    "accumulation_steps": None,
    "keep_every": None,
}


def run(argv: Sequence[str]) -> NoReturn:
    """Evaluate, and end the process with the right exit code."""
    run_and_exit(lambda: evaluate(argv))


def evaluate(argv: Sequence[str]) -> dict[str, float]:
    """Evaluate as the command does, without leaving the process. Return the values.

    Collective: call on every rank.

    Raises:
        ConfigError, LaunchError, DataError, CheckpointError: before the first batch.
    """
    from ..builder import build_for_evaluation
    from .predictions import write_predictions

    args, words = _read_arguments(argv)
    weights, of_run = find_model(args.target)
    loaded, task, config = _load(args.config, words, weights, of_run)
    launched = launch_as(loaded, task, config)
    own = None if of_run else task.for_model(weights)  # a task that reads the files itself
    folder = weights if own is None else None
    run = build_for_evaluation(own or task, config, folder, launched, origins=loaded.origins)
    position = run.position
    position.step, position.samples = _trained(weights, of_run)
    run.say(f"evaluates {weights} (step {position.step:,})")
    for notice in run.notices:
        run.say(f"note: {notice}")

    sets = run.evaluator.chosen(args.sets.split(",") if args.sets else None)
    predicted = {}
    for name, evaluation_set in sets.items() if args.predictions else ():
        file = args.predictions.with_suffix(f".{name}.jsonl" if name else ".jsonl")
        count = predicted[str(file)] = write_predictions(run, evaluation_set, file)
        run.say(f"predictions: {file}, {count:,} examples")

    values = run.evaluate(sets)
    if run.stopping:
        raise TrainerError("stopped by a signal; no values were written")
    run.say(metrics_text(values))
    out = args.out
    if out is None and of_run is not None:
        out = of_run / "evaluations" / f"{weights.resolve().name}.json"
    if out is not None:
        record = {
            **run.facts,
            "evaluated": str(weights),
            "step": position.step,
            "samples": position.samples,
            "predictions": predicted,
            "values": values,
        }
        run.agreement.run_on_main(lambda: _write(out, record))
        run.say(f"values: {out}")
    run.close()
    return values


def _write(path: Path, record: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json_text(record))


def _read_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of this command, and the other words: settings of the config."""
    parser = argparse.ArgumentParser(
        prog="trainer evaluate",
        usage="%(prog)s RUN|MODEL [options] [--key value ...]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="all other words are settings of the training config: --task_settings.split test",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("target", type=local_path, metavar="RUN|MODEL")
    add("--config", type=local_text, help="by default that of the run")
    add("--sets", metavar="NAMES", help="such as clean,noisy; by default all")
    add("--out", type=local_path, metavar="FILE", help="JSON file of the values")
    told = "write the results of Task.prediction_step; FILE.NAME.jsonl for a set with a name"
    add("--predictions", type=local_path, metavar="FILE.jsonl", help=told)
    args, words = parser.parse_known_args(argv)
    if args.predictions and args.predictions.suffix != ".jsonl":
        parser.error("--predictions: FILE.jsonl is needed, with this ending")
    return args, words


def find_model(target: Path) -> tuple[Path, Path | None]:
    """Return the folder of a model or checkpoint, and the folder of the run, if there is a run.

    Args:
        target: folder of a run, of a checkpoint, or of a model.

    Raises:
        ConfigError: there is no such model.
    """
    folder = target / "model" if _is_run(target) else target
    if not (folder / MANIFEST).exists() and exported_file(folder) is None:
        rule = "holds no model (safetensors) and no checkpoint; of a run that has not ended give "
        raise usage_error("", str(folder), f"{rule}RUN/checkpoints/NAME")
    return folder, next((path for path in folder.resolve().parents[:2] if _is_run(path)), None)


def _is_run(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and (folder / PLAN).is_file()


def _trained(weights: Path, of_run: Path | None) -> tuple[int, int]:
    """Return the steps and samples of a model's training. 0 if no file tells."""
    facts = inspect(weights).manifest
    for file in (weights / "best.json", (of_run or weights) / "summary.json"):
        if not facts and file.is_file():
            facts = read_json(file)
    return facts.get("step", facts.get("steps", 0)), facts.get("samples", 0)


def _load(
    config_file: str | None, words: Sequence[str], weights: Path, of_run: Path | None
) -> tuple[Loaded, Task, TrainConfig]:
    """Return the command line and the config, the task, and the config for an evaluation.

    Raises:
        ConfigError: the config is missing or wrong.
    """
    plan: Mapping[str, Any] = {}
    if of_run is not None:
        plan = read_run(of_run).plan
        config_file = config_file or str(of_run / CONFIG)
    if config_file is None:
        raise usage_error("", str(weights), "belongs to no run; add --config FILE")

    folder = plan.get("task_folder")  # of the script that trained the run
    if folder and folder not in sys.path:
        if is_main():  # the code in the folder is a program, and plan.json may come from anybody
            print(f"note: {PLAN} of the run names {folder}: code is imported from it")
        sys.path.append(folder)
    loaded = load_config(["--config", config_file, *words])
    for key in loaded.texts.keys() & {"weights", "output_dir", *_WITHOUT_TRAINING}:
        raise usage_error(key, loaded.texts[key], "is no setting of an evaluation")
    task, config = load_task(loaded)
    # A script may have built the task with settings that the config does not have.
    now = json.loads(json_text(task_facts(task, config.task)["task_settings"]))
    for name, value in plan.get("task_settings", {}).items():
        key = f"task_settings.{name}"
        is_typed = any(text.startswith(key) for text in loaded.texts)
        if now.get(name, value) != value and not is_typed:
            rule = f"the run was trained with {value!r}; add --{key} VALUE"
            raise usage_error(key, now[name], rule)
    changes = {**_WITHOUT_TRAINING, "output_dir": str(of_run or weights)}
    changes["micro_batch_size"] = config.micro_batch_size or plan.get("micro_batch_size", 8)
    return loaded, task, dataclasses.replace(config, **changes)
