"""Checkpoints that cannot be lost and load anywhere.

untrusted.py, safetensors_io.py, disk.py   files: forged ones, tensors, atomic writes and room
ranges.py        flat ranges of tensors: how any layout reads any other
contents.py      what the files hold, read as carefully as if a stranger had written them
discover.py      the checkpoints that are there, and which one to go on from; store.py commits and deletes them
parts.py         the record of what a checkpoint is made of; snapshot.py takes it to host memory
optimizer_state.py, schedule_state.py, codec.py   some of the parts
restore.py       the parts set again; compatibility.py: what may not differ then
saver.py         saving while training goes on
export.py        model files; adapters.py: of peft models
"""

from __future__ import annotations

from .discover import Start, find_start
from .optimizer_state import OptimizerForm
from .parts import Parts, StatefulCallback
from .saver import SavePolicy, Saver

__all__ = [
    "OptimizerForm",
    "Parts",
    "SavePolicy",
    "Saver",
    "Start",
    "StatefulCallback",
    "find_start",
]
