"""Trackers whose server is gone in the middle of a run: training continues."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from accelerate.tracking import GeneralTracker

from ..distributed.exit import when_failing
from ..errors import TrainerError

# After a failed call a tracker is left alone for this many times as long as the call took.
_WAIT_FACTOR = 20
_LEAST_WAIT_SECONDS = 60.0
_ATTEMPT_SECONDS = 2.0  # a call that fails earlier has not tried to reach a server


class TolerantTracker(GeneralTracker):  # type: ignore[misc]
    """A tracker of Accelerate that never fails a run.

    Some clients try for minutes before they report that a server is gone. So after a failure
    nothing is logged for a while; the values of that time are in metrics.jsonl.

    Args:
        wrapped: the tracker that logs, not started yet.
        say: prints a line for the user.
        on_failure: saves what the tracker still has in memory when the job fails.
    """

    requires_logging_directory = False

    def __init__(
        self,
        wrapped: GeneralTracker,
        say: Callable[[str], None],
        *,
        on_failure: Callable[[], object],
    ) -> None:
        self.name = wrapped.name
        super().__init__()
        self._wrapped = wrapped
        self._say = say
        self._on_failure = on_failure
        self._next_attempt = 0.0
        self._cancel_on_failure: Callable[[], None] | None = None

    @property
    def tracker(self) -> Any:
        """Return the client's own object, such as the run of W&B."""
        return self._wrapped.tracker

    def start(self) -> None:
        """Start the tracker. Raises ``TrainerError`` where that fails."""
        try:
            self._wrapped.start()
        except Exception as error:
            reason = first_line(error)
            raise TrainerError(f"trackers: {self.name} does not start: {reason}") from error

        self._cancel_on_failure = when_failing(self._on_failure)

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Keep the run's configuration. Only W&B takes nested values; others get their text."""
        if self.name != "wandb":
            values = {
                name: value if _is_plain(value) else str(value) for name, value in values.items()
            }
        self._wrapped.store_init_configuration(dict(values))

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log ``values``, unless the tracker failed a short time ago."""
        began = time.monotonic()
        if began < self._next_attempt:
            return

        try:
            self._wrapped.log(dict(values), step=step, **kwargs)
        except Exception as error:
            wait = self._leave_alone(began)
            self._report(f"step {step}", error, f"; training continues; next try in {wait:.0f} s")

    def _leave_alone(self, began: float) -> float:
        """Return for how many seconds nothing is logged, after a call that failed."""
        now = time.monotonic()
        wait = max(_LEAST_WAIT_SECONDS, _WAIT_FACTOR * (now - began))
        self._next_attempt = now + wait
        return wait

    def finish(self) -> None:
        """End the run of the tracker; upload what is missing."""
        if self._cancel_on_failure is not None:
            self._cancel_on_failure()
            self._cancel_on_failure = None

        try:
            self._wrapped.finish()
        except Exception as error:
            self._report("the end of the run", error)

    def _report(self, lost: str, error: Exception, ending: str = "") -> None:
        reason = f"{type(error).__name__}: {first_line(error)[:160]}"
        self._say(
            f"{self.name}: did not take {lost} ({reason}); metrics.jsonl has every value{ending}"
        )


def first_line(error: Exception) -> str:
    """Return the first line of an error's message; "" where it has none."""
    return str(error).partition("\n")[0]


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | str | float | int) or value is None
