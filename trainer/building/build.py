"""Building a run: from a task and a config to live parts that are ready for the first step.

Random numbers are drawn in a fixed order and under seeds that every layout shares, so a run begins
with the same weights everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.utils import set_seed
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ..checkpoint import store
from ..checkpoint.optimizer_state import OptimizerForm
from ..checkpoint.parts import Parts
from ..checkpoint.saver import Saver
from ..checkpoint.store import Start
from ..config.documents import to_yaml
from ..config.fingerprint import fingerprint, task_facts, task_folder
from ..config.naming import as_literal, resolve_names
from ..config.plain import plain
from ..config.train_config import TrainConfig
from ..data.seeds import seed_of
from ..distributed.agreement import Agreement
from ..distributed.heartbeat import watched_building
from ..distributed.restarts import restarts
from ..errors import Origin, origin_of
from ..evaluator import Evaluator, sizes_of
from ..hooks import Callback, Hooks
from ..launching import Launched, launch
from ..optim.ema import Average
from ..position import Position
from ..reporting.banner import banner
from ..reporting.directory import RunDirectory
from ..reporting.machine import machine
from ..reporting.meter import Meter, count_call
from ..row import checks_of
from ..run import Built, Folder, Read, Run, Setup
from ..strategies.memory import states_of_run
from ..task import Task, own_optimizer
from ..text import hidden, versions
from .data import read_data
from .new_model import count_parameters, model_of, operations_per_token
from .new_optimizer import build_no_optimizer, build_optimizer, build_schedule
from .uncalled import refuse_uncalled


def build(
    task: Task,
    config: TrainConfig,
    launched: Launched | None = None,
    *,
    callbacks: Sequence[Callback] | None = None,
    origins: Mapping[str, Origin] | None = None,
) -> Run:
    """Build a run: data, model, optimizer and schedule, prepared under a strategy.

    Claims the folder that ``config.output_dir`` names, and continues from a checkpoint if
    ``config.resume`` asks for that. Collective: call on every rank.

    Args:
        task: the data, the model and the loss.
        config: the settings: length, batch, rate and so on.
        launched: the result of ``launch``. By default launched here, without a launch file.
        callbacks: the hooks of the run. By default the checks alone.
        origins: of the config's values, by key, for messages.

    Raises:
        ConfigError, LaunchError, DataError: before the first step, on every rank.
    """
    origins = origins or {}
    if callbacks is None:
        for key in ("callbacks", "same_bits"):
            value = getattr(config, key)
            if value:
                raise origin_of(origins, key).error("needs Trainer's loop. Remove the key", value)
        callbacks = checks_of(config)
    return _build(task, config, launched, Hooks(callbacks), origins, trains=True)


def build_for_evaluation(
    task: Task,
    config: TrainConfig,
    weights: Path | None,
    launched: Launched | None = None,
    *,
    origins: Mapping[str, Origin] | None = None,
) -> Run:
    """Build a run that is evaluated and never trained: no folder, no optimizer state, no gradients.

    Args:
        task, config, launched, origins: as for ``build``. Keys of length and folders make no
            difference.
        weights: a folder of safetensors, or a checkpoint, whose moving average counts if the
            checkpoint has an average. None for the first values of the task's model.

    Raises:
        ConfigError, LaunchError, DataError, CheckpointError: on every rank.
    """
    folder = None if weights is None else str(weights)
    config = dataclasses.replace(config, keep_last=0, ema_decay=None, weights=folder)
    return _build(task, config, launched, Hooks([]), origins or {}, trains=False)


def _build(
    task: Task,
    config: TrainConfig,
    launched: Launched | None,
    hooks: Hooks,
    origins: Mapping[str, Origin],
    *,
    trains: bool,
) -> Run:
    """Build the parts of a run in the order of their seeds."""
    refuse_uncalled(task, Task)
    for hook in hooks.row:
        refuse_uncalled(hook, Callback)
    if launched is None:
        launched = launch(config, origins=origins, optimizer_built_by=own_optimizer(task))

    with watched_building():
        setup = _connect(task, config, launched, trains=trains)
        hooks.call("on_launch", setup)
        setup, folder = _claim_folder(setup)
        read = read_data(setup, folder, saves=_saves(setup, folder))
        hooks.call("on_data", read)

        built = model_of(read)
        hooks.call("on_model", built, built.module)
        optimizer, reported, frozen = (
            build_optimizer(task, built.config, built.module, built.plan)
            if trains
            else build_no_optimizer(built.module)
        )
        built.note(*frozen)
        hooks.call("on_optimizer", built, optimizer)

        run = _prepare(built, optimizer, reported, hooks)
        _load(run)
        run.facts["notices"] = [*run.plan.notices, *run.setup.notices]
        if trains:
            _announce(run)
    return run


# -- the parts, in the order in which they are built -----------------------------------------------


def _connect(
    task: Task,
    config: TrainConfig,
    launched: Launched,
    *,
    trains: bool,
) -> Setup:
    """Connect the ranks for decisions."""
    accelerator = launched.accelerator
    agreement = Agreement(timedelta(minutes=config.timeout_minutes))
    return Setup(
        task=task,
        config=config,
        plan=launched.plan,
        # Not launched.strategy, because several trainings may share a launch.
        strategy=type(launched.strategy)(launched.plan, accelerator),
        agreement=agreement,
        meter=Meter(accelerator.device),
        # Read at each step, and Accelerate's property costs 15 us.
        is_main=accelerator.is_main_process,
        task_facts=task_facts(task, config.task),
        trains=trains,
        notices=[],
    )


def _claim_folder(setup: Setup) -> tuple[Setup, Folder]:
    """Lock the run's folder, find the checkpoint to begin with, and resolve the names."""
    config, agreement, plan = setup.config, setup.agreement, setup.plan
    if setup.trains:
        # A task that was made in Python has settings that the config does not name.
        known = setup.task_facts["task_settings"]
        settings = {name: value for name, value in plain(setup.task).items() if name in known}
        config = dataclasses.replace(config, task_settings=settings | config.task_settings)
    # Those of the main process: the environment of another machine may differ.
    names = agreement.of_main(resolve_names(config, plan))
    directory = RunDirectory(
        names["output_dir"],
        main=setup.is_main and setup.trains,
        origin=plan.origin("output_dir"),
    )
    start = Start()
    if setup.trains:
        # config.yaml names the same folder when the file is read again, and the run by the
        # template.
        config = dataclasses.replace(config, output_dir=as_literal(names["output_dir"]))
        setup.note(*directory.lock(agreement))
        if config.resume != "none" or restarts():
            from ..checkpoint.discover import start_of_attempt

            start = start_of_attempt(
                config.resume,
                directory.path / "checkpoints",
                agreement,
                origin=plan.origin("resume"),
            )
        directory.claim(agreement, overwrite=config.overwrite, continues=start.continues)
    return (
        setup._replace(config=config),
        Folder(name=names["run_name"], directory=directory, start=start),
    )


def _saves(setup: Setup, folder: Folder) -> bool:
    """Return whether checkpoints are written or read."""
    return setup.config.keep_last > 0 or folder.start.found is not None


def _prepare(built: Built, optimizer: Optimizer, reported: dict[str, Any], hooks: Hooks) -> Run:
    """Shard or wrap model and optimizer, and build the parts that follow them."""
    module, position = built.module, Position()
    operations = operations_per_token(module)
    form = OptimizerForm.of(
        module,
        optimizer,
        saved=_saves(built.setup, built.folder),
        device=built.strategy.step_device,
    )
    sizes = _sizes(built, len(form.ranges))
    _divide(built, optimizer)
    if hasattr(optimizer, "bind"):  # a WholeOptimizer of optim/whole.py
        built.note(*optimizer.bind(built.strategy, form.groups))
    schedule, of_schedule = _schedule(built)
    built.note(*built.task.notices())
    facts = _facts(built, {**reported, **of_schedule}, sizes)

    average = Average(built.strategy, built.config.ema_decay)
    parts = Parts(
        position=position,
        spent=built.meter.until_now,
        strategy=built.strategy,
        optimizer_form=form,
        average=average,
        schedule=schedule,
        data=built.train_data,
        sampled=built.sets.sampled,
        task=built.task,
        callbacks=hooks.row,
        model_file=built.model_file,
        config=built.config,
        plan=built.plan,
        mathematics=_mathematics(built, form, schedule),
        facts=facts,
    )
    saver = Saver(
        built.directory.path / "checkpoints",
        built.agreement,
        built.config,
        built.say,
    )
    saver.prepare(parts, finished=built.finished)
    _fill(built, parts)
    return Run(
        setup=built.setup,
        folder=built.folder,
        length=built.length,
        sets=built.sets,
        position=position,
        schedule=schedule,
        average=average,
        operations=operations,
        evaluator=Evaluator(
            task=built.task,
            strategy=built.strategy,
            agreement=built.agreement,
            sets=built.evaluation_sets,
            position=position,
            train_data=built.train_data,
            average=average,
            frozen_modes=built.frozen_modes,
        ),
        parts=parts,
        saver=saver,
        before_save=partial(hooks.call, "on_save"),
        facts=facts,
    )


def _sizes(built: Built, states: int) -> dict[str, int]:
    """Count a whole model's elements, and a rank's bytes with so many states of the optimizer."""
    module = built.module
    trainable = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return {
        "parameters": count_parameters(module),
        "trainable_parameters": trainable,
        "state_bytes_per_rank": states_of_run(built.strategy, module, trainable, states).total,
    }


def _divide(built: Built, optimizer: Optimizer) -> None:
    """Shard or wrap model and optimizer. Then ranks draw random numbers of their own."""
    strategy = built.strategy
    strategy.prepare(built.module, optimizer)
    if built.plan.world_size > 1:  # a hook costs 4 us in each step
        strategy.model.register_forward_pre_hook(count_call)
    strategy.verify()
    built.note(*strategy.notices)
    built.agreement.limit_waits()

    # Dropout differs between the batches of the ranks, and between the parts of a batch.
    set_seed(seed_of(built.config.seed, strategy.accelerator.process_index))


def _schedule(read: Read) -> tuple[LRScheduler, dict[str, Any]]:
    """Return the schedule, and its description for reports. An evaluation alone moves no rate."""
    optimizer = read.strategy.optimizer
    if read.setup.trains:
        return build_schedule(read.task, read.config, read.plan, optimizer, read.total_steps)
    return LambdaLR(optimizer, lambda step: 1.0), {}


def _mathematics(read: Read, form: OptimizerForm, schedule: LRScheduler) -> dict[str, Any]:
    """Return the settings that decide the numbers of the run, in a form that files hold."""
    settings = {
        **vars(read.config),
        **read.plan.as_dict(),
        **read.setup.task_facts,
        "train_samples": read.train_data.size,
        "total_steps": read.total_steps,
    }
    found = fingerprint(
        {
            **hidden(settings),
            "optimizer": form.kind,
            "optimizer_groups": form.groups,
            "schedule_class": type(schedule).__name__,
        }
    )
    # The groups hold these settings, and a checkpoint has weights of its own.
    del found["optimizer_settings"], found["weights"]
    return plain(found, compared=True)  # type: ignore[no-any-return]


def _facts(read: Read, reported: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the content of plan.json, but for the notices."""
    setup, config, accelerator = read.setup, read.config, read.strategy.accelerator
    return {
        **read.plan.as_dict(),
        **reported,
        "run_name": read.name,
        "machine": machine(accelerator.device, read.agreement.gather),
        "versions": versions(),
        "model_class": type(read.strategy.model).__name__,
        "distributed_type": accelerator.distributed_type.value,
        "seed": config.seed,
        "callbacks": hidden(config.callbacks),
        **setup.task_facts,
        "task_folder": task_folder(read.task),
        "train_samples": read.train_data.size,
        "evaluation_samples": sizes_of(read.sets.evaluation_sets),
        "steps_per_epoch": read.train_data.steps_per_epoch,
        "total_steps": read.total_steps,
        "stop_at": read.length.stop_at,
        **sizes,
        "output_dir": str(read.directory.path),
    }


def _fill(built: Built, parts: Parts) -> None:
    """Give a model on the meta device its values, and add the checksum of a frozen base."""
    if built.fill is not None:
        built.note(*built.fill(parts))
    if built.model_file.names is not None:  # no checkpoint holds the rest of the model
        from ..checkpoint.compatibility import base_weights

        parts.mathematics["base_weights"] = base_weights(parts, built.agreement)


def _load(run: Run) -> None:
    """Set the run to its checkpoint, or begin with the config's weights."""
    config, start, parts = run.config, run.folder.start, run.parts
    for info in start.passed_over:
        run.note(f"passed over {info.path.name}: {info.problem}")

    if start.found is not None:
        from ..checkpoint.restore import load

        state, changes = load(parts, start.found, allow_change=config.allow_config_change)
        run.meter.before = state["spent"]
        run.note(f"resumed from {start.found.path}", *changes)
        if start.continues:
            run.saver.last_step = run.step
    else:
        if start.continues:
            run.note(f"resume: auto: {run.directory.path} holds no checkpoint: starts at step 0")
        if config.weights is not None:
            from ..checkpoint.restore import load_weights

            run.note(*load_weights(parts, Path(config.weights), run.agreement))
    if restarts():
        run.note(
            f"started again by the launcher ({restarts()} of --max_restarts): resumes as with "
            "resume: auto"
        )
    if start.continues and not run.finished:
        from ..reporting.used_folder import cut_rows

        run.agreement.run_on_main(lambda: store.set_aside(info.path for info in start.passed_over))
        if run.is_main:
            cut_rows(run.directory.path, run.step)


def _announce(run: Run) -> None:
    """Write config.yaml and plan.json, and print the banner."""
    if run.finished:
        run.directory.main = False  # every file stays as it is
        more = "; raise stop_at to continue" if run.last_step < run.total_steps else ""
        run.say(f"finished already at step {run.step}; nothing to do{more}")
        return

    # A launch file gives some settings under other keys. The config's own value of such a setting
    # would contradict the launch file in a next run.
    settings = {
        key: value for key, value in vars(run.config).items() if run.plan.origin(key).key == key
    }
    run.directory.write_json("plan.json", run.facts)  # first: the file marks a run's folder
    run.directory.write("config.yaml", to_yaml(hidden(settings)))
    run.say(banner(run.facts))
