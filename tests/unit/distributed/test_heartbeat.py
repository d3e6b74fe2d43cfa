"""What a rank says of the others, by a store and a clock of the test's own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from trainer.distributed import exit, heartbeat
from trainer.distributed.heartbeat import BUILDING, Heartbeat, LostRank, Row


class Store:
    """A store in memory, which may be slow or gone."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.error = ""

    def _answer(self) -> None:
        if self.error:
            raise RuntimeError(self.error)

    def set(self, key: str, value: str) -> None:
        self._answer()
        self.values[key] = value

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return str(self.values.setdefault(key, desired)).encode()

    def check(self, keys: list[str]) -> bool:
        self._answer()
        return all(key in self.values for key in keys)

    def multi_get(self, keys: list[str]) -> list[str]:
        self._answer()
        return [self.values[key] for key in keys]


class Ended(Exception):
    pass


class World:
    """Three ranks of one process, of which rank 0 judges."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.is_busy = 1000.0, False
        self.store = Store()
        self.states: dict[int, str] = {}
        self.ranks = [Heartbeat(rank, 3, self.store, timeout=600.0) for rank in range(3)]
        monkeypatch.setattr(heartbeat, "time", self)
        monkeypatch.setattr(heartbeat, "print_error", self._end)
        monkeypatch.setattr(Row, "state", property(lambda row: self.states.get(row.rank, "")))
        self.moves = [0, 0, 0]
        for rank, watch in enumerate(self.ranks):
            watch.process = (rank, f"rank {rank} (process {rank} on host)", "here", rank)
            watch.job = heartbeat._Job(self._position(rank), lambda: "Resume.", first_step=-1)
        self.phase = "training"
        self.run(1)

    def _position(self, rank: int) -> Callable[[], tuple[int, str, int]]:
        return lambda: (self.moves[rank], self.phase, self.moves[rank])

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.now if self.is_busy else 0.0

    def sleep(self, seconds: float) -> None:
        pass

    @staticmethod
    def _end(message: str) -> None:
        raise Ended(message)

    def run(self, seconds: float, *, silent: tuple[int, ...] = (), still: bool = False) -> None:
        """Let time pass: all ranks send their heartbeats, and rank 0 judges."""
        for _ in range(round(seconds / 2) or 1):
            self.now += 2.0
            for rank, watch in enumerate(self.ranks):
                if not still:
                    self.moves[rank] += 1
                if rank > 0 and rank not in silent and not self.store.error:
                    watch._ask_briefly(watch._send)
            self.ranks[0]._ask_briefly(self.ranks[0]._meet_others)
            self.ranks[0]._judge()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_process_that_is_continued_or_traced_is_let_alone(world: World) -> None:
    for _ in range(5):
        world.states[1] = "stopped"
        world.run(4, silent=(1,))
        world.states[1] = ""
        world.run(2)
    world.states[1] = "tracing-stop"
    world.run(900, silent=(1,))


def test_a_silent_rank_is_told_after_ten_seconds_and_ends_the_job_after_a_minute(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.states[2] = ""  # of another machine
    world.run(8, silent=(2,))
    assert not capsys.readouterr().err
    world.run(40, silent=(2,))
    assert capsys.readouterr().err.count("rank 2 (process 2 on host) has sent no heartbeat") == 1
    world.run(2)
    world.run(8, silent=(2,))  # it was in a call in C
    with pytest.raises(Ended, match=r"rank 2 .* has sent no heartbeat for 6\d s: step"):
        world.run(60, silent=(2,))


def test_while_data_and_model_are_built_a_rank_may_be_silent_until_the_timeout(
    world: World,
) -> None:
    world.phase = BUILDING
    world.run(2)
    world.run(590, silent=(1,))
    with pytest.raises(Ended, match="has sent no heartbeat for 60"):
        world.run(20, silent=(1,))


def test_a_store_that_is_slow_makes_no_rank_silent(world: World) -> None:
    world.store.error = "Socket Timeout"
    world.run(300)
    world.store.error = ""
    world.run(10)


@pytest.mark.parametrize(
    ("error", "seconds", "said"),
    [
        ("Connection reset by peer", 14, "the store that the ranks share is gone"),
        ("Socket Timeout", 70, "the store that the ranks share does not answer"),
    ],
)
def test_without_a_store_a_rank_that_does_not_move_ends(
    error: str, seconds: float, said: str, world: World
) -> None:
    world.store.error = error
    world.run(100)
    with pytest.raises(Ended, match=said):
        world.run(seconds, still=True)


def test_ranks_that_do_not_move_are_told_with_their_places(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.is_busy = True
    world.run(58, still=True)
    assert not capsys.readouterr().err
    world.run(900, still=True)
    [told] = capsys.readouterr().err.splitlines()
    assert "no rank has moved for 60 s, the job goes on: rank 0, 1, 2: step 1, training, " in told

    world.is_busy = False
    with pytest.raises(
        Ended,
        match=r"no rank has moved for .* \(timeout_minutes\)\. If .*: true\. .* drop_last: true",
    ):
        world.run(10, still=True)


def test_a_process_that_was_stopped_itself_blames_nobody(world: World) -> None:
    watch = world.ranks[0]
    world.now += 900.0
    watch._seen.clear()
    watch._judge()


def test_a_rank_that_has_left_in_order_is_not_missed(world: World) -> None:
    world.ranks[2].leave()
    world.run(2, silent=(2,))
    world.states[2] = "zombie"
    world.run(300, silent=(2,))


def test_a_broken_connection_names_the_rank_that_is_gone(world: World) -> None:
    world.states[1] = "zombie"
    with pytest.raises(LostRank, match=r"rank 1 \(process 1 on host\) is gone"):
        world.ranks[0].explain(RuntimeError("Connection closed by peer"))


def test_the_end_of_a_rank_after_everything_is_written_is_a_notice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exit, "_is_written", False)

    def barrier() -> None:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer")

    assert not exit.meet_at_the_end(barrier)
    assert exit.is_written()
    assert "everything is written, and another rank is gone" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="of its own"):
        exit.meet_at_the_end(lambda: (_ for _ in ()).throw(RuntimeError("of its own")))


def test_states_of_processes_are_read_from_the_system() -> None:
    watch = Heartbeat(0, 2, Store(), timeout=600.0)
    watch._send()
    own = watch.rows[0]
    assert own.state in ("running", "sleeping")
    with subprocess.Popen("true") as ended:
        ended.wait()
    assert own._replace(pid=ended.pid).state == "zombie"
    assert own._replace(machine="another").state == ""
