"""What a refactoring must leave as it is, to the bit: losses, norms, model files and checkpoints of
twelve short runs.

    python benchmarks/golden.py write before.json      # on the commit before
    python benchmarks/golden.py check before.json      # after: names what differs, exit code 1

The digits CNN (12 steps, saved at 6, and again from there) and the small Llama, in one process and
under every strategy on two. Run it on one machine with one set of packages: other kernels round in
another way. 12 minutes on two cores.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
STRATEGIES = ("single", "ddp", "fsdp", "zero1", "zero2", "zero3")
RUNS = {
    "digits": [
        "--config",
        "examples/configs/digits_cnn.yaml",
        "--micro_batch_size",
        "32",
        "--max_steps",
        "12",
        "--save_every",
        "6",
    ],
    "llama": [
        "--config",
        "examples/configs/llama_stdlib.yaml",
        "--micro_batch_size",
        "8",
        "--max_steps",
        "6",
        "--save_every",
        "3",
    ],
}
COMMON = ["--log_every", "1", "--warmup_steps", "2", "--keep_last", "9", "--mixed_precision", "no"]
SETTINGS = {"digits": [], "llama": ["--task_settings.max_bytes", "300000"]}
CHANGES_WITH_THE_CODE = ("versions", "plan", "config", "spent", "not_finite_at_start")


def train(strategy: str, folder: Path, words: list[str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    start = [sys.executable]
    if strategy != "single":
        start = [str(BIN / "torchrun"), "--nproc_per_node", "2", "--master_port", port]
        words = [*words, "--accel_config", f"accel_configs/{strategy}.yaml"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [*start, "examples/train.py", *words, "--output_dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def facts(folder: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = ("loss", "grad_norm", "lr")
    found: dict[str, Any] = {
        "rows": [
            {
                k: float(v).hex()
                for k, v in row.items()
                if (k in kept or k.startswith("eval/")) and v is not None
            }
            for row in rows
        ],
        "model": digest(folder / "model" / "model.safetensors"),
    }
    for checkpoint in sorted((folder / "checkpoints").glob("step-*")):
        state = json.loads((checkpoint / "state.json").read_text())
        state = {key: value for key, value in state.items() if key not in CHANGES_WITH_THE_CODE}
        # Written as {} until 2026-11-23, and left out since then.
        state["callbacks"] = {name: kept for name, kept in state["callbacks"].items() if kept}
        found[checkpoint.name] = {
            path.name: digest(path) for path in sorted(checkpoint.glob("*.safetensors"))
        }
        found[checkpoint.name]["state.json"] = state
    return found


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def measure(folder: Path) -> dict[str, Any]:
    found = {}
    for name, words in RUNS.items():
        for strategy in STRATEGIES:
            out, again = folder / f"{name}-{strategy}", folder / f"{name}-{strategy}-again"
            whole = [*words, *COMMON, *SETTINGS[name]]
            train(strategy, out, whole)
            found[f"{name}-{strategy}"] = facts(out)
            if name == "digits":
                train(
                    strategy,
                    again,
                    [*whole, "--resume", str(out / "checkpoints" / "step-00000006")],
                )
                found[f"{name}-{strategy}-again"] = facts(again)
            print(f"{name} {strategy}", flush=True)
    return found


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            line
            for key in sorted(before.keys() | after.keys())
            for line in differences(before.get(key), after.get(key), f"{path}/{key}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            line
            for at, pair in enumerate(zip(before, after, strict=True))
            for line in differences(*pair, f"{path}/{at}")
        ]
    return [] if before == after else [f"{path}: {before!r:.100} -> {after!r:.100}"]


def main() -> int:
    verb, name = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    if verb == "write":
        Path(name).write_text(json.dumps(found, indent=1))
        return 0
    found = json.loads(json.dumps(found))
    different = differences(json.loads(Path(name).read_text()), found)
    print("\n".join(different) or "nothing differs")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
