"""This rank's part of a checkpoint, copied to host memory, and the document that the main process
adds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data import rng
from ..errors import CheckpointError
from ..text import versions
from .codec import encode, encode_plain
from .compatibility import fingerprint
from .contents import state_text
from .disk import FileFact, write_file
from .optimizer_state import settings
from .parts import Parts
from .ranges import write_pieces
from .schedule_state import schedule_state
from .untrusted import split_name


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A rank's part of a checkpoint, in host memory.

    Args:
        facts: for the manifest; the same on every rank.
        pieces: what this rank owns.
        files: other files by name; on the main process only.
        pinned: steps whose checkpoints stay when this one is complete.
    """

    step: int
    rank: int
    facts: Mapping[str, Any]
    pieces: list[tuple[str, Tensor]]
    files: Mapping[str, bytes]
    pinned: Collection[int]

    def write(self, folder: Path) -> list[FileFact]:
        """Write this rank's files; they are on the disk when it returns."""
        facts = [write_pieces(folder / f"rank-{self.rank:05d}.safetensors", self.pieces)]
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            facts.append(write_file(folder / name, [content], name))
        return facts


def take(
    parts: Parts,
    files: Mapping[str, bytes],
    tensors: Mapping[str, Tensor],
    buffers: dict[str, Tensor],
    *,
    copied: bool,
) -> Snapshot:
    """Take what this rank owns to host memory. Call it on every rank; nothing is exchanged.

    Args:
        files, tensors: what ``describe`` gave on the main process.
        buffers: of the snapshot before, which is not read any more: filled anew, and added to.
        copied: training goes on while it is written; otherwise what lies in host memory already is
            not copied.
    """
    pieces = [
        (
            str(key),
            _to_host(str(key), tensor.detach(), buffers)
            if copied or tensor.is_cuda
            else tensor.contiguous(),
        )
        for key, tensor in parts.pieces()
    ]
    if parts.strategy.accelerator.device.type == "cuda":
        torch.cuda.synchronize()  # once for all copies, which ran one behind the other
    if parts.layout.counts:  # ranks that share a batch draw the same
        pieces += [
            (f"rng.{name}/{parts.layout.rank}/0", tensor) for name, tensor in rng.read().items()
        ]
    pieces += [(f"user/{name}/0", tensor) for name, tensor in tensors.items()]
    strategy = parts.strategy.plan.strategy
    facts = {
        "samples": parts.counters["samples"],
        "strategy": strategy,
        "world_size": parts.world_size,
    }
    pinned = {step for callback in parts.callbacks for step in callback.pinned_steps()}
    return Snapshot(
        step=parts.step, rank=parts.rank, facts=facts, pieces=pieces, files=files, pinned=pinned
    )


def _to_host(key: str, tensor: Tensor, buffers: dict[str, Tensor]) -> Tensor:
    """Begin to copy a tensor to its buffer.

    From a GPU only to page-locked memory the copy runs at full speed, and by itself. Locking pages
    takes long, so buffers stay; torch makes each as large as the next power of two.
    """
    kept = buffers.get(key)
    if kept is None or (kept.shape, kept.dtype) != (tensor.shape, tensor.dtype):
        kept = buffers[key] = torch.empty(
            tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda
        )
    return kept.copy_(tensor, non_blocking=True)


def describe(parts: Parts) -> tuple[bytes, dict[str, Tensor]]:
    """Return state.json and the tensors that it names; ``CheckpointError`` if some state in it
    cannot be saved.
    """
    tensors: dict[str, Tensor] = {}
    named = (entry for entry in parts.strategy.named_tensors() if not parts.leaves_out(entry[3]))
    form = parts.model_file
    dtypes = ((name, list(shape), form.dtype(name, dtype)) for name, shape, dtype, _ in named)
    groups = map(settings, parts.strategy.optimizer.param_groups)
    states = {name: hook.state_dict() for name, hook in parts.named_callbacks().items()}
    try:
        state = {
            "step": parts.step,
            **{name: encode(value, tensors, name) for name, value in parts.counters.items()},
            "schedule": schedule_state(parts.schedule),
            "data": encode(parts.data.state(), tensors, "data"),
            "content": parts.sampled.state(),
            "scaler": parts.strategy.scaler_state(),
            "group_settings": encode(list(groups), tensors, "group_settings"),
            "task": encode(parts.task.state_dict(), tensors, "task"),
            "callbacks": {
                name: encode(state, tensors, name) for name, state in states.items() if state
            },
            "model": [
                [name, shape, str(dtype).removeprefix("torch.")] for name, shape, dtype in dtypes
            ],
            **({} if form.names is None else {"export": {"file": form.file, "names": form.names}}),
            "mathematics": fingerprint(parts),
            "config": encode_plain(parts.config, "config"),
            "plan": encode_plain(parts.plan, "plan"),
            "versions": versions(),
        }
        return state_text(state), tensors
    except RecursionError:
        raise CheckpointError(
            "the state of the task or of a callback is nested too deeply, or holds itself"
        ) from None


def read_extras(parts: Parts) -> dict[str, bytes]:
    """Read the small files beside an exported model, so that a checkpoint can be exported on its
    own.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts.save_beside(folder)
        files = {
            path.relative_to(folder).as_posix(): path
            for path in folder.rglob("*")
            if path.is_file()
        }
        for file in files:
            split_name(file)
        return {f"extras/{file}": path.read_bytes() for file, path in files.items()}
