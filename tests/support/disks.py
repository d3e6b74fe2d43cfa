"""Disks that fill up, or take no writes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(folder: Path) -> Iterator[tuple[list[str], Path]]:
    """A disk of 4 MiB at ``folder``, which those processes see that the words start, and others
    below the path.
    """
    folder.mkdir()
    words = [
        "unshare",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs -o size=4M none "$0" && echo && cat',
    ]
    with subprocess.Popen(
        [*words, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None and holder.stdout.readline()
        inside = [
            "nsenter",
            "--target",
            str(holder.pid),
            "--user",
            "--mount",
            "--preserve-credentials",
            "--wd",
        ]
        yield inside, Path(f"/proc/{holder.pid}/root") / folder.relative_to("/")
        holder.stdin.close()
