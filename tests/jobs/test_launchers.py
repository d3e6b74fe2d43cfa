"""Who started this process: real launchers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from launchers import BIN, ROOT, clean_environment, free_port

ONE = ("--config_file", "accel_configs/single.yaml")
TWO = ("--config_file", "accel_configs/ddp.yaml", "--main_process_port=PORT")
WHO = """
import dataclasses, json, os, sys
from trainer.distributed.launcher import detect
open(sys.argv[-1] + os.environ.get("RANK", ""), "w").write(json.dumps(dataclasses.asdict(detect())))
"""


@pytest.mark.parametrize(
    ("words", "name", "world"),
    [
        ([sys.executable], "python", 1),
        (["sh", "-c", f"{sys.executable} $0 $1; true"], "python", 1),
        ([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=PORT"], "torchrun", 2),
        ([str(BIN / "accelerate"), "launch", *ONE], "accelerate", 1),
        ([sys.executable, "-m", "accelerate.commands.launch", *TWO], "accelerate", 2),
    ],
)
def test_real_launchers(words: list[str], name: str, world: int, tmp_path: Path) -> None:
    """Those whose plan.json the test matrix does not hold against their name."""
    script, told = tmp_path / "who.py", tmp_path / "told"
    script.write_text(WHO)
    port = str(free_port())
    full = [word.replace("PORT", port) for word in words] + [str(script), str(told)]
    subprocess.run(full, cwd=ROOT, env=clean_environment(), capture_output=True, timeout=120, check=True)
    found = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("told*"))]
    assert [(one["name"], one["world_size"], one["rank"]) for one in found] == [(name, world, r) for r in range(world)]
    typed = full[full.index("--config_file") :] if name == "accelerate" else []
    assert all(one["arguments"] == typed for one in found)
