"""What a start asks of the system, counted instead of timed."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from launchers import ROOT, clean_environment, json_lines


def test_a_start_asks_little_of_the_system(tmp_path: Path) -> None:
    """No process, no connection; each module once or twice, and so few files that no file system
    makes it slow.
    """
    settings = [
        "--config",
        "examples/configs/digits_cnn.yaml",
        "--max_steps",
        "5",
        "--output_dir",
        tmp_path / "run",
    ]
    words = [sys.executable, "tests/workers/asked_of_the_system.py", tmp_path / "asked", *settings]
    subprocess.run(words, cwd=ROOT, env=clean_environment(), capture_output=True, check=True)
    asked = json_lines(tmp_path / "asked")
    assert {event for event, _ in asked} == {"open"}
    opened = Counter(path for path in (Path(name) for _, name in asked) if not is_installed(path))
    ours = {path: count for path, count in opened.items() if path.is_relative_to(ROOT / "trainer")}
    # Files of /proc are in memory, and there are some for each process above this one.
    of_the_kernel = sum(count for path, count in opened.items() if path.is_relative_to("/proc"))
    rest = sum(opened.values()) - sum(ours.values()) - of_the_kernel
    modules = {
        path.stem.partition(".")[0] for path in ours
    }  # the source, and its bytecode where that is kept
    assert (
        60 < len(modules) < 150
        and sum(ours.values()) < 3 * len(modules)
        and max(ours.values()) <= 2
    )
    of_the_run = sum(count for path, count in opened.items() if path.is_relative_to(tmp_path))
    assert 10 < of_the_run < 50
    assert rest - of_the_run < 40, opened.most_common(20)


def is_installed(path: Path) -> bool:
    return "site-packages" in path.parts or path.resolve().is_relative_to(
        Path(sys.base_prefix).resolve() / "lib"
    )
