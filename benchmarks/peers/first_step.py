"""Train to the end of the first step, note when that was, and end.

python -m benchmarks.peers.first_step FOLDER by_hand
"""

from __future__ import annotations

import importlib
import os
import sys
import time

from .turns import Turns
from .work import Work


class FirstStep(Turns):
    """Turns that end with the first step."""

    def step_done(self) -> None:
        if self.rank == 0:
            (self.folder / "first step").write_text(str(time.time()))
        os._exit(0)


if __name__ == "__main__":
    folder, contender = sys.argv[1:]
    work = Work.read(folder)
    importlib.import_module(f".contenders.{contender}", __package__).train(
        work, FirstStep("start", work)
    )
