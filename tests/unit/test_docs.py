"""The pages for people: what they say of names and defaults holds, and every example on them runs."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from doc_pages import places_that_wait, write_files
from launchers import ROOT
from tiny_language import save_masked

import trainer
from trainer.language import DPO, CausalLM, RewardModel


def test_public_names_and_their_methods_have_docstrings() -> None:
    missing = []
    for name in trainer.__all__:
        thing = getattr(trainer, name)
        own = vars(thing) if inspect.isclass(thing) else {}
        methods = {key: value for key, value in own.items() if inspect.isfunction(value)}
        for key, value in {"": thing, **methods}.items():
            if not key.startswith("_") and not inspect.getdoc(value):
                missing.append(f"{name}.{key}")
    assert missing == []


def test_the_api_page_names_every_public_name() -> None:
    named = re.findall(r"^::: trainer\.([\w.]+)\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.M)
    assert {name: module for module, name in named} == trainer._MODULES


# -- docs/coming_from.md
# ------------------------------------------------------------------------------------------


COMING_FROM = (ROOT / "docs/coming_from.md").read_text()
KEYS = {field.name for field in dataclasses.fields(trainer.TrainConfig)}
VERSIONS = (5, 17), (5, 23)  # of transformers, the first and the last that the page is for
HOLD_NO_PLACES = ("Defaults that differ", "Optimizers", "Schedules")  # tables of values


def rows(title: str) -> Iterator[tuple[list[str], str, str]]:
    """Names, the remark behind them, and their place here, of each row of the tables below a
    headline.
    """
    below = re.split(rf"^##+ {re.escape(title)}\n", COMING_FROM, flags=re.MULTILINE)[1]
    for line in re.split(r"^##+ ", below, flags=re.MULTILINE)[0].splitlines():
        if found := re.match(r"\| ((?:`[^`]+`(?:, )?)+) ?(.*?) ?\| (.+) \|$", line):
            yield re.findall(r"`([^`]+)`", found[1]), found[2], found[3]


def names(title: str) -> list[str]:
    return [name for found, _, _ in rows(title) for name in found]


def members(name: str) -> set[str]:
    """What can stand behind ``Task.`` and the like: members, fields, arguments, attributes that its
    docstring names.
    """
    if name == "trainer":
        return set(trainer.__all__)
    thing = getattr(trainer, name)
    told = (inspect.getdoc(trainer.Run) or "").partition("Attributes:")[2]
    attributes = re.findall(r"\w+", told) if name in ("Trainer", "Run") else []
    return {*dir(thing), *inspect.signature(thing).parameters, *attributes}


def refusal(**settings: Any) -> str:
    """What a training config says of settings; nothing if it takes them."""
    try:
        trainer.TrainConfig(task="a:B", max_steps=1, **settings)
    except trainer.ConfigError as error:
        return str(error)
    return ""


def launch_keys() -> set[str]:
    """Keys that an accelerate YAML may have, at its top or in a section."""
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser

    arguments = {action.dest for action in launch_command_parser()._actions}
    return arguments | {field.name for field in dataclasses.fields(ClusterConfig)}


def test_places_that_are_named_exist() -> None:
    titles = re.findall(r"^##+ (.+)\n", COMING_FROM, re.MULTILINE)
    places = [
        (found, ours)
        for title in titles
        if title not in HOLD_NO_PLACES
        for found, _, ours in rows(title)
    ]
    assert sum(len(found) for found, _ in places) > 300
    launch, wrong = launch_keys(), []
    tasks = (CausalLM, DPO, RewardModel)
    settings = KEYS | {field.name for task in tasks for field in dataclasses.fields(task)}
    classes = r"(Task|Data|Trainer|Run|TrainConfig|StepInfo|Callback|trainer)\."
    for found, ours in places:
        if re.match(r"not (needed|offered)\b", ours):
            continue
        known = launch if ours.startswith("launch file: ") else settings
        first = re.match(r"(`[^`]+`(, )?)+", ours.removeprefix("launch file: "))
        named = re.findall(r"`([^`]+)`", first[0]) if first else []
        keys = [name.split(":")[0] for name in named if not re.match(classes, name)]
        if not named or not known.issuperset(keys):
            wrong.append((found, ours))
    assert wrong == []
    named = re.findall(
        r"`(Task|Data|Trainer|Run|TrainConfig|StepInfo|Callback|trainer)\.(\w+)", COMING_FROM
    )
    assert {f"{owner}.{name}" for owner, name in named if name not in members(owner)} == set()


def test_every_field_of_training_arguments_is_there() -> None:
    import transformers

    installed = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    assert VERSIONS[0] <= installed, "older than what the page is for"
    here = set()
    for found, remark, _ in rows("TrainingArguments"):
        since = re.fullmatch(r"\*\((\d+)\.(\d+)\)\*", remark)
        first = (int(since[1]), int(since[2])) if since else VERSIONS[0]
        assert VERSIONS[0] <= first <= VERSIONS[1], found
        if first <= installed:
            here.update(found)
    assert here == {field.name for field in dataclasses.fields(transformers.TrainingArguments)}


def test_trainer_callbacks_and_schedules_of_transformers_are_there() -> None:
    import transformers
    from transformers.trainer_utils import SchedulerType

    told = set(names("Arguments and methods of the Trainer"))
    arguments = inspect.signature(transformers.Trainer).parameters
    assert set(arguments) <= told <= {*arguments, *dir(transformers.Trainer)}
    hooks = {name for name in vars(transformers.TrainerCallback) if name.startswith("on_")}
    assert set(names("TrainerCallback")) == hooks
    assert set(names("Schedules")) == {kind.value for kind in SchedulerType}
    ours = [re.match(r"`([\w:]+)`", place) for _, _, place in rows("Schedules")]
    assert [
        found[1] for found in ours if found and "unknown schedule" in refusal(schedule=found[1])
    ] == []


def test_every_call_of_accelerate_is_there() -> None:
    import accelerate

    told, arguments = set(names("Calls")), inspect.signature(accelerate.Accelerator).parameters
    members = {name for name in dir(accelerate.Accelerator) if not name.startswith("_")}
    methods = {name for name in members if callable(getattr(accelerate.Accelerator, name))}
    assert {*arguments, *methods} <= told <= {*arguments, *members, *dir(accelerate)}


def test_translated_scripts_train(module_folder: Path) -> None:
    """The side that is ours, with a model and reviews that are small enough."""
    save_masked(Path("tiny"))
    Path("reviews.csv").write_text("text,label\n" + "good film,1\na bad film,0\n" * 40)
    write_files(COMING_FROM)
    words = ["--config", "reviews.yaml", "--task_settings.name", "tiny", "--lr", "0.01"]
    loaded = trainer.load_config(words)
    run = trainer.Trainer(*trainer.load_task(loaded), origins=loaded.origins)
    assert run.fit()["eval/accuracy"] == 1
    run.run.close()
    assert Path("runs/reviews/model/tokenizer.json").exists()


# The traps of Accelerate


def defined(path: Path) -> set[str]:
    """Names of the functions and classes at the top of a file, and of methods as ``Class.method``."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    top = [node for node in ast.parse(path.read_text()).body if isinstance(node, kinds)]
    inner = [
        (node.name, member)
        for node in top
        if isinstance(node, ast.ClassDef)
        for member in node.body
    ]
    return {node.name for node in top} | {
        f"{name}.{node.name}" for name, node in inner if isinstance(node, kinds)
    }


def test_code_and_tests_named_beside_each_trap_exist() -> None:
    page = (ROOT / "docs/accelerate_traps.md").read_text()
    assert [
        path for path in re.findall(r"`([\w/]+\.py)[:`]", page) if not (ROOT / path).is_file()
    ] == []
    named = re.findall(r"`([\w/]+\.py): ([\w.]+)`", page)
    assert [f"{path}: {name}" for path, name in named if name not in defined(ROOT / path)] == []
    traps = re.split(r"^\*\*", page, flags=re.MULTILINE)[1:]
    assert len(traps) > 30
    for trap in traps:
        paths = re.findall(r"`([\w/]+\.py): ", trap)
        assert {path.split("/")[0] for path in paths} == {"trainer", "tests"}, trap


def test_each_test_of_a_trap_is_on_the_page() -> None:
    page = (ROOT / "docs/accelerate_traps.md").read_text()
    for path in ("tests/upstream/test_two_processes.py", "tests/upstream/test_one_process.py"):
        tests = [name for name in defined(ROOT / path) if name.startswith("test_")]
        assert [name for name in tests if f"`{path}: {name}`" not in page] == []


def test_every_place_that_waits_for_a_device_is_on_the_page() -> None:
    waits = places_that_wait()
    for place in waits:
        file, _, function = place.partition(": ")
        if file.startswith("trainer/"):
            assert f"def {function}(" in (ROOT / file).read_text(), place

    files = {place.partition(": ")[0] for place in waits}
    for path in (ROOT / "trainer").rglob("*.py"):
        # Of a stream that waits for another one (``wait_stream``) the host learns nothing.
        if ".synchronize(" in path.read_text():
            assert str(path.relative_to(ROOT)) in files, "it waits for a device"
