"""Data is prepared once, whoever asks for it.

| promised | strategies and worlds | tests |
|---|---|---|
| Processes that prepare data at once share one result, and half of one is never used | 2 or 3 processes | test_one_makes_it_and_all_find_it, test_what_a_killed_process_left_is_made_anew |
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from launchers import ROOT, clean_environment

MAKER = """
import os, sys, time
from pathlib import Path
from trainer import prepare_once

cache = Path(sys.argv[1])

def make(folder):
    with open(cache / "calls", "a") as calls:
        calls.write(f"{os.getpid()}\\n")
    (folder / "half").write_text("one")
    print("half", flush=True)
    time.sleep(float(sys.argv[2]))
    (folder / "whole").write_text("two")

print(prepare_once(cache, ["format 1", {"rows": 3}], make), flush=True)
"""


def ask(cache: Path, seconds: float) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", MAKER, str(cache), str(seconds)]
    return subprocess.Popen(
        words, cwd=ROOT, env=clean_environment(), stdout=subprocess.PIPE, text=True
    )


def answer(process: subprocess.Popen[str]) -> Path:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return Path(out.splitlines()[-1])


def test_one_makes_it_and_all_find_it(tmp_path: Path) -> None:
    folders = {answer(process) for process in [ask(tmp_path, 1.0) for _ in range(3)]}
    [folder] = folders
    assert sorted(os.listdir(folder)) == ["half", "whole"]
    assert len((tmp_path / "calls").read_text().split()) == 1


def test_what_a_killed_process_left_is_made_anew(tmp_path: Path) -> None:
    killed = ask(tmp_path, 60.0)
    assert killed.stdout is not None and killed.stdout.readline() == "half\n"
    waiting = ask(tmp_path, 0.0)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    assert sorted(os.listdir(answer(waiting))) == ["half", "whole"]
    assert len((tmp_path / "calls").read_text().split()) == 2
