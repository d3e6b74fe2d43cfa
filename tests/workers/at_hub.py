"""Trains as examples/train.py, with the Hub that the environment names.

A rank is forked from a process that has imported the Hub's package already, and that package reads
the address when it is imported.
"""

import importlib
import runpy
import sys
from pathlib import Path

from huggingface_hub import constants

importlib.reload(constants)
examples = Path(__file__).resolve().parents[2] / "examples"
sys.path[0] = str(examples)
sys.argv[0] = str(examples / "train.py")
runpy.run_path(sys.argv[0], run_name="__main__")
