"""The device guard of a GPU that is not there, compiled at the first use."""

from __future__ import annotations

import ctypes
import os
import subprocess
from functools import partial
from importlib.metadata import distribution
from pathlib import Path

from ..data.cache import prepare_once

_SOURCE = Path(__file__).with_suffix(".cpp")
_LIBRARY = "guard.so"


def load_guard() -> None:
    """Give this process a CUDA device that computes nothing. Call before torch is imported."""
    torch = distribution("torch")
    folder = Path(str(torch.locate_file("torch")))
    content = [_SOURCE.read_text(), torch.version]
    made = prepare_once("~/.cache/samecurve", content, partial(_compile, folder))

    # OpenMP's library has a name of its own in each wheel.
    names = ("libgomp*", "libc10.so", "libtorch_cpu.so", "libtorch_cuda.so")
    libraries = [file for name in names for file in folder.glob(f"lib/{name}")]
    for library in (*libraries, made / _LIBRARY):
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def _compile(torch_folder: Path, folder: Path) -> None:
    """Compile the guard into a folder."""
    include = torch_folder / "include"
    words = [
        os.environ.get("CXX", "g++"),
        "-O1",
        "-shared",
        "-fPIC",
        "-std=c++20",
        f"-I{include}",
        f"-I{include}/torch/csrc/api/include",
        str(_SOURCE),
        "-o",
        f"{folder}/{_LIBRARY}",
        f"-L{torch_folder}/lib",
        "-lc10",
        "-ltorch_cpu",
    ]
    subprocess.run(words, check=True)
