"""``trainer.main()``: a whole training script."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .config.load import Loaded, check_settings, print_config
from .config.load import load_config as read_config
from .config.named_class import find_class
from .config.plain import plain
from .config.rules import WARMUPS
from .config.train_config import TrainConfig
from .distributed.exit import run_and_exit
from .errors import Origin, origin_of

if TYPE_CHECKING:
    from .hooks import Callback
    from .launching import Launched
    from .loop import Trainer
    from .task import Task


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Read the config, launch, train, export, and leave the process with the right exit code."""
    run_and_exit(lambda: train(sys.argv[1:] if argv is None else argv))


def train(argv: Sequence[str], *callbacks: Callback) -> dict[str, float]:
    """Train as ``main`` does, without leaving the process. Return the last evaluation."""
    trainer = trainer_of(argv, *callbacks)
    evaluation = trainer.fit()
    trainer.run.close()
    return evaluation


def trainer_of(argv: Sequence[str], *callbacks: Callback) -> Trainer:
    """Launch and build the training of a command line. Collective: call on every rank."""
    loaded = load_config(argv)  # first, and without torch: a wrong key is answered quickly

    from .loop import Trainer

    task, config = load_task(loaded)
    launched = launch_as(loaded, task, config)
    return Trainer(task, config, launched, callbacks=callbacks, origins=loaded.origins)


def launch_as(loaded: Loaded, task: Task, config: TrainConfig) -> Launched:
    """Launch under the files that a command line names. Collective: call on every rank."""
    from .launching import launch
    from .task import own_optimizer

    return launch(
        config,
        origins=loaded.origins,
        accel_config=loaded.accel_config,
        deepspeed=loaded.deepspeed,
        optimizer_built_by=own_optimizer(task),
    )


def load_config(argv: Sequence[str]) -> Loaded:
    """Read the training config that ``argv`` asks for, without the name of the program.

    Raises:
        ConfigError: all mistakes in the file and the command line.
        SystemExit: with 0, after ``--help`` or ``--print_config``, which shows the task's defaults.
    """
    loaded = read_config(argv)
    if loaded.is_printed:
        _, config = load_task(loaded)
        print_config(config, loaded.origins)
        raise SystemExit(0)
    return loaded


def load_task(loaded: Loaded) -> tuple[Task, TrainConfig]:
    """Return the task that a config names, and the config with all settings of the task.

    Keys that nobody set have the values of ``Task.fine_tuning_defaults``, as ``loaded.origins``
    tells afterwards.

    Raises:
        ConfigError: there is no such task or callback, or a setting is wrong.
    """
    from .task import Task

    for folder in _folders(loaded.config_file):
        if folder not in sys.path:
            sys.path.append(folder)
    cls = find_class(loaded.config.task, Task, origin_of(loaded.origins, "task"))
    task = check_settings(cls, loaded.config.task_settings, loaded)
    if loaded.config.callbacks:
        from .callbacks.configured import configured_callbacks

        configured_callbacks(loaded.config.callbacks, loaded.origins, only_check=True)

    defaults = _task_defaults(task, loaded.origins)
    for key in defaults:
        loaded.origins[key] = Origin(f"default of {cls.__name__}", key=key, is_default=True)

    # All settings of the task, so that the config that is saved is complete.
    config = dataclasses.replace(loaded.config, **defaults, task_settings=plain(task))
    return task, config


def _task_defaults(task: Task, origins: Mapping[str, Origin]) -> dict[str, Any]:
    """Return a task's defaults of keys that nobody set, without warm-up if a schedule is set."""
    from .optim.groups import OF_GROUPS
    from .task import own_optimizer, own_schedule

    left_out = {key for key, origin in origins.items() if not origin.is_default}
    if own_optimizer(task):
        left_out.update(OF_GROUPS)
    if own_schedule(task):
        left_out.add("schedule")
    if left_out & {"schedule", *WARMUPS}:
        left_out.update(WARMUPS)

    return {key: value for key, value in task.fine_tuning_defaults().items() if key not in left_out}


def _folders(config_file: str | None) -> list[str]:
    """List the folders of a task's module: the working folder, the config's, and those between."""
    here = Path.cwd()
    folder = Path(config_file).resolve().parent if config_file else here
    between = [path for path in folder.parents if here in path.parents]
    return [str(path) for path in (here, folder, *between)]
