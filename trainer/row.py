"""The hooks of a run, in the order in which they are called. DO NOT CHANGE IT LIGHTLY.

The loop does the arithmetic of a step; everything else is here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .callbacks.best import Best
from .callbacks.checkpoints import SaveCheckpoints
from .callbacks.clock import Clock
from .callbacks.evaluation import Evaluation
from .callbacks.log import Log
from .callbacks.metrics_file import MetricsFile
from .callbacks.progress import Progress
from .callbacks.sanity import SanityEvaluation
from .callbacks.stopping import Stopping
from .checks.finite import FiniteNumbers
from .checks.row import checks_of
from .config.train_config import TrainConfig, profiled_steps
from .errors import Origin, origin_of
from .hooks import Callback, Hooks


def row_of(
    config: TrainConfig, added: Sequence[Callback], origins: Mapping[str, Origin]
) -> list[Callback]:
    """Return the hooks of a run. Those of some keys are imported only where these are set.

    Args:
        added: the user's, which come after all others but the one that saves. Those that the config
            names come behind them.
        origins: of the config's values, by key, for messages.
    """
    row: list[Callback] = []

    # The step itself: undo what a step that is left out has changed, count, agree on the end.
    if config.on_nan == "skip":
        from .callbacks.skipped_buffers import SkippedBuffers

        row.append(SkippedBuffers())
    row.append(Clock())
    row.append(Stopping())

    # Its numbers. The log waits for the device; an evaluation takes the time of many steps.
    log = Log(config.log_every)
    evaluation = Evaluation(log)
    row.append(log)
    row.append(evaluation)

    # Checks of the code come before anything of the step is written.
    row.extend(checks_of(config))

    # What a run writes and shows.
    row.append(MetricsFile())
    row.append(Progress())
    # After the metrics, so that metrics.jsonl shows the NaN; the checkpoint comes after both.
    row.append(FiniteNumbers(config.on_nan))
    best = None
    if config.best_metric is not None:
        best = Best(config.best_metric, config.best_mode, config.early_stop_patience)
        row.append(best)
    if config.max_time is not None:
        from .callbacks.time_limit import TimeLimit

        row.append(TimeLimit(config.max_time))
    row.extend(_published(config, best, origins))

    # Yours; and last the checkpoint, which holds the state of all.
    row.extend(added)
    if config.callbacks:
        from .callbacks.configured import configured_callbacks

        row.extend(configured_callbacks(config.callbacks, origins))
    if config.sanity_evaluation:  # after yours: what they prepare may be needed for it
        origin = origin_of(origins, "best_metric")
        row.append(SanityEvaluation(config.best_metric, origin))
    row.append(SaveCheckpoints())

    evaluation.behind = Hooks(row).after(evaluation)
    return row


def _published(
    config: TrainConfig, best: Best | None, origins: Mapping[str, Origin]
) -> list[Callback]:
    """Return what takes a run elsewhere: trackers, the Hub, a profiler's trace."""
    published: list[Callback] = []
    if config.trackers:
        from .callbacks.tracking import Tracking

        origin = origin_of(origins, "trackers")
        published.append(Tracking(config.trackers, origin=origin))
    if config.push_to_hub is not None:
        from .callbacks.hub import HubPush

        published.append(HubPush(config.push_to_hub, private=config.hub_private, best=best))
    if config.profile_steps is not None:
        from .callbacks.profiling import Profile

        published.append(Profile(*profiled_steps(config.profile_steps)))
    return published
