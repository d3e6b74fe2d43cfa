"""Text for people: sizes, tables, lists, the nearest known name, and secrets left out."""

from __future__ import annotations

import contextlib
import difflib
import functools
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

HIDDEN = "(hidden)"  # shown instead of a secret
# Names of settings whose text is a secret. The tokens of a tokenizer are none (eos_token).
_SECRET = re.compile(
    r"(api|access|private|auth|secret|account|hub|hf|wandb|signing|encryption).?key$|secret|passw|passphrase|credential|"
    r"(?<!pad.)(?<!eos.)(?<!bos.)(?<!unk.)(?<!sep.)(?<!cls.)(?<!end.)(?<!stop.)(?<!mask.)(?<!start.)(?<!image.)token$",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Return whether a setting of this name is a secret, never to be written or shown."""
    return _SECRET.search(name) is not None


def hidden(value: Any, *, secret: bool = False) -> Any:
    """Return a value in which the texts of secrets are replaced by ``(hidden)``.

    Args:
        value: any JSON value; the secrets in it are found by their keys.
        secret: whether all texts in it are secrets.
    """
    if isinstance(value, Mapping):
        shown = {}
        for key, item in value.items():
            shown[key] = hidden(item, secret=secret or is_secret(str(key)))
        return shown
    if isinstance(value, list | tuple):
        items = [hidden(item, secret=secret) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    if secret and isinstance(value, str) and value:
        return HIDDEN
    return value


def hidden_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command in which the values of secrets are replaced by ``(hidden)``.

    Both spellings are found: ``--name value`` and ``name=value``.
    """
    shown: list[str] = []
    value_follows = False
    for word in words:
        name, equals, _ = word.partition("=")
        if value_follows and not word.startswith("--"):
            shown.append(HIDDEN)
        elif equals and is_secret(name):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(word)
        value_follows = word.startswith("--") and not equals and is_secret(word)
    return shown


def printable(text: str) -> str:
    """Return a text that cannot control a terminal: escape sequences are spelled out."""
    shown = []
    for character in text:
        if not character.isprintable() and character != "\n":
            character = character.encode("unicode_escape").decode()
        shown.append(character)
    return "".join(shown)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?`` for a wrong name, or else which names are known."""
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else f"known: {listed(sorted(known), 12) or 'none'}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` is a misspelling of, in any case, or None."""
    by_lower_case = {other.lower(): other for other in known}
    similar = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
    return by_lower_case[similar[0]] if similar else None


def listed(names: Sequence[str], most: int = 3) -> str:
    """Join the first names, and count the others: ``a, b, c (and 5 more)``."""
    text = ", ".join(names[:most])
    more = len(names) - most
    return f"{text} (and {more} more)" if more > 0 else text


def kind_of(value: object) -> str:
    """Return the type of a value for a message: ``a Tensor``, ``a tuple of (Tensor, Tensor)``."""
    if value is None:
        return "None"
    name = type(value).__name__
    article = "an" if name[:1].lower() in "aeiou" else "a"
    if not isinstance(value, tuple):
        return f"{article} {name}"
    parts = ", ".join(type(part).__name__ for part in value)
    return f"{article} {name} of ({parts})"


def size(count: float) -> str:
    """Return a number of bytes for people: ``1.5 GiB``."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def clock(seconds: float) -> str:
    """Return a time for people: ``1:02:03``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}"


def seconds_of(duration: str) -> float:
    """Return the seconds of a duration such as ``2d``, ``1h30m`` or ``90s``; 0 if it is none."""
    match = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", duration)
    if match is None:
        return 0
    days, hours, minutes, seconds = (int(count or 0) for count in match.groups())
    return days * 86400 + hours * 3600 + minutes * 60 + seconds


def columns(rows: Sequence[Sequence[str]], *, left: int | None = None) -> list[str]:
    """Return rows as lines with aligned columns.

    Args:
        left: how many columns are aligned to the left, the others to the right; None for all.
    """
    formats = []
    for number, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        sign = "<" if left is None or number < left else ">"
        formats.append(f"{sign}{width}")

    lines = []
    for row in rows:
        cells = [format(cell, form) for cell, form in zip(row, formats, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def is_headline(name: str) -> bool:
    """Return whether a metric is shown to people; elements such as ``eval/recall/3`` are not."""
    return not name.rpartition("/")[2].isdigit()


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return the metrics that are shown to people, in one line."""
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items() if is_headline(name))


def table(rows: Sequence[tuple[str, str]], notices: Sequence[str]) -> str:
    """Return names and values between two rules, with notices below them."""
    lines = [*columns(rows), *(f"note: {notice}" for notice in notices)]
    rule = "-" * min(100, max(map(len, lines)))
    return "\n".join([rule, *lines, rule])


def versions(*, installed: bool = False) -> dict[str, str]:
    """Return the versions of Python and of the packages that decide what runs, where imported.

    A checkout that is on PYTHONPATH, and not installed, has no version.

    Args:
        installed: also of those that are installed and not imported.
    """
    from importlib.metadata import PackageNotFoundError

    try:
        found = {"samecurve": _version("samecurve")}
    except PackageNotFoundError:
        found = {"samecurve": "not installed"}
    for name in ("torch", "accelerate", "deepspeed", "transformers"):
        with contextlib.suppress(PackageNotFoundError):
            if installed or name in sys.modules:
                found[name] = _version(name)
    return found | {"python": platform.python_version()}


@functools.cache
def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)  # reads a file, which takes a millisecond: kept, as every save asks
