"""The hooks of a run, in the order in which they are called. DO NOT CHANGE IT LIGHTLY.

The hook of a config key has a single place here, and is imported only if the key is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .callbacks.clock import Clock
from .callbacks.log import Log
from .callbacks.measuring import Evaluation, SanityEvaluation
from .callbacks.metrics_file import MetricsFile
from .callbacks.progress import Progress
from .callbacks.saving import SaveCheckpoints
from .callbacks.stopping import Stopping
from .checks.finite import FiniteNumbers, SkippedBuffers
from .checks.gradients import ExchangedGradients
from .checks.mean_loss import MeanLoss
from .checks.model import SupportedModel
from .checks.optimizer import DivisibleOptimizer, KeptRates
from .checks.parameters import TrainableSet
from .checks.same_data import SameData
from .checks.same_model import SameModel
from .checks.same_settings import SameSettings
from .checks.task_state import TaskState
from .checks.training_mode import TrainingMode
from .config.rules import profiled_steps
from .config.train_config import TrainConfig
from .errors import Origin, origin_of
from .hooks import Callback


def checks_of(config: TrainConfig, *, divided: bool = True) -> list[Callback]:
    """Return the checks of the code of a task: all of them, or none.

    ``divided`` is False if each process is known to hold all parameters.
    """
    if config.checks == "none":
        return []
    edited: list[Callback] = []
    if divided:
        from .checks.edited import EditedParameters

        edited.append(EditedParameters())
    # The trial comes before the check of edits in place, which reads anew what the trial gathers.
    return [
        *([MeanLoss()] if config.sanity_evaluation else []),
        SameSettings(),
        SameData(),
        SupportedModel(),
        SameModel(),
        DivisibleOptimizer(),
        KeptRates(),
        ExchangedGradients(),
        *edited,
        TrainableSet(),
        TrainingMode(),
        TaskState(),
    ]


def row_of(
    config: TrainConfig,
    added: Sequence[Callback],
    origins: Mapping[str, Origin],
    *,
    divided: bool = True,
) -> list[Callback]:
    """Return the hooks of a run. ``added`` are the user's, before those that the config names."""
    # The step: undo the changes of a step that is left out, count, agree on the end.
    row: list[Callback] = []
    if config.on_nan == "skip":
        row.append(SkippedBuffers())
    row += [Clock(), Stopping()]

    # The numbers of a step. The log waits for the device. An evaluation takes the time of many
    # steps.
    log = Log()
    row += [log, Evaluation(log)]

    # Checks come before anything of the step is written.
    row += checks_of(config, divided=divided)

    # The files of a run. metrics.jsonl shows a NaN before FiniteNumbers ends the run.
    row += [MetricsFile(), Progress(), FiniteNumbers(config.on_nan)]

    if config.same_bits:
        from .callbacks.digest_file import Digests

        row.append(Digests())
    best = None
    if config.best_metric is not None:
        from .callbacks.best import Best

        best = Best(config.best_metric, config.best_mode, config.early_stop_patience)
        row.append(best)
    if config.max_time is not None:
        from .callbacks.time_limit import TimeLimit

        row.append(TimeLimit(config.max_time))
    if config.trackers:
        from .callbacks.tracking import Tracking

        row.append(Tracking(config.trackers, origin=origin_of(origins, "trackers")))
    if config.push_to_hub is not None:
        from .callbacks.hub import HubPush

        row.append(HubPush(best))
    if config.profile_steps is not None:
        from .callbacks.profiling import Profile

        row.append(Profile(*profiled_steps(config.profile_steps)))

    # Yours.
    row += added
    if config.callbacks:
        from .callbacks.configured import configured_callbacks

        row += configured_callbacks(config.callbacks, origins)

    # After yours: a trial may need their preparations, and a checkpoint holds the state of all.
    if config.sanity_evaluation:
        row.append(SanityEvaluation())
    row.append(SaveCheckpoints())
    return row
