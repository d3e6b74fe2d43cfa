"""The copy of a model's folder that is uploaded: without secrets and paths of this machine.

Files with tensors are hard links, so a copy costs no disk, and stays as it is when the next model
replaces the folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..text import HIDDEN, is_secret

_PAGES = (".md", ".yaml", ".yml")
# Parts of a tokenizer, in which anything may look like a path.
_VOCABULARIES = ("tokenizer.json", "vocab.json", "added_tokens.json", "special_tokens_map.json")
# Keys such as audio_token are a tokenizer's.
_TOKENS = ("hf_token", "hub_token", "auth_token", "access_token", "api_token", "token")
_LEAST_SECRET = 8  # characters; shorter ones are found in every text
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")
_LOGIN = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")
_PART = r"[^\s/\"'`|,;:()\[\]{}<>]+"
_PATH = re.compile(rf"(?<![\w.~:/-])~?(?:/{_PART})+")


class NotUploaded(Exception):
    """The reason why a folder must not leave this machine."""


@dataclass(frozen=True, kw_only=True)
class Private:
    """What must not leave this machine.

    Args:
        secrets: values of secrets, by the name of the setting or variable.
        paths: as settings and the process name them.
    """

    secrets: Mapping[str, str]
    paths: Sequence[str]

    @classmethod
    def of(cls, settings: Any, token: str | None, paths: Iterable[str]) -> Private:
        """Return the secrets among a task's settings and in the environment, and local paths.

        Args:
            settings: as JSON holds them.
            token: of the Hub.
            paths: further paths of this machine.
        """
        secrets = dict(_secrets_in(os.environ, ""))
        secrets.update(_secrets_in(settings, "task_settings"))
        if token:
            secrets["the Hub's token"] = token

        known: set[str] = set()
        for text in [*paths, *_texts_in(settings)]:
            known.update(_spellings(text))
        longest_first = sorted(known, key=len, reverse=True)
        return cls(secrets=secrets, paths=longest_first)


def copy_for_upload(source: Path, target: Path, private: Private, card: str) -> None:
    """Make ``target`` a copy of an exported model's folder that may leave this machine.

    Args:
        card: README.md, where the folder has none.

    Raises:
        NotUploaded: a file holds a secret, and cannot do without.
        OSError: it cannot be written.
    """
    shutil.rmtree(target, ignore_errors=True)
    for path in sorted(source.rglob("*")):
        if path.is_dir():
            continue
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        cleaned = _cleaned_file(path, private)
        if cleaned is None:
            _link(path, copy)
        else:
            copy.write_text(cleaned, encoding="utf-8")

    readme = target / "README.md"
    if not readme.exists():
        readme.write_text(cleaned_page(card, private), encoding="utf-8")
    for path in target.rglob("*"):
        if path.is_file():
            _refuse_secrets(path, target, private)


def unknown_base_model(source: Path, copy: Path) -> str:
    """Return a notice where an adapter's base model is a folder here, which nobody else has."""
    names = []
    for folder in (source, copy):
        path = folder / "adapter_config.json"
        if not path.is_file():
            return ""
        names.append(json.loads(path.read_bytes()).get("base_model_name_or_path"))
    if names[0] == names[1]:
        return ""
    return (
        f"the adapter's base model is a folder of this machine; on the Hub it is called "
        f"{names[1]!r}, and base_model_name_or_path in adapter_config.json has to be set by hand"
    )


def _cleaned_file(path: Path, private: Private) -> str | None:
    """Return the text of a page or of settings that had to be changed; None for all others."""
    if path.suffix in _PAGES:
        return cleaned_page(path.read_text(encoding="utf-8", errors="replace"), private)
    if path.suffix != ".json" or path.name in _VOCABULARIES:
        return None

    try:
        values = json.loads(path.read_bytes())
    except ValueError:
        return None
    cleaned = _cleaned(values, private)
    return None if cleaned == values else json.dumps(cleaned, indent=2, ensure_ascii=False) + "\n"


def cleaned_page(text: str, private: Private) -> str:
    """Return a page without secrets, with the last part of each local path.

    A base model that is a folder here is left out of its head, which names models of the Hub.
    """
    lines = []
    for line in text.split("\n"):
        key, _, value = line.partition(": ")
        if key == "base_model" and _is_local(value.strip("'\" "), private):
            continue
        lines.append(line)
    text = _without_secrets("\n".join(lines), private)

    for path in private.paths:
        inside = rf"(?<![\w./~-]){re.escape(path)}(?![\w-])(?:/{_PART})*"
        text = re.sub(inside, lambda found: _last_part(found[0]), text)
    return _PATH.sub(_without_folders, text)


def _without_folders(found: re.Match[str]) -> str:
    """Return the last part of what is a path of this machine."""
    text = found[0]
    parts = text.lstrip("~").split("/")
    is_here = text.startswith("~") or (len(parts) > 2 and Path("/", parts[1]).is_dir())
    return _last_part(text) if is_here else text


def _cleaned(value: Any, private: Private) -> Any:
    """Return settings without secrets and local paths."""
    if isinstance(value, Mapping):
        kept = {}
        for key, item in value.items():
            kept[key] = HIDDEN if _is_secret_setting(key, item) else _cleaned(item, private)
        return kept
    if isinstance(value, list):
        return [_cleaned(item, private) for item in value]
    if not isinstance(value, str):
        return value

    text = _without_secrets(value, private)
    return _last_part(text) if _is_local(text, private) else text


def _is_secret_setting(key: str, item: Any) -> bool:
    """Return whether a setting is a secret; ``eos_token`` and its like are words."""
    if not isinstance(item, str) or not item:
        return False
    is_word = key.endswith("token") and key.lower() not in _TOKENS
    return is_secret(key) and not is_word


def _without_secrets(text: str, private: Private) -> str:
    """Return a text with what is known to be a secret, or looks like one, hidden."""
    for value in private.secrets.values():
        text = text.replace(value, HIDDEN)
    return _LOGIN.sub(HIDDEN, _TOKEN.sub(HIDDEN, text))


def _is_local(text: str, private: Private) -> bool:
    """Return whether a text is a path of this machine."""
    if "\n" in text or len(text) > 4096:
        return False
    if text in private.paths or text.startswith("~/"):
        return True
    if not text.startswith("/") or text.count("/") < 2:
        return False
    return os.path.exists(text) or os.path.isdir(os.path.dirname(text))


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _link(path: Path, copy: Path) -> None:
    """Make a hard link, or a copy where the file system has none."""
    try:
        os.link(path.resolve(), copy)
    except OSError:
        shutil.copyfile(path, copy)


def _refuse_secrets(path: Path, folder: Path, private: Private) -> None:
    """Raise NotUploaded where a file holds the value of a secret; of tensors the names are read."""
    content = _names(path) if path.suffix == ".safetensors" else path.read_bytes()
    for name, value in private.secrets.items():
        if value.encode() in content:
            raise NotUploaded(f"{path.relative_to(folder)} holds the value of {name}")


def _names(path: Path) -> bytes:
    """Return the header of a safetensors file: names, shapes and what was written beside them."""
    with open(path, "rb") as file:
        return file.read(int.from_bytes(file.read(8), "little"))


def _secrets_in(values: object, above: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of each secret at any depth."""
    if not isinstance(values, Mapping):
        return
    for name, value in values.items():
        full = f"{above}.{name}" if above else str(name)
        if isinstance(value, str):
            if is_secret(str(name)) and len(value.strip()) >= _LEAST_SECRET:
                yield full, value.strip()
        else:
            yield from _secrets_in(value, full)


def _texts_in(values: object) -> Iterator[str]:
    """Yield each text in a setting at any depth."""
    if isinstance(values, str):
        yield values
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from _texts_in(value)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _texts_in(value)


def _spellings(text: str) -> Iterator[str]:
    """Yield a text, as it is and made absolute, if it is a path of this machine with folders."""
    if "/" not in text or "\n" in text or len(text) > 4096:
        return
    path = Path(text).expanduser()
    # A pattern or a split (data/*.txt, data/rows@train) is in a folder that is here.
    is_pattern = ("*" in text or "@" in text) and path.parent.parts and Path(path.parts[0]).is_dir()
    is_marked = text.startswith(("/", "./", "../", "~"))
    if not (is_marked or is_pattern or os.path.exists(path)):
        return
    for spelling in (text, str(path), str(path.absolute()), os.path.realpath(path)):
        if len(spelling.strip("/.")) > 1:
            yield spelling.rstrip("/")
