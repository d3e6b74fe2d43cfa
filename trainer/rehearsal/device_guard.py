"""The device guard of a GPU that is not there, compiled at the first use."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from functools import partial
from importlib.metadata import distribution
from pathlib import Path

from ..data.cache import prepare_once
from ..errors import LaunchError

_SOURCE = Path(__file__).with_suffix(".cpp")
_LIBRARY = "guard.so"


def load_guard() -> None:
    """Give this process a CUDA device that computes nothing. Call before torch is imported.

    Raises:
        LaunchError: there is no compiler, or the compiler failed.
    """
    torch = distribution("torch")
    folder = Path(str(torch.locate_file("torch")))
    content = [_SOURCE.read_text(), torch.version]
    made = prepare_once("~/.cache/samecurve", content, partial(_compile, folder))

    # OpenMP's library has a name of its own in each wheel.
    libraries = [
        *folder.glob("lib/libgomp*"),
        folder / "lib/libc10.so",
        folder / "lib/libtorch_cpu.so",
        *folder.glob("lib/libtorch_cuda.so"),
    ]
    for library in (*libraries, made / _LIBRARY):
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def _compile(torch_folder: Path, folder: Path) -> None:
    """Compile the guard into a folder."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise LaunchError(
            "a rehearsal compiles a stand-in for the GPU once: install g++, or "
            "name a C++ compiler by the environment variable CXX"
        )
    include, lib = torch_folder / "include", torch_folder / "lib"
    words = f"-O1 -shared -fPIC -std=c++20 -I{include} -I{include}/torch/csrc/api/include".split()
    words += [str(_SOURCE), "-o", str(folder / _LIBRARY), f"-L{lib}", "-lc10", "-ltorch_cpu"]
    done = subprocess.run([compiler, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaunchError(f"{compiler} cannot compile {_SOURCE}: {done.stderr[:500]}")
