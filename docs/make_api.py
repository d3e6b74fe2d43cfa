"""Fill in docs/api.md from the docstrings: ``make docs``, or ``python docs/make_api.py``.

What stands between ``<!-- api ... -->`` and ``<!-- end -->`` is made here; the text and the
examples around it are written by hand. A marker holds a public name (followed by its members where
their order matters), or one of

    errors       the table of all errors
    callbacks    the built-in callbacks, in the order of their calls
    commands     what ``trainer --help`` and each command's ``--help`` print

This script knows ``trainer.__all__``, the public members of the classes in it, and the command
``trainer``; it does not know in which file anything lives.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import json
import os
import re
import tempfile
import typing
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from unittest import mock

from torch import nn

import trainer

PAGE = Path(__file__).with_name("api.md")
BLOCK = re.compile(r"(<!-- api (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):\n((?: .*\n|\n)*)", re.MULTILINE)
ENTRY = re.compile(r"^    (\w[\w, ]*): (.*(?:\n {8}.*)*)", re.MULTILINE)
LIMITS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
WIDTH = 100


def make(page: str) -> str:
    """Fill in all blocks of the page.

    Raises:
        ValueError: a public name is not on the page, a marker names what does not exist, or a
            docstring is missing.
    """
    markers = [words.split() for _, words, _ in BLOCK.findall(page)]
    shown = {words[0] for words in markers}
    if "errors" in shown:
        shown |= {name for name in trainer.__all__ if _is_error(getattr(trainer, name))}
    if absent := sorted(set(trainer.__all__) - shown):
        raise ValueError(f"docs/api.md has no <!-- api {absent[0]} -->")
    return BLOCK.sub(lambda found: f"{found[1]}{_block(found[2].split())}\n{found[3]}", page)


def _block(words: list[str]) -> str:
    name, *members = words
    special = {"TrainConfig": keys, "errors": errors, "callbacks": callbacks, "commands": commands}
    if name in special:
        return special[name]()
    if name not in trainer.__all__:
        raise ValueError(f"docs/api.md: trainer has no public {name!r}")
    return entry(name, members)


def entry(name: str, order: list[str]) -> str:
    """One public name: signature, docstring, members."""
    thing = getattr(trainer, name)
    parts = [_signature(name, thing), described(name, thing)]
    members = public_members(thing) if inspect.isclass(thing) else {}
    if order and set(order) != set(members):
        raise ValueError(
            f"docs/api.md: {name} has the members {sorted(members)}, "
            f"its marker says {sorted(order)}"
        )
    for member in order or members:
        value, full = members[member], f"{name}.{member}"
        function = value.fget if isinstance(value, property) else value
        parts += [f"#### {full}", _signature(full, value), described(full, function)]
    return "\n\n".join(parts)


def public_members(cls: type) -> dict[str, Any]:
    """Methods and properties that a class defines itself, in the order of its source."""
    return {
        name: value
        for name, value in vars(cls).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    }


def described(name: str, thing: Any) -> str:
    """The docstring as Markdown: its text, and a list for each of its sections."""
    if not (thing.__doc__ or "").strip() or thing.__doc__.startswith(
        f"{name}("
    ):  # which dataclasses make themselves
        raise ValueError(f"{name} has no docstring")
    text = re.sub(r"``(.+?)``", r"`\1`", inspect.cleandoc(thing.__doc__)) + "\n"

    def section(found: re.Match[str]) -> str:
        entries = ENTRY.findall(found[2])
        if not entries:
            return f"*{found[1]}*: {' '.join(found[2].split())}\n"
        lines = [
            f"- `{names.replace(', ', '`, `')}`: {' '.join(about.split())}"
            for names, about in entries
        ]
        return "\n".join([f"*{found[1]}*", "", *lines, "", ""])

    return SECTION.sub(section, text).strip()


def documented_arguments(thing: Any) -> list[str]:
    """The names under ``Args:`` of a docstring."""
    text = inspect.cleandoc(thing.__doc__) + "\n"
    entries = [ENTRY.findall(body) for title, body in SECTION.findall(text) if title == "Args"]
    return [name for found in entries for names, _ in found for name in names.split(", ")]


def _signature(name: str, thing: Any) -> str:
    if isinstance(thing, property):
        return _code(f"{name}: {thing.fget.__annotations__['return']}")
    cls = inspect.isclass(thing)
    is_data = cls and dataclasses.is_dataclass(thing)
    factories = (
        {field.name: field.default_factory for field in dataclasses.fields(thing)}
        if is_data
        else {}
    )
    found = inspect.signature(thing)
    words, keyword_only = [], False
    for parameter in found.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            words.append("*")
        text = parameter.name
        if parameter.annotation is not parameter.empty:
            # A NamedTuple keeps its annotations as references.
            named = getattr(parameter.annotation, "__forward_arg__", parameter.annotation)
            text += f": {named}"
        if parameter.default is not parameter.empty:
            factory = factories.get(parameter.name, dataclasses.MISSING)
            default = parameter.default if factory is dataclasses.MISSING else factory()
            text += f" = {default!r}"
        words.append(text)
    result = (
        "" if cls or found.return_annotation is found.empty else f" -> {found.return_annotation}"
    )
    head = f"{'class ' if cls else ''}{name}"
    line = f"{head}({', '.join(words)}){result}"
    if len(line) > WIDTH:
        line = "\n".join([f"{head}(", *(f"    {word}," for word in words), f"){result}"])
    return _code(line)


def _plain(annotation: str) -> str:
    """An annotation as written, without what ``Annotated`` says beside the type."""
    tree = ast.parse(annotation, mode="eval").body
    if (
        isinstance(tree, ast.Subscript)
        and ast.unparse(tree.value) == "Annotated"
        and isinstance(tree.slice, ast.Tuple)
    ):
        return ast.unparse(tree.slice.elts[0])
    return annotation


def _limit(annotation: Any, name: str) -> float | None:
    """The limit of this name in an annotation, or in a type inside of it."""
    for note in getattr(annotation, "__metadata__", ()):
        for limit in getattr(note, "metadata", ()):
            if hasattr(limit, name):
                return float(getattr(limit, name))
    found = [_limit(inside, name) for inside in typing.get_args(annotation)]
    return next((limit for limit in found if limit is not None), None)


def keys() -> str:
    """What TrainConfig says of itself, and the table of its keys."""
    hints = typing.get_type_hints(trainer.TrainConfig, include_extras=True)
    text = described("TrainConfig", trainer.TrainConfig)
    rows = [text, "", "| key | type | default | limits | meaning |", "|---|---|---|---|---|"]
    for field in dataclasses.fields(trainer.TrainConfig):
        limits = []
        for name, sign in LIMITS.items():
            limit = _limit(hints[field.name], name)
            if limit is not None:
                limits.append(f"{sign} {limit:g}" if limit < 2**20 else f"{sign} 2³² - 1")
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        shown = "required" if default is dataclasses.MISSING else f"`{json.dumps(default)}`"
        notes = hints[field.name].__metadata__
        meaning = next(note.description for note in notes if hasattr(note, "description"))
        kind = _plain(str(field.type)).replace("|", "\\|")
        rows.append(f"| `{field.name}` | `{kind}` | {shown} | {', '.join(limits)} | {meaning} |")
    return "\n".join(rows)


def errors() -> str:
    """The table of all errors with their exit codes."""
    rows = ["| error | is also | exit code | what is wrong |", "|---|---|---:|---|"]
    found = [
        getattr(trainer, name) for name in trainer.__all__ if _is_error(getattr(trainer, name))
    ]
    for error in sorted(found, key=lambda error: len(error.__mro__)):
        bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
        rows.append(
            f"| `{error.__name__}` | {bases} | {error.exit_code} "
            f"| {described(error.__name__, error)} |"
        )
    return "\n".join(rows)


class _Nothing(trainer.Task):
    """The smallest task."""

    def build_data(self) -> trainer.Data:
        return trainer.Data(train=[0.0], evaluation=[0.0])

    def build_model(self) -> nn.Module:
        return nn.Linear(1, 1)


def callbacks() -> str:
    """The callbacks of a trainer whose config asks for all of them, in the order of their calls."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        config = trainer.TrainConfig(
            task="docs:Nothing",
            output_dir=folder,
            max_steps=2,
            max_time="1h",
            eval_every=1,
            best_metric="eval/loss",
            trackers=["tensorboard"],
            push_to_hub="user/name",
            profile_steps="2",
        )
        run = trainer.Trainer(_Nothing(), config)
        run.run.close()
    lines = []
    for number, kind in enumerate(map(type, run.run.callbacks), 1):
        text, *_ = described(kind.__name__, kind).partition(
            "\n\n*"
        )  # without its arguments: the config gives them
        lines.append(f"{number}. **{kind.__name__}.** {' '.join(text.split())}")
    return "\n".join(lines)


def commands() -> str:
    """What the command ``trainer`` and its subcommands say of themselves."""
    [script] = [found for found in entry_points(group="console_scripts") if found.name == "trainer"]
    run: Callable[[list[str]], int] = script.load()
    first = _said(run, "--help")
    parts = [_code(f"$ trainer --help\n{first}", "text")]
    for name in re.findall(r"^  (\w+) ", first, re.MULTILINE):
        parts += [f"### trainer {name}", _code(_said(run, name, "--help"), "text")]
    return "\n\n".join(parts)


def _said(run: Callable[[list[str]], int], *words: str) -> str:
    said = io.StringIO()
    # A command that trains leaves the process through os._exit, here as well.
    leaving = mock.patch("os._exit", side_effect=SystemExit)
    narrow, ended = mock.patch.dict(os.environ, COLUMNS=str(WIDTH)), contextlib.suppress(SystemExit)
    with narrow, leaving, contextlib.redirect_stdout(said), ended:
        run(list(words))
    return said.getvalue().rstrip()


def _code(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```"


def _is_error(thing: Any) -> bool:
    return inspect.isclass(thing) and issubclass(thing, Exception)


if __name__ == "__main__":
    PAGE.write_text(make(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
