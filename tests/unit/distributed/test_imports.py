"""Python's garbage collector while large packages are imported."""

from __future__ import annotations

import contextlib
import gc

from trainer.distributed.imports import uncollected


def test_inside_nothing_is_collected_and_what_was_made_is_old() -> None:
    passes: list[int] = []
    before = gc.get_threshold()

    def note(phase: str, info: dict[str, int]) -> None:
        passes.append(info["generation"])

    gc.callbacks.append(note)
    try:
        with contextlib.suppress(KeyError), uncollected(), uncollected():
            made = [[number] for number in range(50_000)]
            raise KeyError(len(made))
        assert passes == []
    finally:
        gc.callbacks.remove(note)
    assert gc.get_threshold() == before
    assert any(one is made for one in gc.get_objects(generation=2))
    assert gc.get_freeze_count() == 0, "garbage among it is found in the end"
