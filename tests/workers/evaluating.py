"""Run as a rank of a job: the command ``trainer``, beside the tasks of this folder."""

import sys

from trainer.commands.cli import main

sys.exit(main(sys.argv[1:]))
