"""``python -m trainer.rehearsal FOLDER``: rehearse the rank of ``request.json`` there.

The result is written to ``result.json``. A user's mistake is a result with the text as ``error``.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

from ..errors import TrainerError
from ..text import told
from .device_guard import load_guard

folder = Path(sys.argv[1])
try:
    load_guard()  # before torch is imported
    from .one_rank import rehearse

    result = rehearse(json.loads((folder / "request.json").read_text()))
except TrainerError as error:
    result = {"error": str(error)}
except Exception as error:  # of a task, a model or a kernel
    from .lines import line_of

    traceback.print_exc()
    sys.exit(": ".join(filter(None, [line_of(error), told(error)])))
(folder / "result.json").write_text(json.dumps(result))
