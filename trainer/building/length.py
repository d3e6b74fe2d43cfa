"""The length of a run."""

from __future__ import annotations

from ..config.interval import Interval, checked_interval
from ..data.batches import TrainData
from ..data.indexed import IndexedData
from ..errors import Origin
from ..run import Folder, Length, Setup


def length_of(setup: Setup, folder: Folder, data: TrainData) -> Length:
    """Return the steps of a run, which epochs or ``max_steps`` end. Collective."""
    config, start = setup.config, folder.start
    ends = {}
    if config.epochs is not None:
        if not isinstance(data, IndexedData) or data.steps_per_epoch is None:
            rule = "the training data has no known end. Use max_steps"
            raise setup.plan.origin("epochs").error(rule, config.epochs)
        ends["epochs"] = start.step + data.steps_left(start.samples, config.epochs)
    if config.max_steps is not None:
        ends["max_steps"] = config.max_steps
    total_steps = min(ends.values())

    until = configured_interval(setup, "stop_at", data)
    if until is not None:
        ends["stop_at"] = until.first_step
    key = min(ends, key=ends.__getitem__)
    last_step = ends[key]
    if start.found is not None and start.step > last_step:
        raise Origin("resume", key=key).error(
            f"ends the run at step {last_step}, and {start.found.path} is at step {start.step} "
            "already. Raise the value",
            getattr(config, key),
        )

    has_ended = start.continues and start.step == last_step
    if has_ended:
        from ..reporting.used_folder import ended_at

        has_ended = ended_at(folder.directory.path) == last_step
    return Length(
        total_steps=total_steps,
        stop_at=until.first_step if until else None,
        last_step=last_step,
        save_every=configured_interval(setup, "save_every", data),
        finished=setup.agreement.of_main(has_ended),
    )


def configured_interval(setup: Setup, key: str, data: TrainData) -> Interval | None:
    """Return the interval of a key of the config. Raises ``ConfigError``."""
    origin = setup.plan.origin(key)
    return checked_interval(getattr(setup.config, key), data.steps_per_epoch, origin)
