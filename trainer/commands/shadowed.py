"""Find what hides this package: another module or distribution that is called ``trainer`` as well.

A launcher would run that one instead, and train nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

_THIS_PACKAGE = Path(__file__).resolve().parents[1]


def shadow_notices(folder: Path) -> Iterator[str]:
    """Yield a line for each file in ``folder`` that Python imports instead of this package.

    It does so for a script in that folder, and for ``python -m trainer`` started there.
    """
    for path in (folder / "trainer.py", folder / "trainer" / "__init__.py"):
        if path.is_file() and path.resolve().parent != _THIS_PACKAGE:
            yield (
                f"{path}: hides samecurve's package trainer: a script in this folder, and "
                "-m trainer train started in it, run this file instead and train nothing; rename it"
            )


def other_distributions() -> Iterator[str]:
    """Yield a line for each other installed distribution that has a package called ``trainer``."""
    distributions = set(packages_distributions().get("trainer", ()))
    for name in sorted(distributions - {"samecurve"}):
        yield (
            f"{name}: an installed distribution with a package called trainer too, whose files are "
            f"among samecurve's: pip uninstall {name}, and install samecurve again"
        )
