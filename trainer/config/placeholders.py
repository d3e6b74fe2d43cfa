"""Placeholders in ``run_name`` and ``output_dir``: ``runs/{experiment}-lr{lr}-s{seed}``.

They are written as for ``str.format``: ``{lr}``, ``{seed:03}``; a literal brace is doubled.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from string import Formatter
from typing import Any

from ..text import did_you_mean, is_secret, nearest

# The keys that may hold placeholders.
TEMPLATES = ("run_name", "output_dir")
_NO_TIME = (
    "no such placeholder: a name with the time is another one at each start, which no resume finds "
    "again; the shell puts it there once: --output_dir runs/$(date +%m%d-%H%M)"
)
_NO_PATH_CHARACTERS = re.compile(r"[^\w.+=,-]+")


class PlaceholderError(ValueError):
    """A template cannot be filled in; the message is the rule that it breaks."""


def names_in(template: str) -> list[str]:
    """Return the names of the placeholders of a template.

    Raises:
        PlaceholderError: its braces do not match, or hold no name.
    """
    return [name for _, name, _ in _parts(template) if name is not None]


def fill_in(
    template: str, values: Mapping[str, object], unknown_yet: Collection[str] = (), *, path: bool
) -> str:
    """Return a template with the values of its placeholders.

    Args:
        values: by name.
        unknown_yet: names whose placeholders stay as they are.
        path: whether values become parts of names of files: a slash or a space is a dash then.

    Raises:
        PlaceholderError: it names no value, or one that is no part of a name.
    """
    filled = ""
    for literal, name, form in _parts(template):
        filled += literal
        if name is None:
            continue
        if name in unknown_yet:
            filled += f"{{{name}:{form}}}" if form else f"{{{name}}}"
            continue

        if name not in values:
            raise _unknown(name, {*values, *unknown_yet})
        text = _value_text(name, values, form) or "_"
        filled += file_name_part(text) if path else text
    return filled


def as_literal(text: str) -> str:
    """Return the template that stands for a text, whatever braces it holds."""
    return text.replace("{", "{{").replace("}", "}}")


def of_literal(template: str) -> str:
    """Return the text that a template without placeholders stands for."""
    return template.replace("{{", "{").replace("}}", "}")


def file_name_part(text: str) -> str:
    """Return a text that can be a part of a file's name: no slash, no space, no leading dot."""
    safe = _NO_PATH_CHARACTERS.sub("-", text)
    return re.sub(r"^\.+", "_", safe)


def _parts(template: str) -> Iterator[tuple[str, str | None, str]]:
    """Yield a literal text, the name of the placeholder behind it (or None) and its format."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError:
        rule = "a brace has no partner; double the braces that are meant literally"
        raise PlaceholderError(rule) from None

    for literal, name, form, conversion in parts:
        if name is not None and (conversion or not re.fullmatch(r"\w+(\.[\w-]+)*", name)):
            rule = "is not a placeholder, such as {lr}; double the braces that are meant literally"
            written = f"{name}!{conversion}" if conversion else name
            raise PlaceholderError(f"{{{written}}} {rule}")
        yield literal, name, form or ""


def _value_text(name: str, values: Mapping[str, object], form: str) -> str:
    """Return the value of a placeholder as text.

    Raises:
        PlaceholderError: it cannot stand in a name.
    """
    if any(is_secret(part) for part in name.split(".")):
        raise PlaceholderError(f"{{{name}}} is a secret, and is not written down")

    value = values[name]
    if isinstance(value, Mapping):
        below = [key for key in values if key.startswith(f"{name}.")]
        hint = f"name one of them, such as {{{below[0]}}}" if below else "it has none"
        raise PlaceholderError(f"{{{name}}} has settings of its own: {hint}")

    if not form:
        return _plain(value)
    try:
        return format(value, form)
    except (TypeError, ValueError):
        rule = f"{{{name}:{form}}}: {_plain(value)} has no such format"
        raise PlaceholderError(rule) from None


def _plain(value: Any) -> str:
    """Return a value as YAML spells it, on one line; of a list its items, between commas."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(_plain, value))
    return " ".join(str(value).split())


def _unknown(name: str, known: Collection[str]) -> PlaceholderError:
    if name == "time":
        return PlaceholderError(f"{{{name}}}: {_NO_TIME}")

    # The last part of a dotted name is what people remember of it.
    by_last_part = {key.rpartition(".")[2]: key for key in known if "." in key}
    last_part = nearest(name, by_last_part)
    if last_part is not None and nearest(name, known) is None:
        hint = f"did you mean {by_last_part[last_part]!r}?"
    else:
        hint = did_you_mean(name, known)
    return PlaceholderError(
        f"{{{name}}}: no such placeholder; {hint} (double the braces that are meant literally)"
    )
