"""A folder that holds files already: which run may write there, and which files go."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..checkpoint.disk import delete, part_of, publish, read_json
from ..checkpoint.exported import exported_file
from ..checkpoint.store import is_ours
from ..text import listed

CHECKPOINTS = "checkpoints"
# Files that runs write, and that --overwrite may delete.
_FILES = (
    "config.yaml", "plan.json", "metrics.jsonl", "summary.json", "attempts.json", "log.txt",
    "files", "wandb", "tracking", "tracking.json", "profile", "evaluations", "digests.jsonl",
)  # fmt: skip
_MODELS = ("model", "best")


def take_over(folder: Path, entries: Sequence[Path], *, overwrite: bool, continues: bool) -> str:
    """Prepare a used folder for a run, and return why it is refused, or "".

    Args:
        overwrite: empty the folder. That of a run that failed before step 1 is emptied anyway.
        continues: resume in the folder, if the folder is that of a run.
    """
    # A run that fails before plan.json is written leaves lines and empty folders.
    if not any(_holds_files(entry) for entry in entries if entry.name != "log.txt"):
        return ""

    is_of_a_run = _holds_plan(folder)
    if continues and is_of_a_run:
        return ""
    results = ("metrics.jsonl", "summary.json", CHECKPOINTS, *_MODELS, "evaluations")
    has_results = any(_holds_files(folder / name) for name in results)
    if not overwrite and (has_results or not is_of_a_run):
        from ..checkpoint.discover import how_to_resume

        return (
            f"holds files already; {how_to_resume(folder / CHECKPOINTS)}; otherwise give a new "
            "folder, or --overwrite to replace a former run"
        )

    foreign = sorted(entry.name for entry in entries if not (is_of_a_run and _is_ours(entry)))
    if foreign:
        return (
            f"holds files that no run wrote ({listed(foreign)}); they are not deleted: give a new "
            "folder"
        )

    for entry in entries:
        # A link to another disk stays, and is emptied.
        is_linked = entry.name == CHECKPOINTS and entry.is_symlink()
        for doomed in entry.iterdir() if is_linked else [entry]:
            delete(doomed)
    return ""


def ended_at(folder: Path) -> int | None:
    """Return the step at which a run ended here, with the model written. None if none has."""
    try:
        steps = read_json(folder / "summary.json")["steps"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return steps if exported_file(folder / "model") else None


def cut_rows(folder: Path, step: int) -> None:
    """Drop the rows of a run's files after a step, and a last row that is cut.

    To such a row the next row would be appended, and both would be lost.
    """
    for path in map(folder.joinpath, _FILES):
        if path.suffix == ".jsonl" and path.exists():
            rows = path.read_bytes().splitlines(keepends=True)
            whole = [row for row in rows if row.endswith(b"\n")]
            kept = [row for row in whole if json.loads(row).get("step", 0) <= step]
            part_of(path).write_bytes(b"".join(kept))
            publish(path)


def _holds_plan(folder: Path) -> bool:
    try:
        plan = read_json(folder / "plan.json")
        return {"strategy", "world_size", "versions"} <= plan.keys()  # type: ignore[no-any-return]
    except (OSError, ValueError, AttributeError):
        return False


def _holds_files(entry: Path) -> bool:
    """Return whether an entry is a file, or has a file anywhere inside."""
    return any(inner.is_file() for inner in (entry, *entry.rglob("*")))


def _is_ours(entry: Path) -> bool:
    """Return whether a run wrote an entry of a folder."""
    name = entry.name
    if name in _MODELS:
        return exported_file(entry) is not None
    if name == CHECKPOINTS and entry.is_dir():
        return all(is_ours(inner) for inner in entry.iterdir())
    if name.startswith("."):  # .model.part and .model.old are there while model/ is written
        name = name[1:].removesuffix(".part").removesuffix(".old")
        return name in (*_FILES, *_MODELS)
    return name in _FILES
