"""Rows of ranks in a store, as they are written and read."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, replace
from datetime import timedelta

import pytest
import torch.distributed as dist

from trainer.faults import board as module
from trainer.faults.board import Board, Row, Who, rank_of_store
from trainer.faults.identity import Identity
from trainer.faults.observation import Address, Report

ROW = Row(count=3, step=5, phase="data", unmoved=9.0, doing="f (a.py:1)", begun={"0": ("world", 4)})


def who(pid: int) -> Who:
    return Who(host="node1", identity=Identity("here", pid, 1), observer=Address("", 1, ""))


def test_rows_come_back_as_they_were_written() -> None:
    row = replace(ROW, report=Report(idle=3.0, stopped_children={"7": 2.0}), begun={})
    assert Row.read(json.dumps(asdict(row))) == row
    assert Who.read(json.dumps(asdict(who(5)))) == who(5)


def board_of(rank: int, store: dist.HashStore) -> Board:
    """Return the board of a rank of three, each over the same store."""
    board = Board("1", rank=rank, world_size=3, answer_seconds=2.0)
    board.shared = store
    board._store = dist.PrefixStore("watch", store)  # type: ignore[attr-defined]
    return board


def test_ranks_read_what_the_others_wrote_and_when_it_was_new() -> None:
    store = dist.HashStore()
    first, second = board_of(0, store), board_of(1, store)
    first.write(ROW)
    second.read(range(3))
    assert second.rows == {0: ROW}, "the third has written nothing"

    heard = second.heard[0]
    time.sleep(0.01)
    second.read(range(3))
    assert second.heard[0] == heard, "the row is the old one"
    first.write(replace(ROW, count=4))
    second.read(range(3))
    assert second.heard[0] > heard


def test_a_verdict_is_known_to_all() -> None:
    store = dist.HashStore()
    first, second = board_of(0, store), board_of(1, store)
    assert not second.has_verdict()
    first.set_verdict()
    assert second.has_verdict()


def test_a_rank_introduces_itself_over_a_connection_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = dist.TCPStore("localhost", 0, 1, is_master=True, timeout=timedelta(seconds=5))
    monkeypatch.setattr(module, "_who", {})
    monkeypatch.setattr("trainer.private.torch.default_store", lambda: store)
    first = Board("1", rank=0, world_size=2, answer_seconds=2.0)
    assert not first.is_connected
    first.introduce(who(17))
    assert first.is_connected and first.shared is not store

    monkeypatch.setattr(module, "_who", {})
    second = Board("1", rank=1, world_size=2, answer_seconds=2.0)
    second.introduce(who(18))
    second.read_who()
    assert second.who == {0: who(17), 1: who(18)}


@pytest.mark.parametrize(("agent", "expected"), [("True", None), ("False", 0), ("", 0)])
def test_the_store_is_of_the_launcher_or_of_rank_0(
    agent: str, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", agent)
    assert rank_of_store.__wrapped__() == expected


def test_a_rank_that_comes_a_little_later_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_who", {})
    store = dist.HashStore()
    board = board_of(1, store)
    come = threading.Timer(0.2, lambda: store.set(f"{module._WHO}/0", json.dumps(asdict(who(17)))))
    come.start()
    board.meet(0)
    assert board.who == {0: who(17)}

    store.set_timeout(timedelta(seconds=0.1))
    with pytest.raises(RuntimeError, match="timeout"):
        board.meet(2)
    assert board.who == {0: who(17)}
