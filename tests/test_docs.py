"""The pages for people: what they say of names and defaults holds, and every example on them runs."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jobs import BIN, ROOT, clean_environment

import trainer

API = (ROOT / "docs" / "api.md").read_text()
MAKE_API = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "make_api.py")))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(page: str) -> Iterator[tuple[str, str]]:
    """Language and text of the examples on a page, without what is generated."""
    yield from FENCE.findall(MAKE_API.BLOCK.sub("", page))


def write_files(page: str) -> None:
    """Write the examples that begin with a file's name, such as ``# line.py``, into the current folder."""
    for _, text in examples(page):
        if name := re.match(r"# (\w+\.(?:py|yaml))\n", text):
            Path(name[1]).write_text(text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of which modules can be imported, and are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


# -- docs/api.md --------------------------------------------------------------------------------------------------


def test_api_page_is_what_the_script_makes() -> None:
    # Without regard to line breaks: argparse sets them in other places in other versions of Python.
    assert MAKE_API.make(API).split() == API.split(), "run: make docs"


def test_public_names_and_methods_have_docstrings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making the page fails without one, or where a name is left out."""
    monkeypatch.setattr(trainer.Task.build_data, "__doc__", None)
    with pytest.raises(ValueError, match=r"Task\.build_data has no docstring"):
        MAKE_API.make(API)
    monkeypatch.undo()
    monkeypatch.setattr(trainer, "launch_all", print, raising=False)
    monkeypatch.setattr(trainer, "__all__", [*trainer.__all__, "launch_all"])
    with pytest.raises(ValueError, match="has no <!-- api launch_all -->"):
        MAKE_API.make(API)


def test_docstrings_name_the_arguments_that_there_are() -> None:
    wrong = []
    for name in trainer.__all__:
        thing = getattr(trainer, name)
        members = MAKE_API.public_members(thing) if inspect.isclass(thing) else {}
        functions = {f"{name}.{key}": value for key, value in members.items() if inspect.isfunction(value)}
        for full, function in {name: thing, **functions}.items():
            if full in ("TrainConfig",) or (inspect.isclass(thing) and issubclass(thing, Exception)):
                continue
            told, known = MAKE_API.documented_arguments(function), inspect.signature(function).parameters
            wrong += [f"{full} has no {argument}" for argument in told if argument not in known]
            if dataclasses.is_dataclass(function):
                wrong += [f"{full} does not tell of {argument}" for argument in known if argument not in told]
    assert wrong == []


def test_api_examples_run(folder: Path) -> None:
    write_files(API)
    namespace: dict[str, Any] = {"__name__": "examples", "trainer": trainer}
    exec("import torch", namespace)
    ran = 0
    for language, text in examples(API):
        if language == "python" and not re.match(r"# \w+\.py\n", text):
            exec(compile(text, "docs/api.md", "exec"), namespace)
            ran += 1
    assert ran >= 9
    told = re.search(r"\*Attributes\*\n\n((?:- .*\n)+)", MAKE_API.entry("TrainState", []))
    assert told is not None
    names = re.findall(r"`(\w+)`(?=[,:])", told[1])
    assert len(names) > 10 and [name for name in names if not hasattr(namespace["state"], name)] == []


def test_task_methods_are_called_in_the_order_of_the_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without those of checkpoints, which may be asked for their state at any time."""
    [(_, order)] = re.findall(r"<!-- api (Task) (.+) -->", API)
    methods = [name for name in order.split() if "state_dict" not in name and name != "save_extras"]
    write_files(API)
    from line import Line  # type: ignore[import-not-found]

    called: list[str] = []

    def noting(name: str) -> Any:
        def method(self: trainer.Task, *given: Any) -> Any:
            called.append(name)
            # What a task overrides itself is not called a second time by the default of another method.
            return getattr(Line, name)(self, *given)

        return method

    noted = type("Noted", (Line,), {name: noting(name) for name in methods})
    run = trainer.Trainer(noted(), trainer.TrainConfig(task="line:Line", output_dir="run", max_steps=2))
    run.fit()
    run.close()
    assert list(dict.fromkeys(called)) == methods


def test_api_commands_run(folder: Path) -> None:
    """One job: every command on the page, one after the other."""
    write_files(API)
    commands = [text for language, text in examples(API) if language == "sh"]
    assert len(commands) == 3
    path = {"PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-e", "-c", "".join(commands)],
        env=clean_environment(path), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert "fsdp on 2 processes" in done.stdout
    assert "step-00000040" in done.stdout
