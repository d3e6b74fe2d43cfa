"""Errors that are sent from one process to another."""

from __future__ import annotations

import pickle

from trainer.errors import ConfigError, Origin, Problem


def test_an_error_of_the_main_process_is_the_same_on_the_others() -> None:
    """It is sent to them as a pickle: whichever rank is the first to tell it, it reads alike."""
    error = ConfigError(
        [Problem(origin=Origin("a.yaml:1", key="lr"), rule="rule", value=v) for v in (-1, -2)]
    )
    sent = pickle.loads(pickle.dumps(error))
    assert (str(sent), sent.problems) == (str(error), error.problems)
