"""Every launcher is recognised, and trains together what it starts.

| promised | strategies and worlds | tests |
|---|---|---|
| python, torchrun, deepspeed and accelerate launch are told apart | one process, 2 | test_real_launchers |
| Ranks that mpirun starts train together | DDP and ZeRO-2 on 2 (nightly) | test_ranks_of_mpirun_train_together |
| So do those of Accelerate's notebook_launcher: the cells of a notebook have the same curve on two processes | one process, DDP on 2 (nightly) | test_a_notebook_learns_the_same_on_two_processes |

Each strategy under each launcher is in test_same_curve.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from launchers import (
    ROOT,
    clean_environment,
    completed,
    deepspeed_launcher,
    free_port,
    json_in,
    json_lines,
)

TWO = ("--config_file", "accel_configs/ddp.yaml", "--main_process_port=PORT")
WHO = """
import dataclasses, json, os, sys
from trainer.distributed.started_by import detect
open(sys.argv[-1] + os.environ.get("RANK", ""), "w").write(json.dumps(dataclasses.asdict(detect())))
"""


@pytest.mark.parametrize(
    ("words", "name", "world"),
    [
        ([sys.executable], "python", 1),
        (["sh", "-c", f"{sys.executable} $0 $1; true"], "python", 1),
        (
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nproc_per_node=2",
                "--master_port=PORT",
            ],
            "torchrun",
            2,
        ),
        ([*deepspeed_launcher()[:-1], "PORT"], "deepspeed", 2),
        ([sys.executable, "-m", "accelerate.commands.launch", *TWO], "accelerate", 2),
    ],
)
def test_real_launchers(words: list[str], name: str, world: int, tmp_path: Path) -> None:
    """Those whose plan.json the test matrix does not hold against their name."""
    script, told = tmp_path / "who.py", tmp_path / "told"
    script.write_text(WHO)
    port = str(free_port())
    full = [word.replace("PORT", port) for word in words] + [str(script), str(told)]
    subprocess.run(
        full, cwd=ROOT, env=clean_environment(), capture_output=True, timeout=120, check=True
    )
    found = [json_in(path) for path in sorted(tmp_path.glob("told*"))]
    assert [(one["name"], one["world_size"], one["local_rank"]) for one in found] == [
        (name, world, r) for r in range(world)
    ]
    typed = full[full.index("--config_file") :] if name == "accelerate" else []
    assert all(one["arguments"] == typed for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "zero2"])
def test_ranks_of_mpirun_train_together(strategy: str, tmp_path: Path) -> None:
    """As Open MPI starts them: two processes that have only its own variables."""
    words = [
        "examples/train.py",
        "--accel_config",
        f"accel_configs/{strategy}.yaml",
        "--max_steps",
        "2",
    ]
    words += ["--config", "examples/configs/digits_cnn.yaml", "--output_dir", str(tmp_path / "run")]
    job = {
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "MASTER_PORT": str(free_port()),
    }
    started = [
        subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=clean_environment(
                {**job, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank)}
            ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=120)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    plan = json_in(tmp_path / "run/plan.json")
    assert (plan["launcher"], plan["world_size"], plan["strategy"]) == ("mpirun", 2, strategy)


# The notebook of examples/clusters


def trained(folder: Path, processes: int) -> dict[int, float]:
    """Run the cells in a folder, as one script, and return the losses by step."""
    cells = json_in(ROOT / "examples/clusters/notebook.ipynb")["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    code = "\n".join(line for line in code.splitlines() if not line.startswith("%"))
    call = "num_processes=2)"
    assert code.count(call) == 1
    code = code.replace(call, f'num_processes={processes}, use_port="{free_port()}")')
    folder.mkdir()
    (folder / "cells.py").write_text(code)
    done = completed([sys.executable, "cells.py"], folder=folder, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "accuracy 0." in done.stdout
    plan = json_in(folder / "runs/notebook/plan.json")
    assert (plan["strategy"], plan["world_size"]) == (("single", "ddp")[processes - 1], processes)
    rows = json_lines(folder / "runs/notebook/metrics.jsonl")
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


@pytest.mark.slow
def test_a_notebook_learns_the_same_on_two_processes(tmp_path: Path) -> None:
    one, two = trained(tmp_path / "one", 1), trained(tmp_path / "two", 2)
    assert len(one) == 69 and list(two) == list(one)
    assert list(two.values()) == pytest.approx(list(one.values()), abs=2e-5)
