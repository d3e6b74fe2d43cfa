"""A row of hooks: who is called for what, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from fake_run import step_info

from trainer import Callback, Run, StepInfo
from trainer.hooks import EVENTS, Hooks

RUN: Any = SimpleNamespace(strategy=SimpleNamespace(callback_context=nullcontext))


class Recording(Callback):
    """Records its name and the step."""

    def __init__(self, name: str, calls: list[tuple[str, int]], every: int = 1) -> None:
        self.name, self.calls, self.every = name, calls, every

    def on_step(self, run: Run, info: StepInfo) -> None:
        self.calls.append((self.name, info.step))

    def summary(self) -> Mapping[str, Any]:
        return {self.name: len(self.calls)}


@pytest.mark.parametrize("event", EVENTS)
def test_each_event_reaches_the_hooks_that_override_it_and_no_other(event: str) -> None:
    calls: list[str] = []
    overriding = type("Overriding", (Callback,), {event: lambda *_: calls.append("overriding")})
    hooks = Hooks([Callback(), overriding()])
    for name in EVENTS:
        if name == "on_step":
            hooks.on_step(RUN, step_info())
        else:
            hooks.call(name, RUN)
        assert calls == (["overriding"] if name == event else [])
        calls.clear()


def test_what_a_base_class_of_the_users_overrides_is_called() -> None:
    class Derived(Recording):
        pass

    calls: list[tuple[str, int]] = []
    Hooks([Derived("derived", calls)]).on_step(RUN, step_info(3))
    assert calls == [("derived", 3)]


def test_hooks_are_called_in_the_order_of_the_row() -> None:
    calls: list[tuple[str, int]] = []
    hooks = Hooks([Recording("b", calls), Recording("a", calls), Recording("c", calls)])
    hooks.on_step(RUN, step_info(1))
    assert calls == [("b", 1), ("a", 1), ("c", 1)]


def test_every_leaves_steps_out_but_not_the_last() -> None:
    calls: list[tuple[str, int]] = []
    hooks = Hooks([Recording("third", calls, every=3)])
    for step in range(1, 8):
        hooks.on_step(RUN, step_info(step, is_last=step == 7))
    assert [step for _, step in calls] == [3, 6, 7]


def test_a_hook_that_ends_the_run_has_the_hooks_behind_it_called() -> None:
    class Ends(Callback):
        def on_step(self, run: Run, info: StepInfo) -> None:
            info.is_last = True

    calls: list[tuple[str, int]] = []
    rare = Recording("rare", calls, every=100)
    Hooks([rare, Ends(), rare]).on_step(RUN, step_info(1))
    assert calls == [("rare", 1)]


def test_summaries_are_merged_also_of_hooks_that_have_no_event() -> None:
    class Silent(Callback):
        def summary(self) -> Mapping[str, Any]:
            return {"silent": True}

    assert Hooks([Recording("a", []), Silent(), Callback()]).summary() == {"a": 0, "silent": True}
