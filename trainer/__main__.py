"""``python -m trainer``, which is the command ``trainer``, for launchers that take a module."""

import sys

from .commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
