r"""``trainer evaluate RUN | MODEL``: measure a model on its evaluation sets, without training.

    trainer evaluate runs/digits
    trainer evaluate runs/digits --best --predictions predictions.jsonl
    trainer evaluate path/to/model --config digits.yaml --evaluation_batch_size 64
    accelerate launch --config_file accel_configs/fsdp.yaml -m trainer evaluate runs/digits
    torchrun --nproc_per_node 2 -m trainer evaluate runs/digits \
        --accel_config accel_configs/fsdp.yaml

RUN is the folder of a run: its exported model is measured with the run's own task and settings. A
folder of safetensors needs a --config. The values are printed, and written to
RUN/evaluations/NAME.json, where NAME is the measured folder (model, best, step-00000120). Nothing
else in the run's folder is touched, so the run may be training.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..checkpoint.untrusted import read_json
from ..config.fingerprint import task_facts
from ..config.train_config import TrainConfig
from ..distributed.exit import run_and_exit
from ..errors import TrainerError
from ..reporting.directory import json_text
from ..script import launch_as, load_config, load_task
from ..text import is_headline
from .evaluated_model import CONFIG, PLAN, EvaluatedModel, find_model
from .usage import local_path, local_text, usage_error

if TYPE_CHECKING:
    from ..config.load import Loaded
    from ..evaluator import MeasuredSet
    from ..run import Run
    from ..task import Task

# Settings of a training that make no sense for the processes that evaluate.
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
    from accelerate.utils import broadcast_object_list

    from ..builder import build_for_evaluation

    args, settings = _read_arguments(argv)
    model = find_model(args.target, best=args.best, checkpoint=args.checkpoint)
    loaded, task, config = _load(args.config, settings, model)
    launched = launch_as(loaded, task, config)
    model = broadcast_object_list([model])[0]  # a run that is training may save in between

    own = task.for_model(model.weights) if model.run is None else None
    weights = model.weights if own is None else None  # such a task reads the files itself
    run = build_for_evaluation(own or task, config, weights, launched, origins=loaded.origins)
    run.position.step, run.position.samples = model.step, model.samples
    plan = run.plan
    run.say(f"evaluates {model.weights} (step {model.step:,}), {plan.strategy} x {plan.world_size}")
    for notice in run.notices:
        run.say(f"note: {notice}")

    sets = run.evaluator.chosen(args.sets.split(",") if args.sets else None)
    record = {"evaluated": str(model.weights), "step": model.step, "samples": model.samples}
    record["predictions"] = _predict(run, sets, args.predictions)
    values = {} if args.only_predictions else run.evaluate(sets)
    if run.stopping:
        raise TrainerError("stopped by a signal; no values were written")
    for name, value in values.items():
        if is_headline(name):
            run.say(f"{name}  {value:.6g}")

    out = args.out
    if out is None and model.run is not None:
        out = model.run / "evaluations" / f"{model.weights.resolve().name}.json"
    if out is not None:
        run.agreement.run_on_main(lambda: _write(out, {**run.facts, **record, "values": values}))
        run.say(f"values: {out}")
    run.close()
    return values


def _predict(run: Run, sets: Mapping[str, MeasuredSet], path: Path | None) -> dict[str, int]:
    """Write the predictions for each set. Return the number of rows by file. Collective."""
    from .predictions import write_predictions

    written: dict[str, int] = {}
    if path is None:
        return written
    for name, evaluation_set in sets.items():
        file = path.with_suffix(f".{name}.jsonl") if name else path
        written[str(file)] = write_predictions(run, evaluation_set, file)
        run.say(f"predictions: {file}, {written[str(file)]:,} examples")
    return written


def _write(path: Path, record: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json_text(record))


def _read_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of this command, and the words that are settings of the config."""
    parser = argparse.ArgumentParser(
        prog="trainer evaluate",
        usage="%(prog)s RUN|MODEL [options] [--key value ...]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="all other words are settings of the training config: --task_settings.split test",
        allow_abbrev=False,
    )
    parser.add_argument("target", type=local_path, metavar="RUN|MODEL")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--best", action="store_true", help="measure best/ of the run")
    which.add_argument("--checkpoint", metavar="NAME", help="of the run: step-200, or latest")
    parser.add_argument("--config", type=local_text, help="by default that of the run")
    parser.add_argument("--sets", metavar="NAMES", help="such as clean,noisy; by default all")
    parser.add_argument("--out", type=local_path, metavar="FILE", help="JSON file of the values")
    parser.add_argument(
        "--predictions",
        type=local_path,
        metavar="FILE.jsonl",
        help="write the results of Task.prediction_step; FILE.NAME.jsonl for a set with a name",
    )
    parser.add_argument("--only_predictions", action="store_true", help="measure nothing")
    args, settings = parser.parse_known_args(argv)
    if args.only_predictions and args.predictions is None:
        parser.error("--only_predictions needs --predictions FILE.jsonl")
    if args.predictions and args.predictions.suffix != ".jsonl":
        parser.error("--predictions FILE must end in .jsonl")
    return args, settings


def _load(
    config_file: str | None, settings: Sequence[str], model: EvaluatedModel
) -> tuple[Loaded, Task, TrainConfig]:
    """Return what was read, the task, and the config without what belongs to a training alone.

    Raises:
        ConfigError: the config is missing or wrong.
    """
    plan: Mapping[str, Any] = {}
    if model.run is not None:
        plan = read_json(model.run / PLAN)
        config_file = config_file or str(model.run / CONFIG)
    if config_file is None:
        raise usage_error("", str(model.weights), "belongs to no run; add --config FILE")

    folder = plan.get("task_folder")  # of the script that trained the run
    if folder and folder not in sys.path:
        sys.path.append(folder)
    loaded = load_config(["--config", config_file, *settings])
    for key in ("weights", "resume", "output_dir", "overwrite"):
        if key in loaded.texts:
            raise usage_error(key, loaded.texts[key], "is no setting of an evaluation")
    task, config = load_task(loaded)
    # A script may have built its task with settings that its config does not have.
    now = json.loads(json_text(task_facts(task, config.task)["task_settings"]))
    for key, value in plan.get("task_settings", {}).items():
        is_typed = any(text.startswith(f"task_settings.{key}") for text in loaded.texts)
        if key in now and now[key] != value and not is_typed:
            rule = f"the run was trained with {value!r}; add --task_settings.{key} VALUE"
            raise usage_error(f"task_settings.{key}", now[key], rule)
    folder = str(model.run or model.weights)
    return loaded, task, dataclasses.replace(config, **_WITHOUT_TRAINING, output_dir=folder)
