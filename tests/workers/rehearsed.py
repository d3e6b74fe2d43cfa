"""One rank of a rehearsal, in a fork of a process that has imported the packages.

tests/workers/rehearsed.py FOLDER GPU WORD ...
"""

import runpy

runpy.run_module("trainer.rehearsal", run_name="__main__")
