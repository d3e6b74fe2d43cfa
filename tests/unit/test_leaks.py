"""Tests leave this process as they found it: the fixture ``nothing_left_behind`` holds every test
to that.
"""

from __future__ import annotations

import pytest
from launchers import ROOT

pytest_plugins = ["pytester"]


def test_what_a_test_leaves_behind_fails_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/support"))
    pytester.makeconftest((ROOT / "tests/conftest.py").read_text())
    pytester.makepyfile(
        """
        import os, signal, subprocess, sys

        def test_nothing(monkeypatch):
            monkeypatch.setenv("SAME", "1")

        def test_variable():
            os.environ["LEFT"] = "1"

        def test_handler():
            signal.signal(signal.SIGTERM, lambda number, frame: None)

        def test_process():
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(5)"])
        """
    )
    found = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-q")
    found.assert_outcomes(passed=4, errors=3)
    for what in ("environment", "signal handlers", "processes"):
        found.stdout.fnmatch_lines([f"*leaves other {what} than it found*"])
