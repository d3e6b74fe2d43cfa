"""Fill a folder with the packages that a bare GPU machine without a network lacks: `make gpu-wheels`.

    python benchmarks/gpu_wheels.py --python 3.12 --cuda 130

The folder (``.site``, which git ignores) is carried beside the checkout and put on PYTHONPATH, where
it comes before what is installed there. torch, transformers and accelerate are not in it: the
machine has its own. Versions are those of constraints.txt. Compiled packages are fetched as wheels
for the machine's Python; DeepSpeed, of which the index has no wheel, and bitsandbytes, of which a
machine needs one of many CUDA libraries, are copied from this environment.

Checkout and folder together must be small enough to travel: ``LIMIT`` is checked.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / ".site"
LIMIT = 60 * 2**20  # of 64 MiB that may travel
TAGS = ("2_28", "2_27", "2_17")  # pip matches each exactly

# What the package itself and its tests import, as far as torch, transformers and accelerate do not
# bring it: a machine may have some of them.
FETCHED = (
    *("pydantic", "pydantic-core", "annotated-types", "typing-inspection", "typing-extensions"),
    *("xxhash", "peft"),
    *("datasets", "dill", "multiprocess"),
    *("hjson", "msgpack", "py-cpuinfo", "einops"),  # of DeepSpeed
    *("pytest", "pytest-timeout", "pluggy", "iniconfig"),
)
COPIED = ("deepspeed", "bitsandbytes")


def fetch(python: str) -> None:
    """Install the fetched packages into the folder, for another Python than this one."""
    platforms = [f"manylinux_{tag}_x86_64" for tag in TAGS]
    platforms += ["manylinux2014_x86_64", "manylinux1_x86_64"]
    words = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--target", str(SITE)),
        *("--no-deps", "--no-compile", "--only-binary=:all:", "--implementation", "cp"),
        *("--python-version", python, "--constraint", str(ROOT / "constraints.txt")),
    ]
    for platform in platforms:
        words += ["--platform", platform]
    subprocess.run([*words, *FETCHED], check=True)


def copy(name: str, cuda: str) -> None:
    """Copy an installed package, without compiled Python and libraries for other devices."""
    distribution = importlib.metadata.distribution(name)
    for file in distribution.files or ():
        outside = ".." in file.parts  # a command: it names this machine's Python
        compiled = "__pycache__" in file.parts
        if outside or compiled or is_for_another_device(file.name, cuda):
            continue
        target = SITE / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(distribution.locate_file(file), target)


def is_for_another_device(name: str, cuda: str) -> bool:
    """Return whether a file is a library of bitsandbytes for another device or version of CUDA."""
    if not (name.startswith("libbitsandbytes_") and name.endswith(".so")):
        return False
    return name not in (f"libbitsandbytes_cuda{cuda}.so", "libbitsandbytes_cpu.so")


def travelling_bytes() -> dict[str, int]:
    """Return the bytes of the folder, and of the checkout beside it."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    checkout = [ROOT / name for name in names.split("\0") if name]
    return {SITE.name: bytes_of([*SITE.rglob("*")]), "the checkout": bytes_of(checkout)}


def bytes_of(paths: list[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", default="3.12", help="of the machine, not of this environment")
    parser.add_argument("--cuda", default="130", help="that the machine's torch was built for")
    args = parser.parse_args()

    shutil.rmtree(SITE, ignore_errors=True)
    fetch(args.python)
    for name in COPIED:
        try:
            copy(name, args.cuda)
        except importlib.metadata.PackageNotFoundError:
            print(f"left out: {name} is not installed here (make setup installs it)")
    shutil.rmtree(SITE / "bin", ignore_errors=True)  # commands name this machine's Python
    (SITE / "PYTHON").write_text(args.python)  # gpu_run.py leaves a folder for another one out

    sizes = travelling_bytes()
    total = sum(sizes.values())
    parts = ", ".join(f"{name} {count / 2**20:.1f} MiB" for name, count in sizes.items())
    print(f"{parts}: {total / 2**20:.1f} of {LIMIT / 2**20:.0f} MiB")
    if total > LIMIT:
        raise SystemExit("too large to travel")


if __name__ == "__main__":
    main()
