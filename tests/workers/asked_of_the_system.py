"""Train as examples/train.py does, and write what was asked of the system since torch was there, a
line each.

python tests/workers/asked_of_the_system.py FILE ARGUMENT...
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

CALLS = ("open", "subprocess.Popen", "os.posix_spawn", "os.fork", "os.system", "socket.connect")
file = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT)


def audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in CALLS and not isinstance(arguments[0], int):  # (a handle that is open already)
        os.write(file, (json.dumps([event, os.fsdecode(arguments[0])]) + "\n").encode())


if __name__ == "__main__":
    import accelerate  # noqa: F401

    import trainer

    sys.addaudithook(audit)
    trainer.main()
