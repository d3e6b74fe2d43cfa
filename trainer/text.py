"""Text for people: sizes, tables, lists, what a misspelt or a former name means."""

from __future__ import annotations

import contextlib
import difflib
import functools
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

HIDDEN = "(hidden)"  # in the place of a secret
# Names of settings whose text is a secret; those of a tokenizer's tokens are none (eos_token).
_SECRET = re.compile(
    r"(api|access|private|auth|secret|account|hub|hf|wandb|signing|encryption).?key$|secret|passw|passphrase|credential|"
    r"(?<!pad.)(?<!eos.)(?<!bos.)(?<!unk.)(?<!sep.)(?<!cls.)(?<!end.)(?<!stop.)(?<!mask.)(?<!start.)(?<!image.)token$",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Tell whether the text of a setting of this name is to be written and shown nowhere."""
    return _SECRET.search(name) is not None


def hidden(value: Any, *, secret: bool = False) -> Any:
    """Return a value with ``(hidden)`` for the texts in it whose name is that of a secret.

    Args:
        secret: hide all texts in it.
    """
    if isinstance(value, Mapping):
        return {
            key: hidden(item, secret=secret or is_secret(str(key))) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        items = [hidden(item, secret=secret) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return HIDDEN if secret and isinstance(value, str) and value else value


def hidden_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command with ``(hidden)`` for the values of secrets: ``--name value``,
    ``name=value``.
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
    """Return a text of which a terminal obeys nothing: escape sequences are shown, lines stay."""
    return "".join(
        one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode()
        for one in text
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?``, else the short list of what is known, else up to three that are
    close.
    """
    names = sorted(set(known))
    near = nearest(name, names)
    if near:
        return f"did you mean {near!r}?"
    if not names:
        return "there are none"
    if len(names) <= 24:
        return f"known: {', '.join(names)}"
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return (
        f"the closest are {', '.join(close)}"
        if close
        else f"none of the {len(names)} known ones is like it"
    )


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the one of ``known`` that ``name`` is a misspelling of: one letter away, or alike by
    three quarters.
    """
    name, lower = name.lower(), {one.lower(): one for one in sorted(known)}
    # difflib misses short names, and is misled by long ones that differ in one letter (cp_size,
    # tp_size).
    close = [name] if name in lower else [one for one in lower if _one_letter_apart(name, one)]
    found = close or difflib.get_close_matches(name, lower, n=1, cutoff=0.75)
    return lower[found[0]] if found else None


def _one_letter_apart(one: str, other: str) -> bool:
    """Tell whether one letter was left out, put in, replaced, or exchanged with its neighbour."""
    start = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    left, right = one[start:], other[start:]
    return right in (left[1:], left[1:2] + left[:1] + left[2:]) or right[1:] in (left, left[1:])


def listed(names: Sequence[str], most: int = 3) -> str:
    """Join the first names, and count the others: ``a, b, c (and 5 more)``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" (and {more} more)" if more > 0 else "")


def kind_of(value: object) -> str:
    """Say what a value is where it should be another: ``None``, ``a Tensor``, ``a tuple of (Tensor,
    Tensor)``.
    """
    if value is None:
        return "None"
    name = type(value).__name__
    article = "an" if name[:1].lower() in "aeiou" else "a"
    parts = (
        f" of ({', '.join(type(part).__name__ for part in value)})"
        if isinstance(value, tuple)
        else ""
    )
    return f"{article} {name}{parts}"


def size(count: float) -> str:
    """Return bytes for people: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def clock(seconds: float) -> str:
    """Return a time for people: ``1:02:03``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def seconds_of(duration: str) -> float:
    """Return the seconds of a time for people (``2d``, ``1h30m``, ``90s``); 0 where it is none."""
    found = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", duration)
    units = (86400, 3600, 60, 1)
    return (
        sum(int(count or 0) * unit for count, unit in zip(found.groups(), units, strict=True))
        if found
        else 0
    )


def columns(rows: Sequence[Sequence[str]], *, left: int | None = None) -> list[str]:
    """Write rows as lines with aligned columns: the first ``left`` to the left (None: all), the
    others to the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    signs = ["<" if left is None or at < left else ">" for at in range(len(widths))]
    formats = [f"{sign}{width}" for sign, width in zip(signs, widths, strict=True)]
    return ["  ".join(map(format, row, formats)).rstrip() for row in rows]


def is_headline(name: str) -> bool:
    """Tell whether a metric is shown to people: values per class and the like (``eval/recall/3``)
    are too many.
    """
    return not name.rpartition("/")[2].isdigit()


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return the metrics that are shown, in one line."""
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items() if is_headline(name))


def table(rows: Sequence[tuple[str, str]], notices: Sequence[str]) -> str:
    """Write names and values between two rules, with notices below them."""
    lines = [*columns(rows), *(f"note: {notice}" for notice in notices)]
    rule = "-" * min(100, max(map(len, lines)))
    return "\n".join([rule, *lines, rule])


def versions(*, installed: bool = False) -> dict[str, str]:
    """Return the versions of the packages that decide what runs: of those that this process has
    imported.

    Args:
        installed: of those that it could import as well.
    """
    from importlib.metadata import PackageNotFoundError

    found = {"samecurve": _version("samecurve")}
    for name in ("torch", "accelerate", "deepspeed", "transformers"):
        with contextlib.suppress(PackageNotFoundError):
            if installed or name in sys.modules:
                found[name] = _version(name)
    return found | {"python": platform.python_version()}


@functools.cache
def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)  # parses a file, which takes a millisecond: every save asks
