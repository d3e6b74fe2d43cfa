"""Run as a rank of a job: ``trainer evaluate`` with the arguments that follow."""

import sys

from trainer.commands.cli import main

sys.exit(main(["evaluate", *sys.argv[1:]]))
