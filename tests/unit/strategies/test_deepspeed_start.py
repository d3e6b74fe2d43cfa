"""What the process gets before DeepSpeed's engine."""

from __future__ import annotations

import logging

from trainer.private.deepspeed_engine import quiet


def test_logging_is_quiet_only_meanwhile() -> None:
    log = logging.getLogger("deepspeed_test")
    with quiet():
        assert not log.isEnabledFor(logging.WARNING)
    assert log.isEnabledFor(logging.WARNING)
