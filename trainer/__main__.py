"""``python -m trainer`` is the command ``trainer``. Launchers start it as ``accelerate launch -m
trainer train``.
"""

import sys

from .commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
