"""From files, launcher and machine to a verified Accelerator.

launcher.py   who started this process, and with which arguments
files.py      accelerate YAMLs and DeepSpeed JSONs, read strictly, as one Request
sections.py   optimizer and scheduler sections of a JSON, in the words of the training config
requested.py  values with two homes, held against each other
plan.py       everything resolved: what will run
start.py      the Accelerator built from the plan and checked against it
details.py    how a strategy is set up, for the table that people read
"""

from __future__ import annotations

from ..plan import Plan
from .resolve import Machine
from .start import Launched, launch

__all__ = ["Launched", "Machine", "Plan", "launch"]
