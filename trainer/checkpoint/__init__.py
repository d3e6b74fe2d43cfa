"""Checkpoints that cannot be lost and load anywhere.

ranges.py       flat ranges of tensors: how any layout reads any other
store.py        files: commit, prune
discover.py     files: list, look at, verify
contents.py     what they hold, read as carefully as if a stranger had written them
state.py        what is in a checkpoint, taken from a training; optimizer.py, rates.py, rng.py, user.py: parts of it
restore.py      the same given back; mathematics.py: what may not differ then
background.py   saving while training goes on
resume.py       which checkpoint to go on from
weights.py      weights alone to start from, from anywhere
space.py        room on the disk
"""

from __future__ import annotations

from .optimizer_state import OptimizerForm
from .resume import Start, find_start
from .saver import Saver

__all__ = ["OptimizerForm", "Saver", "Start", "find_start"]
