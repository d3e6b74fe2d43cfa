"""What a save copies to host memory: buffers that stay from one save to the next, and no copy of
stale bytes.
"""

from __future__ import annotations
