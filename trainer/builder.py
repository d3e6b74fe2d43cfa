"""Building a run: from a task and a config to live parts that are ready for the first step.

``build`` is one straight function. Everything random happens in one order and under seeds that
every layout shares, so the same run begins with the same weights everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import timedelta

from accelerate.utils import set_seed
from torch import nn
from torch.optim import Optimizer

from .building.data import build_data, sample_data
from .building.evaluation import UNNAMED, intervals_of, measured_sets, sizes_of
from .building.length import (
    epoch_end_notices,
    last_step,
    most_checkpoints,
    profile_notices,
    stop_step,
)
from .building.meta_model import MetaModel
from .building.model import (
    build_model,
    count_parameters,
    held_in_evaluation,
    operations_per_token,
)
from .building.optimizer import build_optimizer, build_schedule
from .checkpoint import OptimizerForm, SavePolicy, Saver, Start
from .checkpoint.checksums import base_weights
from .checkpoint.disk import check_shared
from .checkpoint.export import ModelFile, check_storable, export_dtypes
from .checkpoint.start import start_of_attempt
from .checks.row import checks_of
from .config.documents import to_yaml
from .config.fingerprint import task_facts, task_folder
from .config.interval import Interval, checked_interval, interval_text
from .config.naming import Names, resolve_names
from .config.train_config import TrainConfig
from .data.batches import Layout
from .data.seeds import seed_of
from .distributed.agreement import Agreement
from .distributed.heartbeat import BUILDING, watched
from .errors import DEFAULT, ConfigError, Origin, Problem, origin_of
from .hooks import Callback, Hooks
from .launching import Launched, launch
from .optim.ema import Average
from .reporting.banner import banner, facts
from .reporting.directory import RunDirectory
from .reporting.machine import machine
from .reporting.meter import Meter
from .run import Run
from .strategies.meta_device import is_on_meta
from .task import Task, own_optimizer
from .text import hidden, listed


def build(
    task: Task,
    config: TrainConfig,
    launched: Launched | None = None,
    *,
    callbacks: Sequence[Callback] | None = None,
    origins: Mapping[str, Origin] | None = None,
) -> Run:
    """Build a run: data, model, optimizer and schedule, prepared under a strategy.

    It claims the folder that ``config.output_dir`` names, and continues from a checkpoint where
    ``config.resume`` asks for it. Collective: call it on every rank.

    Args:
        task: what to learn.
        config: how long, with which batch, rate and so on.
        launched: the result of ``launch``; by default launched here, without files of its own.
        callbacks: the hooks of the run; by default the checks alone.
        origins: of the config's values, by key, for messages.

    Raises:
        ConfigError, LaunchError, DataError: before the first step, on every rank.
    """
    origins = origins or {}
    if callbacks is None:
        _refuse_callbacks_of_config(config, origins)
        callbacks = checks_of(config)
    hooks = Hooks(callbacks)
    run = begin_run(task, config, launched, hooks, origins)

    with watched(lambda: (0, BUILDING, 0), advice=run.how_to_resume):
        _build(run, hooks)
    return run


def _build(run: Run, hooks: Hooks) -> None:
    """Give a run its parts, in the order of their seeds. Collective: call on every rank."""
    connect(run)
    hooks.on_launch(run)
    start = _claim_folder(run)

    read_data(run, start)
    hooks.on_data(run)

    model, meta_model = _build_model(run, start)
    hooks.on_model(run, model)

    optimizer = _build_optimizer(run, model, start)
    hooks.on_optimizer(run, optimizer)

    _prepare(run, model, optimizer)
    _prepare_saves(run)
    if meta_model is not None:
        run.note(*meta_model.fill(run.parts(), run.agreement))
    run.base_weights = base_weights(run.parts(), run.agreement)
    run.load(start)
    _find_values_that_are_not_finite(run, resumed=start.found is not None)
    _announce(run)


def _refuse_callbacks_of_config(config: TrainConfig, origins: Mapping[str, Origin]) -> None:
    """Raise ``ConfigError`` for callbacks that a loop of one's own would not call."""
    if config.callbacks:
        origin = origin_of(origins, "callbacks")
        rule = (
            "has no effect: Trainer's loop calls them, and this is a loop of one's own; remove it"
        )
        raise ConfigError(Problem(origin=origin, value=config.callbacks, rule=rule))


def begin_run(
    task: Task,
    config: TrainConfig,
    launched: Launched | None,
    hooks: Hooks,
    origins: Mapping[str, Origin],
) -> Run:
    """Return a run that has the parts of its launch alone.

    Args:
        launched: None to launch it here.
    """
    if launched is None:
        launched = launch(config, origins=origins, optimizer_built_by=own_optimizer(task))
    return Run(
        task=task,
        config=config,
        plan=launched.plan,
        accelerator=launched.accelerator,
        # One of its own: several trainings may share a launch.
        strategy=type(launched.strategy)(launched.plan, launched.accelerator),
        hooks=hooks,
        callbacks=hooks.row,
        task_facts=task_facts(task, config.task),  # now: some tasks change while they are trained
        origins=origins,
    )


def connect(run: Run) -> None:
    """Connect the ranks for decisions, and look at the machine. Collective: call on every rank."""
    config, accelerator = run.config, run.accelerator
    run.agreement = Agreement(timedelta(minutes=config.timeout_minutes))
    run.meter = Meter(accelerator.device)
    run.machine = machine(accelerator.device, run.agreement.gather)


def _claim_folder(run: Run) -> Start:
    """Lock the run's folder, find the checkpoint to begin with, and make the folder this run's."""
    names = _name(run)
    config, agreement = run.config, run.agreement
    at = run.origins.get("output_dir", DEFAULT)
    run.directory = RunDirectory(names.output_dir, main=run.is_main, origin=at)
    folder = run.directory.path / "checkpoints"

    with run.directory.locked(agreement):
        if agreement.distributed and config.keep_last:  # before anything in it is looked for
            check_shared(run.directory.path, agreement)
        asked_at = run.origins.get("resume", DEFAULT)
        start = start_of_attempt(config.resume, folder, agreement, origin=asked_at)
        run.directory.claim(agreement, overwrite=config.overwrite, continues=start.continues)
    return start


def _name(run: Run) -> Names:
    """Resolve the names of the run and its folder, and keep them. Collective: call on every rank.

    Those of the main process count: the environment of another machine may differ.
    """
    # A task that was made in Python has settings that its config does not name.
    settings = {**run.task_facts["task_settings"], **run.config.task_settings}
    config = dataclasses.replace(run.config, task_settings=settings)
    of_ranks = run.agreement.gather(resolve_names(config, run.plan, run.origins))
    names: Names = of_ranks[0]

    run.name = names.run_name
    run.config = names.written_to(run.config)
    return names


def read_data(run: Run, start: Start) -> None:
    """Build the data sets, and find out from them how long the run is. Collective."""
    config, plan, agreement = run.config, run.plan, run.agreement

    run.layout = Layout(
        rank=run.accelerator.process_index,
        world_size=plan.world_size,
        micro_batch_size=plan.micro_batch_size,
        accumulation_steps=plan.accumulation_steps,
    )
    pin_memory = plan.device == "cuda"
    run.data, run.train_data = build_data(
        run.task, config, run.layout, run.origins, pin_memory=pin_memory
    )
    run.steps_per_epoch = run.train_data.steps_per_epoch
    run.total_steps = last_step(config, run.train_data, start)
    run.eval_every = _interval(run, "eval_every")
    run.save_every = _interval(run, "save_every")
    run.plan = plan.with_length(run.total_steps)

    run.train_data.items.total_steps = run.total_steps
    keeps_checkpoints = config.keep_last > 0 or start.found is not None
    run.sampled = sample_data(config, run.data, run.train_data, agreement, needed=keeps_checkpoints)
    run.evaluation_sets = measured_sets(
        run.task,
        run.data,
        run.layout,
        batch_size=config.evaluation_batch_size or plan.micro_batch_size,
        every=intervals_of(run.data, run.eval_every, run.steps_per_epoch),
        workers=config.workers,
        pin_memory=pin_memory,
        gather=agreement.gather,
    )

    run.stop_at = stop_step(config, run.steps_per_epoch, start, run.origins)
    has_ended = start.continues and start.step == run.last_step == run.directory.ended_at()
    [run.finished, *_] = agreement.gather(has_ended)


def _interval(run: Run, key: str) -> Interval | None:
    """Return how often something is done; ``ConfigError`` for less than a step."""
    origin = origin_of(run.origins, key)
    return checked_interval(getattr(run.config, key), run.steps_per_epoch, origin)


def _build_model(run: Run, start: Start) -> tuple[nn.Module, MetaModel | None]:
    """Build the model, not prepared yet, and what fills it if it is on the meta device."""
    task, config = run.task, run.config
    model, changes = build_model(task, config, run.plan)
    run.note(*changes)
    run.note(*epoch_end_notices(model, run.train_data, run.total_steps))
    run.note(*profile_notices(config.profile_steps, start.step, run.total_steps))

    source = task.pretrained(model) if is_on_meta(model) else None
    run.model_file = ModelFile.of(
        task.saved_part(model), export_dtypes(model, config.export_dtype, source)
    )
    run.note(*_export_notices(run))
    check_storable(model)

    # Of a model whose part is saved, the files of the model hold the rest.
    is_whole = run.model_file.names is None
    run.reads_weights_later = is_whole and (start.found is not None or config.weights is not None)
    resumes_whole = is_whole and start.found is not None
    meta_model = MetaModel.of(model, task, config.seed, resumes=resumes_whole)

    run.frozen_modes = held_in_evaluation(model)
    return model, meta_model


def _export_notices(run: Run) -> list[str]:
    """Return a notice where the exported model is rounded."""
    dtype = run.model_file.most_of()
    if dtype is None:
        return []
    name = str(dtype).removeprefix("torch.")
    reason = "as the files that it starts from; " if run.config.export_dtype == "auto" else ""
    return [f"the exported model is in {name}, {reason}checkpoints keep what is trained in float32"]


def _build_optimizer(run: Run, model: nn.Module, start: Start) -> Optimizer:
    """Build the optimizer over the model that is not prepared yet."""
    optimizer, run.optimizer_facts, notices = build_optimizer(run.task, run.config, model, run.plan)
    run.note(*notices)
    run.parameters = count_parameters(model)
    run.trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    run.operations = operations_per_token(model)
    keeps_checkpoints = run.config.keep_last > 0 or start.found is not None
    run.optimizer_form = OptimizerForm.of(
        model, optimizer, saved=keeps_checkpoints, device=run.strategy.step_device
    )
    return optimizer


def _prepare(run: Run, model: nn.Module, optimizer: Optimizer) -> None:
    """Shard or wrap model and optimizer; build what follows the prepared ones."""
    strategy, config = run.strategy, run.config
    strategy.prepare(model, optimizer)
    strategy.verify()
    run.agreement.limit_waits()

    set_seed(seed_of(config.seed, run.layout.rank))  # dropout differs between batches
    run.schedule, told = build_schedule(
        run.task, config, run.plan, strategy.optimizer, run.total_steps
    )
    run.optimizer_facts |= told
    run.note(*run.task.notices())

    # Live views: taken once, they follow the weights.
    run.averaged = []
    if config.ema_decay:
        run.averaged = [shard for shard in strategy.shards() if shard.tensor.numel()]
    live = [shard.tensor for shard in run.averaged]
    run.average = Average(live, strategy.write_back, config.ema_decay)


def _prepare_saves(run: Run) -> None:
    """Find out before the first step what would make every save fail."""
    config = run.config
    policy = SavePolicy(
        keep_last=config.keep_last,
        keep_every=config.keep_every,
        on_save_error=config.on_save_error,
        in_background=config.save_in_background,
    )
    run.saver = Saver(run.directory.path / "checkpoints", run.agreement, policy, run.say)
    at_once = 0
    if not run.finished:
        at_once = most_checkpoints(config, run.save_every, run.total_steps)
    run.note(*run.saver.prepare(run.parts(), at_once))
    run.state_bytes = run.strategy.state_bytes()


def _find_values_that_are_not_finite(run: Run, *, resumed: bool) -> None:
    """Note the buffers and frozen parameters that are not finite at the start (a mask of -inf).

    Checkpoints say it; one of an earlier version does not, and may hold statistics that a step
    with NaN has spoilt.
    """
    if run.not_finite_at_start is not None or run.config.keep_last == 0:
        return

    mine = run.parts().not_finite("buffer", "frozen")
    of_ranks = run.agreement.gather(mine)
    run.not_finite_at_start = sorted({name for names in of_ranks for name in names})
    if resumed and run.not_finite_at_start:
        names = listed(run.not_finite_at_start)
        run.note(f"the checkpoint holds values that are not finite: {names}")


def _announce(run: Run) -> None:
    """Write config.yaml and plan.json, and print the banner."""
    run.note(*run.directory.notices)
    run.facts = _facts(run)
    if run.finished:
        run.directory.main = False  # every file stays as it is
        run.say(_finished_text(run))
        return

    # Where a launch file replaces a default of the task, the config leaves the key out: as the
    # config's own value it would contradict the file when it is read again.
    defaults = [key for key, origin in run.origins.items() if origin.is_default]
    replaced = [key for key in defaults if not run.plan.origin(key).is_default]
    settings = {key: value for key, value in vars(run.config).items() if key not in replaced}
    run.directory.write("config.yaml", to_yaml(hidden(settings)))
    run.directory.write_json("plan.json", run.facts)
    run.say(banner(run.facts))


def _evaluation_every(run: Run) -> str | dict[str, str] | None:
    """Return how often evaluation sets are measured: by name for several, None without any."""
    if not run.evaluation_sets:
        return None
    texts = {name: interval_text(chosen.every) for name, chosen in run.evaluation_sets.items()}
    return texts.get(UNNAMED, texts)


def _finished_text(run: Run) -> str:
    """Return that there is nothing to do, and what ended the run."""
    if run.last_step < run.total_steps:
        return (
            f"stop_at {run.config.stop_at} has ended this run already, at step {run.step} of "
            f"{run.total_steps}; raise it or leave it out to continue"
        )
    return f"finished already at step {run.step}; nothing to do"


def _facts(run: Run) -> dict[str, object]:
    """Return what plan.json holds: everything that is known of a run before its first step."""
    state_bytes = run.agreement.gather(run.state_bytes)
    return facts(
        run.plan,
        **run.optimizer_facts,
        run_name=run.name,
        model_class=type(run.model).__name__,
        distributed_type=str(run.accelerator.distributed_type).rsplit(".", 1)[-1],
        machine=run.machine,
        seed=run.config.seed,
        callbacks=hidden(run.config.callbacks),
        **run.task_facts,
        task_folder=task_folder(run.task),
        train_samples=run.train_data.size,
        evaluation_samples=sizes_of(run.data),
        evaluation_every=_evaluation_every(run),
        steps_per_epoch=run.steps_per_epoch,
        total_steps=run.total_steps,
        stop_at=run.stop_at,
        parameters=run.parameters,
        trainable_parameters=run.trainable,
        state_bytes_per_rank=max(state_bytes),
        output_dir=str(run.directory.path),
        checkpoint_bytes=run.saver.bytes,
        notices=[*run.plan.notices, *run.notices],
    )
