"""Processes that prepare one corpus at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from corpora import ENVIRONMENT, words


def test_processes_that_prepare_at_once_share_one_result(tmp_path: Path) -> None:
    text = words(tmp_path / "text.txt", 50_000)
    code = f"""
import time
import llama_stdlib
made, write = [], llama_stdlib._write
def slow_write(*arguments, **settings):
    made.append(1)
    time.sleep(0.5)  # the other process comes meanwhile
    write(*arguments, **settings)
llama_stdlib._write = slow_write
print("ready", flush=True)
input()
task = llama_stdlib.LlamaStdlib(corpus={str(text)!r}, vocab_size=2000, cache_dir={str(tmp_path / "cache")!r})
data = task.build_data()
print(len(made), len(data.train), data.train.tokens.sum())
"""
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "text": True,
        "env": ENVIRONMENT,
    }
    started = [subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(2)]
    assert [process.stdout.readline() for process in started] == ["ready\n"] * 2
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    printed = [process.communicate(timeout=60)[0].split() for process in started]
    assert sorted(made for made, *_ in printed) == ["0", "1"], "one makes it, the other waits"
    assert printed[0][1:] == printed[1][1:]
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 1
