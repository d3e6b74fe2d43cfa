"""Ranks that were started with other settings: another file on one machine, another argument."""

from __future__ import annotations

from ..errors import ConfigError, Origin, Problem
from ..hooks import Callback, Unfinished
from .differences import described, differences, flat

# Of a plan: where values come from, how the processes were started, and notices of one machine.
_MAY_DIFFER = ("files", "origins", "notices", "launcher")


class SameSettings(Callback):
    """Compares config, plan and the task's settings between ranks, before anything is built."""

    def on_launch(self, run: Unfinished) -> None:
        """Raise ``ConfigError`` where a rank has other settings. Collective."""
        if not run.agreement.distributed:
            return

        configured = {**vars(run.config), **run.task_facts}
        plan = run.plan.as_dict()
        planned = {key: value for key, value in plan.items() if key not in _MAY_DIFFER}
        facts = flat("", configured) | flat("plan.", planned)
        different, of_ranks = differences(facts, run.agreement)
        if different:
            rule = (
                "every rank must run with the same settings; start all of them with the same "
                "files, arguments and code"
            )
            raise ConfigError(Problem(origin=Origin(described(different[0], of_ranks)), rule=rule))
