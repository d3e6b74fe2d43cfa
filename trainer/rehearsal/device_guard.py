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
    content = [_SOURCE.read_text(), torch.version, str(folder)]
    made = prepare_once("~/.cache/samecurve", content, partial(_compile, folder))
    ctypes.CDLL(f"{made}/{_LIBRARY}", mode=ctypes.RTLD_GLOBAL)


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
        f"-Wl,--no-as-needed,-rpath,{torch_folder}/lib",  # torch's libraries, CUDA's too, go before
        "-ltorch",
        "-ltorch_cpu",
        "-lc10",
    ]
    subprocess.run(words, check=True)
