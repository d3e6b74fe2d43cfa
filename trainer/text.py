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

from pydantic import ByteSize

_SHOWN = 30  # known names
HIDDEN = "(hidden)"  # shown instead of a secret
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
# The names of secrets, dotted. The tokens of a tokenizer (eos_token) are no secrets.
_NAME = (
    r"secret|passw|passphrase|passcode|credential|webhook|bearer|authorization|cookie|session.?id|conn(ection)?.?str|"
    r"(database|db|sql|mongo|redis|amqp).?ur[il]|(?<![a-z])(o?auth|jwt|dsn|sas|pem|t?otp|pin)(?![a-z])|"
    r"(pwd|(?<![a-z])pass|(db|user)pass|(?<![a-z])pw|creds?|private|(?<![a-z])sig|signature|(?<![\w-])tokens|"
    r"(api|access|private|auth|account|service|client|shared|signing|encryption|ssh|rsa|master|license|db|database).?keys?|"
    r"(api|auth|access|hub|hf|wandb|github|gitlab|slack|bot).?tokens|"
    r"(?<!pad.)(?<!eos.)(?<!bos.)(?<!unk.)(?<!sep.)(?<!cls.)(?<!end.)(?<!stop.)(?<!mask.)(?<!start.)(?<!image.)token"
    r")(?![\w-])"
)
# NAME='TEXT' or NAME=NUMBER. A number is a secret as a password alone. Under NAME_key and headers a
# text is a secret unless the text could be the name of a column.
_SECRET = re.compile(
    rf"(?i)[^=]*?(?:(?:{_NAME})[^=]*=(?!\d+\Z)|(?<![a-z])(pin|otp|pass|password|pw|pwd)=|"
    r"(_key|header)s?(?![\w-])[^=]*=(?!\d+\Z)(?!(?-i:'(?=\w\w)[a-z]{1,12}(_[a-z]{1,12}){,2}'\Z)))"
)
# Secrets in a text: name=secret, name: secret, --name secret.
_NAMED = re.compile(
    rf"(?i)((?:(?<![\w-])--[\w.-]{{,40}}?(?:{_NAME})[\w.-]{{,40}}\s+|(?:{_NAME})[\w.-]{{,40}}[\"']?\s?(?:=|:(?!//|(?-i:[A-Z])))\s?)[\"']?)"
    r"(?:(?:bearer|basic|token)\s+)?[^\s&#;,\"']+"
)
# A private key, a password or token before the @ of an address, a webhook, keys of a known form.
_FORM = re.compile(
    r"(?s)-----BEGIN[^-]*PRIVATE KEY.*?(?:-----END[^-]*-----|\Z)|(?<=://)([^/\s:@]*:)[^/\s]+(?=@)|"
    r"(?<=https://)[^/\s:@]+(?=@)|(?<=http://)[^/\s:@]+(?=@)|(?<=hooks)[./][^\s'\"]+|"
    r"\b(?:sk-|github_pat_)[\w-]{20,}|\b(?:hf|gh[oprsu])_[A-Za-z0-9]{30,}|\bxox[a-z]-[\w-]{16,}|"
    r"\bA[KS]IA[A-Z0-9]{16}|\bAIza[\w-]{35}|(?<![\w/+])[A-Za-z0-9+/]{22,}==?(?![\w=])|"
    r"(?<![\w/+.~-])(?=[a-z/+]*[A-Z])(?=[A-Z/+]*[a-z])(?=\D*\d)[A-Za-z0-9+/]{40}(?![\w/+.=-])"
)
# Runs of letters and digits that are no hash, and their words and numbers: short in random text.
_RUN = re.compile("(?<![A-Za-z0-9])(?!(?:[0-9a-f]+|[0-9A-F]+)(?![A-Za-z0-9]))[A-Za-z0-9]{16,}")
_PART = re.compile("[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[A-Z]|[0-9]+")
SECRETS: set[str] = set()  # known to this process: declared, or under the name of a secret


def hidden(value: Any, name: str = "") -> Any:
    """Return a value in which secrets are replaced by ``(hidden)``.

    A text is a secret if the task declares it (``pydantic.SecretStr``), by the dotted name above
    the text, by a form such as a password in an address, or if a part looks random and is no hash.
    """
    if isinstance(value, Mapping):
        return {key: hidden(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(hidden(item, name) for item in value)
    if not isinstance(value, str | int) or value in ("", True, False):
        return value

    text = str(value)
    if text in SECRETS or _SECRET.match(f"{name}={value!r}"):
        if len(text) >= 8 and not text.isalpha():
            SECRETS.add(text)
        return HIDDEN
    if isinstance(value, int):
        return value
    value = _NAMED.sub(r"\1(hidden)", without_secrets(value))
    return re.sub(r"[\w+=.~%-]{16,}", _without_random, value)


def _without_random(word: re.Match[str]) -> str:
    is_random = any(2.75 * len(_PART.findall(run)) > len(run) for run in _RUN.findall(word[0]))
    return HIDDEN if is_random else word[0]


def without_secrets(text: str) -> str:
    """Return a text in which the known secrets are hidden, and those of a known form."""
    for secret in SECRETS:
        if len(secret) >= 8:  # a shorter text may be a part of any word
            text = text.replace(secret, HIDDEN)
    return _FORM.sub(r"\1(hidden)", text)


def printable(text: str) -> str:
    """Return a text that cannot control a terminal: escape sequences are spelled out."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?`` for a wrong name, or the known names, or the nearest of many.

    A known name may be the initials of the wrong name: ``lr`` for ``learning_rate``.
    """
    names = sorted(known)
    initials = re.sub("([^_])[^_]*_?", r"\1", name)
    near = [initials] if initials in names else difflib.get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    if len(names) > _SHOWN:
        names = difflib.get_close_matches(name, names, n=len(names), cutoff=0)
    return f"known: {listed(names, _SHOWN) or 'none'}"


def listed(names: Sequence[str], most: int = 3, between: str = ", ") -> str:
    """Join the first names, and count the others: ``a, b, c (and 5 more)``."""
    text = between.join(names[:most])
    more = len(names) - most
    return f"{text} (and {more} more)" if more > 0 else text


def several(names: str | Sequence[str]) -> Sequence[str]:
    """Return names as a sequence. A text is a single name."""
    return [names] if isinstance(names, str) else names


def in_one_line(value: object) -> str:
    """Return the text of a value without line breaks."""
    return " ".join(str(value).split())


def told(error: BaseException) -> str:
    """Return the class of an error and the first line of the message, if there is a message."""
    line = str(error).strip().partition("\n")[0]
    return ": ".join(filter(None, [type(error).__name__, line]))


def size(count: float) -> str:
    """Return a number of bytes for people: ``1.5 GiB``."""
    return ByteSize(count).human_readable(separator=" ")


def clock(seconds: float) -> str:
    """Return a time for people: ``1:02:03``."""
    return str(timedelta(seconds=int(seconds))).removeprefix("0:")


def seconds_of(duration: str) -> int:
    """Return the seconds of a text such as ``2d``, ``1h30m`` or ``90s``. 0 for any other text."""
    if not re.fullmatch("([0-9]+[dhms])+", duration):
        return 0
    parts = re.findall("([0-9]+)(.)", duration)
    return sum(int(count) * _SECONDS[unit] for count, unit in parts)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


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
    return "\n".join([rule, columns(rows), *(f"note: {notice}" for notice in notices), rule])


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that a run depends on."""
    # A checkout that is on PYTHONPATH, and not installed, has no version.
    found = {"samecurve": "not installed"}
    for name in ("samecurve", "torch", "accelerate", "deepspeed", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found | {"python": platform.python_version()}
