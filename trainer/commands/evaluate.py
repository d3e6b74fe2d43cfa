r"""``trainer evaluate RUN | MODEL``: measure a model on its evaluation sets, without training.

    trainer evaluate runs/digits
    trainer evaluate runs/digits --best --predictions predictions.jsonl
    trainer evaluate path/to/model --config digits.yaml --evaluation_batch_size 64
    accelerate launch --config_file accel_configs/fsdp.yaml -m trainer evaluate runs/digits
    torchrun --nproc_per_node 2 -m trainer evaluate runs/digits \
        --accel_config accel_configs/fsdp.yaml

RUN is the folder of a run: its exported model is measured with the run's own task and settings. A
folder of safetensors needs a --config. The values are printed, and written to
RUN/evaluations/NAME.json, where NAME is what was measured (model, best, step-00000120); nothing
else in the run's folder is touched, so that the run may be training.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..config.fingerprint import task_facts
from ..config.train_config import DEFAULTS, TrainConfig
from ..distributed.exit import run_and_exit
from ..errors import CheckpointError, ConfigError, DataError, Origin, Problem, TrainerError
from ..script import launch_as, load_config, load_task
from ..text import columns, did_you_mean, is_headline, table, versions
from .evaluated_model import EvaluatedModel, find_model
from .usage import local_path, local_text, usage_error

if TYPE_CHECKING:
    from ..config.load import Loaded
    from ..evaluator import MeasuredSet
    from ..run import Run
    from ..task import Task

# Keys that say where a training begins and where it writes; the first word says what is measured.
_NOT_HERE = ("weights", "resume", "output_dir", "overwrite")
# What a training config may say of the training alone. How the global batch is cut is that of other
# processes than these.
_WITHOUT_TRAINING: dict[str, Any] = {
    "weights": None,
    "resume": "none",
    "overwrite": False,
    "global_batch_size": None,
    "accumulation_steps": None,
    "keep_last": 0,
    "keep_every": None,
    "best_metric": None,
    "early_stop_patience": None,
    "trackers": [],
    "profile_steps": None,
}


def run(argv: Sequence[str]) -> NoReturn:
    """Evaluate, and end the process with the right exit code."""
    run_and_exit(lambda: evaluate(argv))


def evaluate(argv: Sequence[str]) -> dict[str, float]:
    """Evaluate as the command does, without leaving the process; return the values.

    Collective: call on every rank.

    Raises:
        ConfigError, LaunchError, DataError, CheckpointError: before the first batch.
    """
    args, settings = _read_arguments(argv)
    model = find_model(args.target, best=args.best, checkpoint=args.checkpoint or "")
    loaded, task, config = _load(args, settings, model)
    _check_predictions(args, task)

    launched = launch_as(loaded, task, config)
    model = _of_main(model)

    from ..builder import build_for_evaluation

    weights: Path | None = model.weights
    if model.run is None:
        own = task.for_model(model.weights)
        if own is not None:  # its own files are read by the task, in whatever form they are
            task, weights = own, None
    run = build_for_evaluation(task, config, weights, launched, origins=loaded.origins)
    run.position.step, run.position.samples = model.step, model.samples
    sets = _chosen_sets(run, args.sets)
    out = _out_file(args, model)
    run.agreement.run_on_main(lambda: _check_writable(args.predictions, out))
    run.note(*model.notices, *_notices(task, model))
    run.say(_banner(run, model, sets))

    began = time.perf_counter()
    values: dict[str, float] = {}
    written: dict[str, int] = {}
    if not args.only_predictions:
        values = run.evaluate(list(sets))
    if args.predictions is not None and not run.stopping:
        written = _predict(run, sets, args.predictions)
    if run.stopping:
        raise TrainerError("stopped by a signal; no values were written")

    record = {
        "evaluated": str(model.weights),
        "step": model.step,
        "samples": model.samples,
        "values": values,
        "predictions": written,
        "seconds": round(time.perf_counter() - began, 3),
        **_facts(run),
    }
    _report(run, record, out)
    run.close()
    return values


# -- the command line -----------------------------------------------------------------------------


def _read_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of this command, and the words that are settings of the config."""
    parser = _parser()
    if not argv or argv[0] in ("-h", "--help"):
        parser.parse_args(["--help"])
    if argv[0].startswith("-"):
        raise usage_error("", argv[0], "the first word is the folder of a run or of a model")
    args, settings = parser.parse_known_args(list(argv[1:]))
    args.target = local_path_of(parser, argv[0])
    if args.best and args.checkpoint:
        raise usage_error("best", None, "a checkpoint is named as well; give one of the two")
    if args.only_predictions and args.predictions is None:
        raise usage_error("only_predictions", None, "needs --predictions FILE")
    _refuse_misspelt(parser, settings)
    return args, settings


def local_path_of(parser: argparse.ArgumentParser, word: str) -> Path:
    """Return the first word as a path; an address ends the command."""
    try:
        return local_path(word).expanduser()
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainer evaluate",
        usage="trainer evaluate RUN|MODEL [options] [--key value ...]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="everything else is a setting of the training config, as in "
        "--evaluation_batch_size 64 or --task_settings.split test",
        allow_abbrev=False,
    )
    parser.add_argument("--best", action="store_true", help="measure best/ of the run")
    parser.add_argument(
        "--checkpoint",
        metavar="NAME",
        help="measure a checkpoint of the run: step-200, or latest; its moving average, if any",
    )
    parser.add_argument(
        "--config", type=local_text, help="the training config; by default that of the run"
    )
    parser.add_argument(
        "--sets",
        metavar="NAMES",
        help="of evaluation sets with names, such as clean,noisy; by default all",
    )
    parser.add_argument(
        "--out",
        type=local_path,
        metavar="FILE",
        help="of the values, as JSON; by default RUN/evaluations/NAME.json",
    )
    parser.add_argument(
        "--predictions",
        type=local_path,
        metavar="FILE",
        help="write what Task.prediction_step returns of each example: FILE.jsonl or FILE.parquet; "
        "FILE.NAME.jsonl of each set with a name",
    )
    parser.add_argument(
        "--only_predictions",
        action="store_true",
        help="measure nothing: for data without labels",
    )
    return parser


def _refuse_misspelt(parser: argparse.ArgumentParser, settings: Sequence[str]) -> None:
    """Refuse a word that is nearer to an option of this command than to a key of the config."""
    own = re.findall(r"^  (--\w+)", parser.format_help(), re.MULTILINE)
    keys = [f"--{key}" for key in DEFAULTS]
    for word in settings:
        name = word.partition("=")[0]
        if not name.startswith("--") or name in keys or "." in name:
            continue
        near = difflib.get_close_matches(name, [*own, *keys], n=1, cutoff=0.75)
        if near and near[0] in own:
            raise usage_error(name.lstrip("-"), None, f"no such option; did you mean {near[0]}?")


def _load(
    args: argparse.Namespace, settings: Sequence[str], model: EvaluatedModel
) -> tuple[Loaded, Task, TrainConfig]:
    """Return what was read, the task, and the config without what belongs to a training alone.

    Raises:
        ConfigError: the config is missing or wrong.
    """
    words = list(settings)
    if args.config is not None:
        words = ["--config", args.config, *settings]
    elif model.config is not None:
        words = ["--config", str(model.config), *settings]
    elif not (settings and settings[0].endswith((".yaml", ".yml", ".json"))):
        rule = "belongs to no run, so its task is not known; add --config FILE, a training config"
        raise usage_error("", str(model.weights), rule)

    # Where the task was found when the run was trained: beside a script, say.
    folder = model.plan.get("task_folder")
    if isinstance(folder, str) and folder not in sys.path:
        sys.path.append(folder)
    loaded = load_config(words)
    for key in _NOT_HERE:
        if key in loaded.texts:
            rule = "trainer evaluate writes to no run, and reads the weights that its first word "
            raise usage_error(key, loaded.texts[key], rule + "names; leave it out")

    task, config = load_task(loaded)
    if args.config is None:
        _check_same_settings(task, config, loaded, model.plan)
    config = dataclasses.replace(
        config, **_WITHOUT_TRAINING, output_dir=str(model.run or model.weights)
    )
    return loaded, task, config


def _check_same_settings(
    task: Task, config: TrainConfig, loaded: Loaded, plan: Mapping[str, Any]
) -> None:
    """Check that the task is set as it was in the run, but for what was typed now.

    A script may have built its task by itself, with settings that its config does not have.
    """
    before = plan.get("task_settings")
    if not isinstance(before, Mapping):
        return

    from ..reporting.directory import with_nulls

    now = with_nulls(task_facts(task, config.task)["task_settings"])  # as in plan.json
    now = json.loads(json.dumps(now))
    for key, value in before.items():
        typed = [text for text in loaded.texts if text.split(".")[:2] == ["task_settings", key]]
        if key in now and now[key] != value and not typed and "task_settings" not in loaded.texts:
            origin = Origin(loaded.config_file or "TrainConfig", key=f"task_settings.{key}")
            rule = (
                f"the run was trained with {value!r} (plan.json); "
                f"add --task_settings.{key} VALUE, with this value or another"
            )
            raise ConfigError(Problem(origin=origin, value=now[key], rule=rule))


def _check_predictions(args: argparse.Namespace, task: Task) -> None:
    """Check that predictions can be made and written, before anything is built."""
    if args.predictions is None:
        return

    from ..task import predicts
    from .predictions import check_file

    args.predictions = args.predictions.expanduser()
    check_file(args.predictions)
    if not predicts(task):
        name = type(task).__name__
        rule = (
            f"{name} does not say what to write of each example; add to it:\n"
            "    def prediction_step(self, model, batch):\n"
            "        output = model(batch[...])\n"
            '        return {"predicted": output.argmax(-1)}  # an entry for each example'
        )
        raise usage_error("predictions", str(args.predictions), rule)


def _of_main(model: EvaluatedModel) -> EvaluatedModel:
    """Return what the main process has found: a run that is training may save in between.

    Collective: call on every rank.
    """
    from accelerate.utils import broadcast_object_list

    found = [model]
    broadcast_object_list(found)
    return found[0]


def _out_file(args: argparse.Namespace, model: EvaluatedModel) -> Path | None:
    """Return the file of the values; None where none was named, for a model without a run."""
    if args.out is not None:
        path: Path = args.out
        return path.expanduser()
    if model.run is None:
        return None
    return model.run / "evaluations" / f"{model.name}.json"


def _check_writable(*files: Path | None) -> None:
    """Check that files can be written, before anything is measured. On the main process."""
    for file in files:
        if file is None:
            continue
        folder = next(parent for parent in file.absolute().parents if parent.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise CheckpointError(
                f"{file}: cannot be written: {folder} is no folder that this user may write to; "
                "name another file with --out or --predictions"
            )


# -- what is shown and written --------------------------------------------------------------------


def _without_data(task: Task) -> str:
    name = type(task).__name__
    hint = "return Data(train=..., evaluation=...)"
    if any(field.name == "evaluation" for field in dataclasses.fields(task)):
        hint = "name one: --task_settings.evaluation FILE"
    return f"{name}.build_data gives no evaluation set, so there is nothing to measure; {hint}"


def _notices(task: Task, model: EvaluatedModel) -> list[str]:
    """Return what is worth knowing about the numbers."""
    from ..task import Task

    notices = ["nothing is trained: no optimizer state, no gradients, no callbacks"]
    if type(task).load_state_dict is not Task.load_state_dict:
        notices.append(
            "the task keeps a state in checkpoints (load_state_dict), which is not loaded here"
        )
    return notices


def _chosen_sets(run: Run, names: str | None) -> Mapping[str, MeasuredSet]:
    """Return the evaluation sets to measure, by name.

    Args:
        names: as typed, with commas between them; None for all.

    Raises:
        DataError: there is none.
        ConfigError: there is none of such a name.
    """
    found = run.evaluation_sets
    if not found:
        raise DataError(_without_data(run.task))
    if names is None:
        return found

    chosen = {}
    for name in names.split(","):
        if name not in found:
            known = [other for other in found if other]
            raise usage_error("sets", name, f"no such evaluation set; {did_you_mean(name, known)}")
        chosen[name] = found[name]
    return chosen


def _banner(run: Run, model: EvaluatedModel, sets: Mapping[str, MeasuredSet]) -> str:
    """Return the table of what is evaluated, and on which layout."""
    from ..reporting.banner import plan_rows
    from ..reporting.machine import machine_text

    shown = {"strategy", "world size", "device", "precision", "compile"}
    rows = [("evaluated", f"{model.weights} (step {model.step:,})")]
    for name, value in plan_rows(run.plan.as_dict()):
        if name == "strategy":
            rows.append((name, f"{value} ({type(run.model).__name__})"))
        elif name in shown:
            rows.append((name, value))
    rows += [
        ("machine", machine_text(run.machine)),
        ("model", f"{run.parameters:,} parameters"),
        ("data", _sizes_text(run, sets)),
        ("batch", f"{_batch_size(run)} examples per process"),
    ]
    return table(rows, run.notices)


def _sizes_text(run: Run, sets: Mapping[str, MeasuredSet]) -> str:
    """Return how many examples are measured, of each set where they have names."""
    from ..evaluator import sizes_of

    sizes = sizes_of(run.data)
    texts = []
    for name in sets:
        size = sizes[name] if isinstance(sizes, dict) else sizes
        count = "a stream" if size is None else f"{size:,} examples"
        texts.append(f"{name}: {count}" if name else count)
    return "; ".join(texts)


def _batch_size(run: Run) -> int:
    return run.config.evaluation_batch_size or run.plan.micro_batch_size


def _facts(run: Run) -> dict[str, Any]:
    """Return what the file of the values says about how they were measured. Collective."""
    from ..evaluator import sizes_of

    state_bytes = run.agreement.gather(run.strategy.state_bytes())
    return {
        **run.plan.as_dict(),
        "state_bytes_per_rank": max(state_bytes),
        "model_class": type(run.model).__name__,
        "distributed_type": str(run.accelerator.distributed_type).rsplit(".", 1)[-1],
        **run.task_facts,
        "evaluation_samples": sizes_of(run.data),
        "evaluation_batch_size": _batch_size(run),
        "parameters": run.parameters,
        "machine": run.machine,
        "notices": run.notices,
        "versions": versions(),
    }


def _predict(run: Run, sets: Mapping[str, MeasuredSet], path: Path) -> dict[str, int]:
    """Write the predictions for each set; return the number of rows of each file. Collective."""
    from .predictions import file_of_set, write_predictions

    written = {}
    for name, chosen in sets.items():
        file = file_of_set(path, name)
        written[str(file)] = write_predictions(run, chosen, file)
    return written


def _report(run: Run, record: Mapping[str, Any], path: Path | None) -> None:
    """Print the values, and write them. Collective: call on every rank."""
    rows = []
    for name, value in record["values"].items():
        if is_headline(name):
            rows.append((name, f"{value:.6g}"))
    for line in columns(rows):
        run.say(line)
    for file, count in record["predictions"].items():
        run.say(f"predictions: {file}, {count:,} examples")

    if path is not None:
        run.agreement.run_on_main(lambda: _write(path, record))
        run.say(f"values: {path}")


def _write(path: Path, record: Mapping[str, Any]) -> None:
    """Write the file of the values, which has its name once it is complete."""
    from ..checkpoint.disk import part_of, publish
    from ..reporting.directory import json_text

    text = json_text(record)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part_of(path).write_bytes(text.encode(errors="backslashreplace"))
        publish(path)
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be written: {error.strerror}; name another file with --out"
        ) from None
