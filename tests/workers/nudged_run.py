"""A training that parity starts, as ``python -m trainer.commands.nudged`` runs it."""

import runpy

if __name__ == "__main__":
    runpy.run_module("trainer.commands.nudged", run_name="__main__")
