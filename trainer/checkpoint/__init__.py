"""Checkpoints that cannot be lost and load anywhere.

ranges.py       flat ranges of tensors: how any layout reads any other
store.py        files: commit, list, verify, prune
state.py        what is in a checkpoint: taken from a trainer, given back to one
optimizer.py    the optimizer's part of it
background.py   saving while training goes on
resume.py       which checkpoint to go on from
"""

from __future__ import annotations

from .background import Saver
from .optimizer import OptimizerForm
from .resume import find_start

__all__ = ["OptimizerForm", "Saver", "find_start"]
