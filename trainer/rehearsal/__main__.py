"""``python -m trainer.rehearsal FOLDER GPU WORD ...``: rehearse a rank of a command line.

The result is written to FOLDER/result.json. A user's mistake is a result with the text as
``error``.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

from ..errors import TrainerError
from ..text import told
from .device_guard import load_guard

try:
    load_guard()  # before torch is imported
    from .one_rank import rehearse

    result = rehearse(sys.argv[2], sys.argv[3:])
except TrainerError as error:
    result = {"error": str(error)}
except Exception as error:  # of a task, a model or a kernel
    from .lines import line_of

    traceback.print_exc()
    sys.exit(": ".join(filter(None, [line_of(error), told(error)])))
Path(sys.argv[1], "result.json").write_text(json.dumps(result))
