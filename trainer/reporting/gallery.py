"""What a run has shown, as files: ``media/NAME/step-XXXXXXXX.png``, and ``.json`` for numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..text import printable
from .drawing import png
from .media import NotShown, Shown, prepared

FOLDER = "media"
BYTES_OF_A_NAME = 256 * 1024**2


class Gallery:
    """Prepares what is shown, and writes it to files. It never raises, and says each thing once.

    Args:
        folder: of the run.
        say: prints a line for the user.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder / FOLDER
        self._say = say
        self._said: set[str] = set()
        self._sizes: dict[Path, dict[Path, int]] = {}  # of the files of each name, oldest first

    def show(self, name: str, value: Any, step: int) -> Shown | None:
        """Write a value to files, and return it as trackers show it; None where it cannot be."""
        try:
            shown = prepared(value, lambda text: self.say_once(f"{name}: {text}"))
        except NotShown as error:
            self.say_once(f"{name}: not shown: {error}")
            return None
        except Exception as error:  # (whatever a value does, it must not end the run)
            self.say_once(f"{name}: not shown: {type(error).__name__}: {_first_line(error)}")
            return None

        try:
            self._write(file_name(name), shown, step)
        except Exception as error:  # (a full disk is reported by what the run needs)
            self.say_once(f"{name}: not written: {type(error).__name__}: {_first_line(error)}")
        return shown

    def say_once(self, text: str) -> None:
        """Print a notice, unless it was printed before, be it with other numbers."""
        without_numbers = re.sub(r"[\d.,]+", "", text)
        if without_numbers not in self._said:
            self._said.add(without_numbers)
            self._say(f"note: show: {printable(text)}")

    def _write(self, name: str, shown: Shown, step: int) -> None:
        folder = self._folder / name
        if folder not in self._sizes:  # the attempts before wrote here as well
            folder.mkdir(parents=True, exist_ok=True)
            files = sorted(folder.glob("step-*.*"))
            self._sizes[folder] = {path: path.stat().st_size for path in files}

        contents = {".png": png(shown.picture())}
        numbers = shown.numbers()
        if numbers is not None:
            contents[".json"] = (json.dumps(numbers) + "\n").encode()

        sizes = self._sizes[folder]
        for suffix, content in contents.items():
            path = folder / f"step-{step:08}{suffix}"
            path.write_bytes(content)
            sizes.pop(path, None)
            sizes[path] = len(content)
        self._delete_oldest(sizes)

    def _delete_oldest(self, sizes: dict[Path, int]) -> None:
        """Delete a name's oldest files, as many as are too many."""
        total = sum(sizes.values())
        for path in list(sizes)[:-2]:  # the newest step has two at most
            if total <= BYTES_OF_A_NAME:
                return
            total -= sizes.pop(path)
            path.unlink(missing_ok=True)


def file_name(name: str) -> str:
    """Return the folder below media/ for a name: ``eval/confusion`` stays as it is."""
    parts = []
    for part in name.split("/"):
        safe = re.sub(r"[^\w.\- ]", "_", part).strip(" .")[:80]
        if safe:
            parts.append(safe)
    return "/".join(parts) or "unnamed"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:160]
