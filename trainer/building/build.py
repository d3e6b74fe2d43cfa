"""Building a run: from a task and a config to live parts that are ready for the first step.

``build`` calls the functions of this file in a row, and each returns a part of the run. Random
numbers are drawn in a fixed order and under seeds that every layout shares, so a run begins with
the same weights everywhere. ``build_for_evaluation`` takes the same parts, and trains nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.utils import set_seed
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..checkpoint import store
from ..checkpoint.optimizer_state import OptimizerForm
from ..checkpoint.parts import Parts
from ..checkpoint.saver import Saver
from ..checkpoint.store import Start
from ..config.documents import to_yaml
from ..config.fingerprint import task_facts, task_folder
from ..config.interval import checked_interval
from ..config.naming import as_literal, resolve_names
from ..config.plain import plain
from ..config.train_config import TrainConfig
from ..data.batches import Layout, is_stream
from ..data.seeds import seed_of
from ..distributed.agreement import Agreement
from ..distributed.heartbeat import BUILDING, watched
from ..distributed.restarts import restarts
from ..errors import DEFAULT, Origin, origin_of
from ..evaluator import Evaluator, measured_sets, sizes_of
from ..hooks import Callback, Hooks, Unfinished
from ..launching import Launched, launch
from ..optim.ema import Average
from ..position import Position
from ..reporting.banner import banner
from ..reporting.directory import RunDirectory
from ..reporting.machine import machine
from ..reporting.meter import Meter, count_call
from ..reporting.say import say_and_log
from ..row import checks_of
from ..run import Folder, Prepared, Run, RunData, Setup
from ..strategies.memory import states_of_run
from ..task import Task, own_optimizer
from ..text import hidden, versions
from .data import build_data, sample_data
from .length import last_step, stop_step
from .new_model import Model, count_parameters, model_of, operations_per_token
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
        if config.callbacks:
            raise origin_of(origins, "callbacks").error(
                "has no effect: Trainer's loop calls callbacks. Remove the key"
            )
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

    Nothing is written, and no folder is claimed. ``run.evaluate`` measures the model. ``run.close``
    ends the run. Collective: call on every rank.

    Args:
        task: the data and the model to measure.
        config: as for a training. Keys of length and folders make no difference.
        weights: a folder of safetensors, or a checkpoint, whose moving average counts if the
            checkpoint has an average. None for the first values of the task's model.
        launched: the result of ``launch``. By default launched here, without a launch file.
        origins: of the config's values, by key, for messages.

    Raises:
        ConfigError, LaunchError, DataError: on every rank.
        CheckpointError: the weights are those of another model.
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
    """Build the parts of a run in the order of their seeds. Collective: call on every rank."""
    refuse_uncalled(task, Task)
    for hook in hooks.row:
        refuse_uncalled(hook, Callback)
    if launched is None:
        launched = launch(config, origins=origins, optimizer_built_by=own_optimizer(task))

    with watched(lambda: (0, BUILDING, 0), advice=lambda: "Start it again."):
        setup = _connect(task, config, launched, origins, trains=trains)
        hooks.call("on_launch", Unfinished(setup))
        setup, folder = _claim_folder(setup)

        data = _read_data(setup, folder)
        setup = dataclasses.replace(setup, plan=setup.plan.with_length(data.total_steps))
        hooks.call("on_data", Unfinished(setup, folder, data))

        model, changes = model_of(
            task,
            setup.config,
            setup.plan,
            trains=trains,
            resumes=folder.start.found is not None,
        )
        setup.note(*changes)
        so_far = Unfinished(setup, folder, data, model)
        hooks.call("on_model", so_far, model.module)

        optimizer, optimizer_facts, frozen = (
            build_optimizer(task, setup.config, model.module, setup.plan)
            if trains
            else build_no_optimizer(model.module)
        )
        setup.note(*frozen)
        hooks.call("on_optimizer", so_far, optimizer)

        prepared = _prepare(setup, folder, data, model, optimizer, optimizer_facts, hooks)
        _load(setup, folder, prepared, finished=data.finished)
        run = Run(
            **vars(setup),
            **vars(folder),
            **vars(data),
            **vars(prepared),
            facts=_facts(setup, folder, data, prepared),
        )
        if trains:
            _announce(run)
    return run


# -- the parts, in the order in which they are built -----------------------------------------------


def _connect(
    task: Task,
    config: TrainConfig,
    launched: Launched,
    origins: Mapping[str, Origin],
    *,
    trains: bool,
) -> Setup:
    """Connect the ranks for decisions, and look at the machine. Collective: call on every rank."""
    accelerator = launched.accelerator
    agreement = Agreement(timedelta(minutes=config.timeout_minutes))
    return Setup(
        task=task,
        config=config,
        origins=origins,
        plan=launched.plan,
        # Not launched.strategy, because several trainings may share a launch.
        strategy=type(launched.strategy)(launched.plan, accelerator),
        agreement=agreement,
        meter=Meter(accelerator.device),
        # Read at each step, and Accelerate's property costs 15 us.
        is_main=accelerator.is_main_process,
        machine=machine(accelerator.device, agreement.gather),
        task_facts=task_facts(task, config.task),
        trains=trains,
        position=Position(),
        notices=[],
    )


def _claim_folder(setup: Setup) -> tuple[Setup, Folder]:
    """Lock the run's folder, find the checkpoint to begin with, and make the folder this run's.

    Collective: call on every rank. The main process resolves the names, because the environment of
    another machine may differ.

    Returns:
        The setup with the resolved names in its config, and the folder.
    """
    agreement, origins = setup.agreement, setup.origins
    if not setup.trains:  # nothing is written
        names = resolve_names(setup.config, setup.plan, origins)
        directory = RunDirectory(setup.config.output_dir, main=False)
        return setup, Folder(name=names.run_name, directory=directory, start=Start())

    # A task that was made in Python has settings that the config does not name.
    known = setup.task_facts["task_settings"]
    settings = {name: value for name, value in plain(setup.task).items() if name in known}
    settings |= setup.config.task_settings
    named = dataclasses.replace(setup.config, task_settings=settings)
    names = agreement.of_main(resolve_names(named, setup.plan, origins))
    # config.yaml names the same folder when the file is read again, and the run by the template.
    config = dataclasses.replace(named, output_dir=as_literal(names.output_dir))

    directory = RunDirectory(
        names.output_dir, main=setup.is_main, origin=origins.get("output_dir", DEFAULT)
    )
    setup.note(*directory.lock(agreement))
    start = Start()
    if config.resume != "none" or restarts():
        from ..checkpoint.discover import start_of_attempt

        start = start_of_attempt(
            config.resume,
            directory.path / "checkpoints",
            agreement,
            origin=origins.get("resume", DEFAULT),
        )
    directory.claim(agreement, overwrite=config.overwrite, continues=start.continues)
    return (
        dataclasses.replace(setup, config=config),
        Folder(name=names.run_name, directory=directory, start=start),
    )


def _read_data(setup: Setup, folder: Folder) -> RunData:
    """Build the data sets, which give the length of the run. Collective: call on every rank."""
    config, plan, agreement, start = setup.config, setup.plan, setup.agreement, folder.start
    layout = Layout(
        rank=setup.strategy.accelerator.process_index,
        world_size=plan.world_size,
        micro_batch_size=plan.micro_batch_size,
        accumulation_steps=plan.accumulation_steps,
    )
    pin_memory = plan.device == "cuda"
    data, train_data = build_data(setup.task, config, layout, setup.origins, pin_memory=pin_memory)
    if hasattr(data.train, "set_epoch") and not is_stream(data.train):
        setup.note("Data.train.set_epoch is never called: trainer.now().epoch tells the epoch")
    eval_every, save_every, stop_at = (
        checked_interval(
            getattr(config, key), train_data.steps_per_epoch, origin_of(setup.origins, key)
        )
        for key in ("eval_every", "save_every", "stop_at")
    )
    total_steps = last_step(config, train_data, start)
    train_data.items.total_steps = total_steps
    sampled = sample_data(config, data, train_data, agreement, needed=_saves(setup, folder))
    evaluation_sets = measured_sets(
        setup.task,
        data,
        layout,
        batch_size=config.evaluation_batch_size or plan.micro_batch_size,
        eval_every=eval_every,
        steps_per_epoch=train_data.steps_per_epoch,
        workers=config.workers,
        pin_memory=pin_memory,
        gather=agreement.gather,
    )

    last = stop_step(config, stop_at, start)
    end = min(total_steps, last or total_steps)
    has_ended = start.continues and start.step == end == folder.directory.ended_at()
    return RunData(
        data=data,
        train_data=train_data,
        total_steps=total_steps,
        stop_at=last,
        last_step=end,
        eval_every=eval_every,
        save_every=save_every,
        finished=agreement.of_main(has_ended),
        sampled=sampled,
        evaluation_sets=evaluation_sets,
    )


def _saves(setup: Setup, folder: Folder) -> bool:
    """Return whether checkpoints are written or read."""
    return setup.config.keep_last > 0 or folder.start.found is not None


def _prepare(
    setup: Setup,
    folder: Folder,
    data: RunData,
    model: Model,
    optimizer: Optimizer,
    optimizer_facts: Mapping[str, Any],
    hooks: Hooks,
) -> Prepared:
    """Shard or wrap model and optimizer, and build the parts that follow them. Collective."""
    strategy, config, module = setup.strategy, setup.config, model.module
    parameters = count_parameters(module)
    trainable = sum(p.numel() for p in module.parameters() if p.requires_grad)
    operations = operations_per_token(module)
    form = OptimizerForm.of(
        module, optimizer, saved=_saves(setup, folder), device=strategy.step_device
    )
    offloads = strategy.steps_on_cpu(setup.plan)
    states = states_of_run(setup.plan, module, len(form.ranges), offloads=offloads)
    strategy.prepare(module, optimizer)
    strategy.model.register_forward_pre_hook(count_call)
    strategy.verify()
    setup.note(*strategy.notices)
    setup.agreement.limit_waits()

    # Dropout differs between the batches of the ranks.
    set_seed(seed_of(config.seed, data.train_data.layout.rank))
    if setup.trains:
        schedule, told = build_schedule(
            setup.task, config, setup.plan, strategy.optimizer, data.total_steps
        )
        optimizer_facts = {**optimizer_facts, **told}
    else:
        schedule = LambdaLR(strategy.optimizer, lambda step: 1.0)
    setup.note(*setup.task.notices())

    # Live views, which follow the weights.
    averaged = [s for s in strategy.shards() if s.tensor.numel()] if config.ema_decay else []
    average = Average([s.tensor for s in averaged], strategy.write_back, config.ema_decay)

    planned = setup.plan.as_dict()
    settings = {
        **vars(config),
        **planned,
        **setup.task_facts,
        "train_samples": data.train_data.size,
        "total_steps": data.total_steps,
    }
    parts = Parts(
        position=setup.position,
        spent=setup.meter.until_now,
        strategy=strategy,
        optimizer_form=form,
        averages=list(zip(averaged, average.average, strict=True)),
        schedule=schedule,
        data=data.train_data,
        sampled=data.sampled,
        task=setup.task,
        callbacks=hooks.row,
        model_file=model.model_file,
        settings=hidden(settings),
        config=hidden(asdict(config)),
        plan=planned,
        about={
            **planned,
            **optimizer_facts,
            "run_name": folder.name,
            "machine": setup.machine,
            "versions": versions(),
        },
    )
    saver = Saver(
        folder.directory.path / "checkpoints",
        setup.agreement,
        config,
        partial(say_and_log, folder.directory),
    )
    saver.prepare(parts, finished=data.finished)

    if model.meta_model is not None:
        setup.note(*model.meta_model.fill(parts))
    if model.model_file.names is not None:  # no checkpoint holds the rest of the model
        from ..checkpoint.compatibility import base_weights

        settings = {**parts.settings, "base_weights": base_weights(parts, setup.agreement)}
        parts = dataclasses.replace(parts, settings=settings)

    return Prepared(
        schedule=schedule,
        average=average,
        optimizer_facts=optimizer_facts,
        parameters=parameters,
        trainable=trainable,
        operations=operations,
        state_bytes=states.total,
        evaluator=Evaluator(
            task=setup.task,
            strategy=strategy,
            agreement=setup.agreement,
            sets=data.evaluation_sets,
            position=setup.position,
            train_data=data.train_data,
            average=average,
            frozen_modes=model.frozen_modes,
        ),
        parts=parts,
        saver=saver,
        callbacks=hooks.row,
        before_save=partial(hooks.call, "on_save"),
    )


def _load(setup: Setup, folder: Folder, prepared: Prepared, *, finished: bool) -> None:
    """Set the run to its checkpoint, or begin with the config's weights. Collective.

    Raises:
        ConfigError: the configuration changes the numbers of the run, and that is not allowed.
        CheckpointError: the checkpoint holds another model, or values that no run has saved.
    """
    config, start, parts = setup.config, folder.start, prepared.parts
    for info in start.passed_over:
        setup.note(f"passed over {info.path.name}: {info.problem}")

    if start.found is not None:
        from ..checkpoint.restore import load

        counters, changes = load(parts, start.found, allow_change=config.allow_config_change)
        setup.meter.before = counters.pop("spent", setup.meter.before)
        vars(setup.position).update(counters)
        setup.note(f"resumed from {start.found.path}", *changes)
        if start.continues:
            prepared.saver.last_step = parts.step
    elif start.continues:
        setup.note(f"resume: auto: {folder.directory.path} holds no checkpoint: starts at step 0")
    if setup.trains and restarts():
        setup.note(
            f"started again by the launcher ({restarts()} of --max_restarts): resumes as with "
            "resume: auto"
        )

    if start.found is None and config.weights is not None:
        from ..checkpoint.restore import load_weights

        setup.note(*load_weights(parts, Path(config.weights), setup.agreement))
    if start.continues and not finished:
        setup.agreement.run_on_main(
            lambda: store.set_aside(info.path for info in start.passed_over)
        )
        folder.directory.cut_rows(parts.step)


def _facts(setup: Setup, folder: Folder, data: RunData, prepared: Prepared) -> dict[str, Any]:
    """Return the content of plan.json: everything that is known of a run before the first step."""
    return dict(
        prepared.parts.about,
        model_class=type(setup.strategy.model).__name__,
        distributed_type=setup.strategy.accelerator.distributed_type.value,
        seed=setup.config.seed,
        callbacks=hidden(setup.config.callbacks),
        **setup.task_facts,
        task_folder=task_folder(setup.task),
        train_samples=data.train_data.size,
        evaluation_samples=sizes_of(data.data),
        steps_per_epoch=data.train_data.steps_per_epoch,
        total_steps=data.total_steps,
        stop_at=data.stop_at,
        parameters=prepared.parameters,
        trainable_parameters=prepared.trainable,
        state_bytes_per_rank=prepared.state_bytes,
        output_dir=str(folder.directory.path),
        notices=[*setup.plan.notices, *setup.notices],
    )


def _announce(run: Run) -> None:
    """Write config.yaml and plan.json, and print the banner."""
    if run.finished:
        run.directory.main = False  # every file stays as it is
        more = "; raise stop_at to continue" if run.last_step < run.total_steps else ""
        run.say(f"finished already at step {run.step}; nothing to do{more}")
        return

    # A key whose default of the task a launch file replaces is left out of config.yaml. The value
    # would contradict the launch file when config.yaml is read again.
    settings = dict(vars(run.config))
    for key, origin in run.origins.items():
        if origin.is_default and not run.plan.origin(key).is_default:
            settings.pop(key, None)
    run.directory.write_json("plan.json", run.facts)  # first: the file marks a run's folder
    run.directory.write("config.yaml", to_yaml(hidden(settings)))
    run.say(banner(run.facts))
