"""Building a run that is evaluated and never trained: the short sister of ``builder``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from accelerate.utils import set_seed
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from .builder import begin_run, connect, read_data
from .building.meta_model import MetaModel
from .building.model import build_model, count_parameters, held_in_evaluation
from .building.optimizer import build_no_optimizer
from .checkpoint import OptimizerForm, SavePolicy, Saver, Start
from .checkpoint.export import ModelFile
from .checkpoint.restore import load_weights
from .config.naming import resolve_names
from .config.train_config import TrainConfig
from .data.seeds import seed_of
from .distributed.heartbeat import BUILDING, watched
from .errors import CheckpointError, Origin
from .hooks import Hooks
from .launching import Launched
from .optim.ema import Average
from .reporting.directory import RunDirectory
from .run import Run
from .task import Task
from .text import listed


def build_for_evaluation(
    task: Task,
    config: TrainConfig,
    weights: Path | None,
    launched: Launched | None = None,
    *,
    origins: Mapping[str, Origin] | None = None,
) -> Run:
    """Build a run that is evaluated and never trained: no folder, no optimizer state, no gradients.

    Nothing is written, and no folder is claimed. ``run.evaluate`` measures it; ``run.close`` ends
    it. Collective: call it on every rank.

    Args:
        task: what to measure.
        config: as for a training; how long it is, and where it writes, makes no difference.
        weights: a folder of safetensors or a checkpoint, whose moving average counts where it has
            one; None for the values that the task's model begins with.
        launched: the result of ``launch``; by default launched here, without files of its own.
        origins: of the config's values, by key, for messages.

    Raises:
        ConfigError, LaunchError, DataError: on every rank.
        CheckpointError: the weights are those of another model.
    """
    run = begin_run(task, config, launched, Hooks([]), origins or {})
    with watched(lambda: (0, BUILDING, 0), advice=lambda: "Start it again."):
        connect(run)
        run.name = resolve_names(run.config, run.plan, run.origins).run_name
        run.directory = RunDirectory(config.output_dir, main=False)  # nothing is written
        read_data(run, Start())

        model, meta_model = _build_model(run, weights)
        _prepare(run, model)
        _leave_out_what_trains(run)
        if meta_model is not None:
            run.note(*meta_model.fill(run.parts(), run.agreement))
        if weights is not None:
            run.note(*load_weights(run.parts(), weights, run.agreement))
    return run


def _build_model(run: Run, weights: Path | None) -> tuple[nn.Module, MetaModel | None]:
    """Build the model, not prepared yet, and what fills it if it is on the meta device."""
    model, changes = build_model(run.task, run.config, run.plan)
    run.note(*changes)
    run.model_file = ModelFile.of(run.task.saved_part(model))
    run.parameters = count_parameters(model)
    run.frozen_modes = held_in_evaluation(model)

    # Of a model whose part is saved, the files of the model hold the rest.
    in_folder = weights is not None and run.model_file.names is None
    meta_model = MetaModel.of(model, run.task, run.config.seed, resumes=in_folder)
    if weights is None and meta_model is not None:
        _check_complete(meta_model)
    return model, meta_model


def _check_complete(meta_model: MetaModel) -> None:
    """Raise ``CheckpointError`` where the task's pretrained files lack a part of the model."""
    if meta_model.source is None:
        return
    new = sorted(meta_model.source.new)
    if new:
        folder = meta_model.source.folder
        raise CheckpointError(f"{folder}: does not hold this model: it lacks {listed(new)}")


def _prepare(run: Run, model: nn.Module) -> None:
    """Shard or wrap the model, together with an optimizer that keeps nothing."""
    strategy = run.strategy
    optimizer = build_no_optimizer(model)
    run.optimizer_facts = {}
    run.optimizer_form = OptimizerForm.of(
        model, optimizer, saved=False, device=strategy.step_device
    )
    strategy.prepare(model, optimizer)
    strategy.verify()
    run.agreement.limit_waits()
    run.note(*run.task.notices())
    set_seed(seed_of(run.config.seed, run.layout.rank))  # as at the start of a training


def _leave_out_what_trains(run: Run) -> None:
    """Give the run a schedule that changes nothing, no average, and a saver that is never asked."""
    run.schedule = LambdaLR(run.strategy.optimizer, lambda step: 1.0)
    run.averaged = []
    run.average = Average([], run.strategy.write_back, None)
    policy = SavePolicy(keep_last=0, keep_every=None, on_save_error="stop", in_background=False)
    run.saver = Saver(run.directory.path / "checkpoints", run.agreement, policy, run.say)
