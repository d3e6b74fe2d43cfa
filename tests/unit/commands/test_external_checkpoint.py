"""Other programs' checkpoints: what their reader accepts."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch


class Getattr:
    """Pickled as Python 3.11.0 to 3.11.3 pickle a member of an enumeration."""

    def __init__(self, owner: object, name: str) -> None:
        self.words = owner, name

    def __reduce__(self) -> tuple[object, tuple[object, str]]:
        return getattr, self.words


def test_enumeration_members_of_older_pythons_are_read_and_nothing_else(tmp_path: Path) -> None:
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

    from trainer.commands.external_checkpoint import _load, _read_metadata
    from trainer.errors import CheckpointError

    for owner, name, read in (
        (_MEM_FORMAT_ENCODING, "TORCH_CHANNELS_LAST", _read_metadata),
        (ZeroStageEnum, "gradients", _load),
    ):
        for word, fits in ((name, True), ("__subclasses__", False)):
            with open(tmp_path / "file", "wb") as file:
                if read is _load:
                    torch.save(Getattr(owner, word), file)
                else:
                    pickle.dump(Getattr(owner, word), file)
            if fits:
                assert read(tmp_path / "file") is owner[word]  # type: ignore[index]
            else:
                with pytest.raises(CheckpointError, match="refused"):
                    read(tmp_path / "file")
