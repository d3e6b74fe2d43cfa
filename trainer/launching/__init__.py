"""From files, launcher and machine to a verified Accelerator.

files/            accelerate YAMLs and DeepSpeed JSONs, read strictly, as one Request
reconcile.py      values that stand twice, held against each other
resolve.py        everything resolved: the plan of what will run
cpu_rehearsal.py  what a request means on a CPU
start.py          the Accelerator built from the plan and checked against it
details.py        how a strategy is set up, for the table that people read
"""

from __future__ import annotations

from ..plan import Plan
from .start import Launched, launch

__all__ = ["Launched", "Plan", "launch"]
