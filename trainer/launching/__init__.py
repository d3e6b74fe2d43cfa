"""From files, launcher and machine to a verified Accelerator.

files/            accelerate YAMLs and DeepSpeed JSONs, read strictly, as one Request
reconcile.py      compares values that are given in two places
resolve.py        the plan of the run
cpu_rehearsal.py  a request without the settings of GPUs
launched.py       the Accelerator, built from the plan and compared with the plan
details.py        rows of the plan's table
"""

from __future__ import annotations

from .launched import Launched, launch

__all__ = ["Launched", "launch"]
