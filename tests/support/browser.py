"""Headless Chromium, as ``CHROMIUM`` names the program."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def in_chromium(address: str, profile: Path) -> subprocess.CompletedProcess[str]:
    """The page after 20 seconds of its clock: stdout has the HTML, stderr the console.

    Args:
        profile: an empty folder, for the browser's own files.
    """
    words = [os.environ.get("CHROMIUM", "chromium"), "--headless", "--no-sandbox", "--disable-gpu"]
    words += ["--disable-background-networking", "--window-size=1300,4000", "--no-first-run"]
    words += ["--enable-logging=stderr", f"--user-data-dir={profile}"]
    words += ["--virtual-time-budget=20000", "--dump-dom", address]
    return subprocess.run(words, capture_output=True, text=True, timeout=90, check=True)
