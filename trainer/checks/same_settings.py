"""Ranks that were started with other settings: another file on a machine, another argument."""

from __future__ import annotations

from ..config.plain import flat
from ..distributed.same import same_on_all_ranks
from ..errors import Origin
from ..hooks import Callback
from ..run import Setup

# Of a plan: the origins of values, how the processes were started, and notices of a machine.
_MAY_DIFFER = ("files", "origins", "notices", "launcher")


class SameSettings(Callback):
    """Compares config, plan and the task's settings between ranks, before anything is built."""

    def on_launch(self, run: Setup) -> None:
        """Raise ``ConfigError`` if a rank has other settings. Collective."""
        planned = {
            key: value for key, value in run.plan.as_dict().items() if key not in _MAY_DIFFER
        }
        facts = flat("", {**vars(run.config), **run.task_facts}) | flat("plan.", planned)
        difference = same_on_all_ranks(facts, run.agreement.gather)
        if difference:
            raise Origin(difference).error(
                "every rank must run with the same settings: the same files, arguments and code"
            )
