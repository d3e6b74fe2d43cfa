"""Agreement of one process with itself.

Several ranks agree in tests/jobs/test_same_curve_ranks.py and test_exits.py.
"""

from __future__ import annotations

import os
import signal

import pytest

from trainer.distributed import agreement
from trainer.distributed.agreement import Agreement
from trainer.errors import TrainerError


def test_one_process_agrees_with_itself() -> None:
    alone = Agreement()
    assert (alone.rank, alone.world_size, alone.distributed) == (0, 1, False)
    assert alone.gather("a") == ["a"]
    assert alone.begin_sums([2.5])() == [2.5]
    assert alone.begin_max(3, -2)() == [3, -2]
    alone.check_same(7)
    alone.settle()
    alone.close()


def test_a_stop_by_the_code_has_no_signal_and_an_agreed_one_needs_no_vote() -> None:
    asked, agreed = Agreement(), Agreement()
    asked.stop()
    assert [asked.poll() for _ in range(3)][-1] == 0
    agreed.stop(agreed=True)
    assert agreed.poll() == 0


def test_the_end_of_the_launcher_asks_for_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = Agreement()
    monkeypatch.setattr(agreement, "launcher_line", lambda: ["torchrun"])
    launched, left_alone = Agreement(), Agreement()
    assert [left_alone.poll_evaluation() for _ in range(3)][-1] == 0
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert [by_hand.poll_evaluation() for _ in range(3)][-1] == 0
    assert [launched.poll_evaluation() for _ in range(3)][-1] == signal.SIGTERM


def test_an_error_of_the_main_process_is_raised() -> None:
    def fail() -> None:
        raise TrainerError("no space left")

    done: list[int] = []
    Agreement().run_on_main(lambda: done.append(1))
    assert done == [1]
    with pytest.raises(TrainerError, match="no space left"):
        Agreement().run_on_main(fail)
