"""Text for people: sizes, tables, lists, the nearest known name, and hidden secrets."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib.metadata
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

HIDDEN = "(hidden)"  # shown instead of a secret
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
# Names of settings whose text is a secret. The tokens of a tokenizer (eos_token) are no secrets.
_SECRET = re.compile(
    r"(api|access|private|auth|secret|account|hub|hf|wandb|signing|encryption|ssh|rsa|master|license|openai|anthropic|"
    r"azure|aws|gcp|google|gemini|mistral|cohere|groq|together|replicate|openrouter|deepseek|comet|neptune|swanlab|sentry|"
    r"stripe|github|gitlab|slack).?keys?$|secret|passw|passphrase|pwd$|credential|webhook|bearer|authorization|cookie|jwt$|"
    r"dsn$|connection.?string|(?<![a-z_-])tokens$|(api|auth|access|hub|hf|wandb|github|gitlab|slack|bot).?tokens$|"
    r"(?<!pad.)(?<!eos.)(?<!bos.)(?<!unk.)(?<!sep.)(?<!cls.)(?<!end.)(?<!stop.)(?<!mask.)(?<!start.)(?<!image.)token$",
    re.IGNORECASE,
)
# A secret in an address (//user:PASSWORD@host, ?token=SECRET), or known by its beginning.
_IN_TEXT = re.compile(
    r"(?P<before>(?<=://)[^/\s:@]*:|(?<=[?&])(?P<name>[\w.-]+)=)((?<==)[^&#\s]+|(?<=:)[^/\s]+(?=@))|"
    r"\b(sk-([a-z0-9]+-){0,2}\w{20,}|(hf|gh[opsu])_[A-Za-z0-9]{30,}|github_pat_\w{20,}|glpat-[\w-]{20,}|"
    r"xox[abp]-[\w-]{16,}|AKIA[A-Z0-9]{16}|AIza[\w-]{35})"
)


def is_secret(name: str) -> bool:
    """Return whether a setting of this name is a secret, never to be written or shown."""
    return _SECRET.search(name) is not None


def hidden(value: Any, *, secret: bool = False) -> Any:
    """Return a value in which the texts of secrets are replaced by ``(hidden)``.

    Args:
        value: any JSON value. The keys decide which texts are secrets. So does a text's form: a
            password in an address, and a key such as ``sk-...``.
        secret: whether all texts are secrets.
    """
    if isinstance(value, Mapping):
        return {
            key: hidden(item, secret=secret or is_secret(str(key))) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(hidden(item, secret=secret) for item in value)
    if not isinstance(value, str) or not value:
        return value
    if secret:
        return HIDDEN
    return _IN_TEXT.sub(_without_secret, value)


def _without_secret(found: re.Match[str]) -> str:
    before, name = found["before"] or "", found["name"]
    return found[0] if name and not is_secret(name) else before + HIDDEN


def printable(text: str) -> str:
    """Return a text that cannot control a terminal: escape sequences are spelled out."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?`` for a wrong name, or a list of the known names.

    A known name may be the initials of the wrong name: ``lr`` for ``learning_rate``.
    """
    names = sorted(known)
    initials = re.sub("([^_])[^_]*_?", r"\1", name)
    near = [initials] if initials in names else difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {listed(names, 12) or 'none'}"


def listed(names: Sequence[str], most: int = 3, between: str = ", ") -> str:
    """Join the first names, and count the others: ``a, b, c (and 5 more)``."""
    text = between.join(names[:most])
    more = len(names) - most
    return f"{text} (and {more} more)" if more > 0 else text


def size(count: float) -> str:
    """Return a number of bytes for people: ``1.5 GiB``."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        units.pop(0)
    return f"{count:.0f} B" if units[0] == "B" else f"{count:.1f} {units[0]}"


def clock(seconds: float) -> str:
    """Return a time for people: ``1:02:03``."""
    return str(timedelta(seconds=int(seconds))).removeprefix("0:")


def seconds_of(duration: str) -> int:
    """Return the seconds of a text such as ``2d``, ``1h30m`` or ``90s``. 0 for any other text."""
    if re.fullmatch("([0-9]+[dhms])+", duration) is None:
        return 0
    parts = re.findall("([0-9]+)(.)", duration)
    return sum(int(count) * _SECONDS[unit] for count, unit in parts)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def is_headline(name: str) -> bool:
    """Return whether a metric is shown to people. An element such as ``eval/recall/3`` is not."""
    return not name.rpartition("/")[2].isdigit()


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return the metrics that are shown to people, as a line."""
    shown = [f"{name} {value:.4f}" for name, value in metrics.items() if is_headline(name)]
    return listed(shown, 12, "  ")


def table(rows: Sequence[tuple[str, str]], notices: Sequence[str]) -> str:
    """Return names and values between two rules of 80 columns, with notices below them."""
    rule = "-" * 80
    return "\n".join([rule, *columns(rows), *(f"note: {notice}" for notice in notices), rule])


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that a run depends on."""
    # A checkout that is on PYTHONPATH, and not installed, has no version.
    found = {"samecurve": "not installed"}
    for name in ("samecurve", "torch", "accelerate", "deepspeed", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found | {"python": platform.python_version()}
