"""Checkpoints written to a disk without a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from trainer.checkpoint import discover, store
from trainer.checkpoint.disk import write_file
from trainer.checkpoint.ranges import of_rank_files
from trainer.checkpoint.safetensors_io import Key, write_pieces
from trainer.checkpoint.snapshot import state_text


def save(folder: Path, step: int, *, world: int = 2, keep_last: int = 2, **kept: Any) -> None:
    """As the ranks and the main process do it, with values that differ from step to step."""
    store.begin(folder, step)
    temporary = store.temporary_of(folder, step)
    files = {}
    for rank in range(world):
        values = torch.arange(100 * rank, 100 * rank + 100) + float(step)
        pieces = [(str(Key(kind="parameter", name="w", start=100 * rank)), values)]
        files |= write_pieces(temporary / f"rank-{rank:05d}.safetensors", pieces)
    (temporary / "extras").mkdir()
    files |= write_file(temporary / store.STATE, [state_text(state(step, world))])
    name = "extras/config.json"
    files |= write_file(temporary / name, [f"{step}".encode()], name)
    facts = {
        "step": step,
        "world_size": world,
        "strategy": "any",
        "samples": 8 * step,
        "created": "2026-11-21T12:00:00+00:00",
    }
    store.commit(folder, facts, files)
    store.prune(
        folder,
        keep_last=keep_last,
        keep_every=kept.get("keep_every"),
        pinned=kept.get("pinned", ()),
    )


def state(step: int, world: int = 2) -> dict[str, Any]:
    """The state.json of a model of one parameter, of which each process owns a hundred elements."""
    return {
        "step": step, "samples": 8 * step, "data": {"samples": 8 * step}, "skipped_steps": 0, "skipped_in_a_row": 0,
        "schedule": {"kind": "LambdaLR", "steps": step, "lr": [0.1], "own": {}}, "scaler": {}, "group_settings": [{}],
        "mathematics": {"optimizer": "SGD", "optimizer_groups": [{"names": [], "settings": {}}]},
        "task": {}, "callbacks": {},
        "content": {}, "last_evaluation": {}, "spent": {"tokens": 0.0, "seconds": 0.0}, "model": [["w", [world, 100], "float32"]],
    }  # fmt: skip


def loaded(path: Path) -> torch.Tensor:
    found = discover.verify(discover.inspect(path))
    assert not found.problem, found
    return of_rank_files(path / name for name in found.files if name.endswith("tensors")).whole(
        "parameter", "w"
    )
