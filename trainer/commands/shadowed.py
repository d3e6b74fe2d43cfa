"""Whether something else answers to the name ``trainer``, so that a launcher would run it instead
of this package.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

_OURS = Path(__file__).resolve().parents[1]


def shadow_notices(folder: Path) -> Iterator[str]:
    """Yield a line for each file of ``folder`` that Python takes for this package: of a script
    there, and of ``-m``.
    """
    for found in (folder / "trainer.py", folder / "trainer" / "__init__.py"):
        if found.is_file() and found.resolve().parent != _OURS:
            yield (
                f"{found}: stands before samecurve's package trainer: a script in this folder, and -m trainer train "
                "started in it, run this file instead and train nothing; rename it"
            )


def other_distributions() -> Iterator[str]:
    """Yield a line for each other installed distribution that has a package called ``trainer``."""
    for name in sorted(set(packages_distributions().get("trainer", ())) - {"samecurve"}):
        yield (
            f"{name}: an installed distribution with a package called trainer too, whose files lie among samecurve's: "
            f"pip uninstall {name}, and install samecurve anew"
        )
