"""One command on a machine with a GPU: set it up without a network, run one part, keep the results.

    python3 benchmarks/gpu_run.py table --out DIR     # 124M: tokens/s, MFU, memory, losses, traces
    python3 benchmarks/gpu_run.py tests --out DIR     # tests/gpu
    python3 benchmarks/gpu_run.py probes --out DIR    # attention, loss, saving, loading; more tests
    python3 benchmarks/gpu_run.py large --out DIR     # the table of 1B, and adapters on 8B
    python3 benchmarks/gpu_run.py pair --out DIR      # two GPUs: ranks that are lost, and the end

``--rehearse`` runs the same on a CPU with tiny sizes. ``--fake`` runs the same with its own sizes on
the fake GPU of ``trainer rehearse``, which has memory and no values. What `make gpu-wheels` has put into ``.site``
comes before what is installed. Each part writes its results as soon as it has them, and a log; this
process ends it after ``--limit`` seconds, and leaves time to copy them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMITS = {"table": 560, "tests": 560, "probes": 560, "large": 560, "pair": 560}
PACKAGES = (
    *("torch", "transformers", "accelerate", "triton", "numpy", "safetensors", "tokenizers"),
    *("deepspeed", "bitsandbytes", "peft", "pydantic", "pytest", "pytest-timeout", "xxhash"),
)
# What the part "probes" runs behind the probes, and the part "tests" leaves out.
LATER = "offload or launcher"


def set_up(rehearse: bool, fake_gpus: int = 0) -> None:
    """Set the environment of every process of every part."""
    fake = [str(ROOT / "benchmarks" / "fake_gpu")] if fake_gpus else []
    paths = [*fake, *carried(), str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    os.environ["PYTHONUNBUFFERED"] = "1"
    # A machine without compiled modules compiles 2,200 of them in each process: 4 s of a row.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir()) / "samecurve_pycache")
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # Plugins of the machine's own Python know nothing of our settings, where a warning is an error.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    if fake_gpus:
        os.environ |= {"FAKE_GPUS": str(fake_gpus), "CUDA_VISIBLE_DEVICES": "0"}
        os.environ["DS_ACCELERATOR"] = "cuda"
    if rehearse:
        os.environ["DEVICE"] = "cpu"
        os.environ.setdefault("GPUS", "1")


def carried() -> list[str]:
    """Return the folder of carried packages, if there is one for this Python."""
    mark = ROOT / ".site" / "PYTHON"
    if not mark.exists():
        print("no packages were carried here: make gpu-wheels, and carry .site")
        return []
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if mark.read_text() != here:
        print(f".site is left out: its packages are for Python {mark.read_text()}, this is {here}")
        return []
    return [str(mark.parent)]


def describe(path: Path) -> None:
    """Write what the machine has: Python, packages, GPUs."""
    code = (
        "import importlib.metadata as m, sys\n"
        "print(sys.version)\n"
        f"for name in {PACKAGES!r}:\n"
        "    try: print(name, m.version(name))\n"
        "    except m.PackageNotFoundError: print(name, 'is not installed')\n"
    )
    lines = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    try:
        gpus = subprocess.run(["nvidia-smi"], capture_output=True, text=True).stdout
    except FileNotFoundError:
        gpus = "no nvidia-smi\n"
    path.write_text(lines + gpus)
    print(lines, flush=True)


def commands(part: str, out: Path, rehearse: bool) -> list[list[str]]:
    """Return the commands of a part, in order."""
    rehearsal = ["--rehearse"] if rehearse else []
    # The fake GPU compiles nothing, and its steps are alike.
    quick = ["--compiled", "no", "--warm", "2", "--timed", "2"] if "FAKE_GPUS" in os.environ else []
    benchmark = [sys.executable, "-m"]
    if part in ("table", "large"):
        large = ["--large"] if part == "large" else []
        words = [*benchmark, "benchmarks.gpu_table", "--out", str(out / "table.jsonl")]
        return [[*words, *large, *quick, *rehearsal]]
    if part == "pair":
        return [[*benchmark, "benchmarks.gpu_pair", "--out", str(out / "probes.jsonl"), *rehearsal]]

    tests = [*benchmark, "pytest", "-v", "-m", "gpu", "-p", "no:cacheprovider"]
    if installed("pytest_timeout"):
        tests += ["-p", "pytest_timeout"]
    if part == "tests":
        files = [f"tests/gpu/test_{name}.py" for name in ("strategies", "language", "speed")]
        return [[*tests, *files, "-k", f"not ({LATER})"]]
    probes = [*benchmark, "benchmarks.gpu_probes", "--out", str(out / "probes.jsonl"), *rehearsal]
    return [probes, [*tests, "tests/gpu", "-k", LATER]]


def installed(package: str) -> bool:
    """Return whether a process that is started now can import a package."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([sys.executable, "-c", code]).returncode == 0


def run(command: list[str], log: Any, seconds: float) -> int:
    """Run a command, show and keep what it says, and end it with all it started after a time."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )

    def end() -> None:
        log.write(f"ended after {seconds:.0f} s\n")
        process.terminate()  # the benchmarks end their jobs, which are groups of their own
        time.sleep(2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            log.write(line)
            log.flush()
    timer.cancel()
    return process.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=list(LIMITS))
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--limit", type=float, help="seconds in all")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--fake", action="store_true", help="on a fake GPU: memory, no values")
    args = parser.parse_args()

    began = time.monotonic()
    limit = args.limit or LIMITS[args.part]
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.environ["RESULTS"] = str(out / f"{args.part}.json")
    fake_gpus = 2 if args.part == "pair" else 1
    set_up(args.rehearse, fake_gpus if args.fake else 0)
    describe(out / "machine.txt")

    codes = []
    with (out / f"{args.part}.txt").open("a") as log:
        for command in commands(args.part, out, args.rehearse):
            codes.append(run(command, log, limit - (time.monotonic() - began)))
    print(f"{args.part}: {time.monotonic() - began:.0f} s, results in {out}")
    return max(map(abs, codes))


if __name__ == "__main__":
    sys.exit(main())
