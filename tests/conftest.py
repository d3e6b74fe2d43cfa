"""Fixtures of several test files."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import launchers
import psutil
import pytest

# tests/gpu runs on machines where the packages for developers are not installed.
with contextlib.suppress(ModuleNotFoundError):
    import hypothesis

    # On a busy machine every example is slow.
    hypothesis.settings.register_profile("any machine", deadline=None)
    hypothesis.settings.load_profile("any machine")
os.environ.update(launchers.HIDE_GPUS)  # before torch counts them
os.environ["HF_HUB_OFFLINE"] = "1"  # a missing network costs seconds

# pytest's own note of the test that runs; what torch and deepspeed set when they are imported for
# the first time.
_FREE_TO_CHANGE = (
    "PYTEST_CURRENT_TEST",
    "KMP_",
    "TORCHINDUCTOR_",
    "TRITON_",
    "PYTORCH_NVML_BASED_CUDA_CHECK",  # Accelerate, when DeepSpeed is imported
    "TOKENIZERS_PARALLELISM",  # datasets, before it starts processes
)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Let pyproject.toml name the time limit of a test where pytest-timeout is not there."""
    if not any(pluginmanager.has_plugin(name) for name in ("timeout", "pytest_timeout")):
        parser.addini("timeout", "of a test, which nobody watches: pytest-timeout is not there")


def pytest_configure(config: pytest.Config) -> None:
    """Start ranks for all processes of pytest-xdist at once: their start costs 10 s of CPU."""
    if getattr(config.option, "numprocesses", None):
        os.environ[launchers.STARTER], _ = launchers.start_ranks()


def left_behind() -> dict[str, Any]:
    """What of this process others can see, and no test may change: signal handlers, environment,
    processes.
    """
    starters = launchers.STARTED
    return {
        "signal handlers": {
            number.name: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
        },
        "environment": {k: v for k, v in os.environ.items() if not k.startswith(_FREE_TO_CHANGE)},
        # A process of Python's own that cleans up shared memory lives as long as this one.
        "processes": {
            pid for pid in _children() if pid not in starters and not _is_pythons_own(pid)
        },
    }


def _children() -> list[int]:
    """Return the ids of this process's children."""
    if not Path("/proc/self/task").exists():  # psutil looks at all processes, which costs 5 ms
        return [process.pid for process in psutil.Process().children()]

    found = []
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += [int(pid) for pid in path.read_text().split()]
    return found


def _is_pythons_own(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return (
            "multiprocessing.resource_tracker" in " ".join(process.cmdline())
            or process.status() == "zombie"
        )
    except psutil.NoSuchProcess:
        return True


def pytest_collection_finish() -> None:
    """Keep all that the test files import out of each collection of garbage: Accelerate asks for
    one at the end of each training.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a signal handler, an environment variable or a process of its own."""
    before = left_behind()
    yield
    after = left_behind()
    for what in before:
        assert after[what] == before[what], f"the test leaves other {what} than it found"


@pytest.fixture
def hugging_face_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let ``datasets`` keep what it reads in the folder of the test."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))


@pytest.fixture(autouse=True)
def fresh_accelerate(nothing_left_behind: None) -> Iterator[None]:
    """Trainings in this process: Accelerator, float32 switches and variables of a test that has
    trained do not reach the next, and are gone before the test is asked what it leaves.
    """
    kept = dict(os.environ)
    yield
    state = sys.modules.get("accelerate.state")
    if state is None or not state.PartialState._shared_state:
        return
    import torch

    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    state.AcceleratorState._reset_state(reset_partial_state=True)
    state.GradientState._reset_state()
    os.environ.clear()
    os.environ.update(kept)


@pytest.fixture
def module_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of which modules can be imported, and are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
