"""Traps of Accelerate 1.15 that two processes show: what a plain use of it gives.

Those that one process shows are in ``tests/upstream/test_one_process.py``; all stand in
``docs/accelerate_traps.md``, with the tests of what the trainer makes of them. A trap that a later
version mends fails its test: then its line here, and what the trainer does about it, can go.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import json_in, worked

pytestmark = pytest.mark.upstream

Found = dict[str, Any]
SAMPLES = [float(n) for n in range(9)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traps")


@cache
def found(name: str, folder: Path) -> Found:
    place = folder / name
    place.mkdir()
    worked(["tests/upstream/traps.py", place, name])
    return json_in(place / "found.json")


@pytest.fixture
def replicas(folder: Path) -> Found:
    return found("replicas", folder)


@pytest.fixture
def engine(folder: Path) -> Found:
    return found("engine", folder)


@pytest.fixture
def sharded(folder: Path) -> Found:
    return found("sharded", folder)


def test_connected_processes_are_taken_for_single_ones_without_gpu(replicas: Found) -> None:
    assert replicas["processes"] == 1


def test_fsdp_on_the_cpu_becomes_ddp(replicas: Found) -> None:
    """``test_refusals.py`` has ours, from the same file."""
    assert replicas["sharded"] == "DistributedDataParallel"


def test_a_prepared_schedule_moves_once_for_each_process(replicas: Found) -> None:
    assert replicas["schedule"] == [4, 2], "two optimizer steps on two processes"


def test_a_short_last_window_is_divided_as_if_it_were_whole(replicas: Found) -> None:
    """Every sample has the gradient 1, so each step's is 1."""
    assert replicas["short window"] == [1.0, 0.25]


def test_the_tail_is_filled_up_with_samples_seen_before(replicas: Found) -> None:
    assert replicas["samples"] == sorted([*SAMPLES, 0.0])


def test_means_of_batches_are_gathered_wrong(replicas: Found) -> None:
    assert abs(replicas["gathered means"] - 4.0) > 0.1


def test_a_reduced_mean_takes_all_processes_for_equal(replicas: Found) -> None:
    assert replicas["reduced mean"] == 4.75, "(mean of 0..5 + mean of 6..8) / 2"


def test_a_seed_of_ones_own_gives_a_data_order_of_ones_own(replicas: Found) -> None:
    """``device_specific`` seeds, as dropout wants them, and the seedable sampler: some samples come
    twice.
    """
    assert len(replicas["own orders"]) == 8 and len(set(replicas["own orders"])) < 8


def test_the_engine_clips_as_it_likes(engine: Found) -> None:
    """A gradient of norm 10 at learning rate 1: without a word it is clipped to 1, and a limit of
    0.25 is ignored.
    """
    assert engine["way"] == {
        "None": pytest.approx(1.0, rel=1e-5),
        "0.25": pytest.approx(1.0, rel=1e-5),
    }


def test_the_engines_accumulation_wins(engine: Found) -> None:
    """The script asks for 1, the engine's settings for 2."""
    assert engine["accumulation"] == 2


def test_the_engine_steps_inside_backward(engine: Found) -> None:
    assert engine["after backward"] == pytest.approx(1.0, rel=1e-5), (
        "nothing can look at the gradients in between"
    )


def test_the_engine_adds_up_gradients_of_different_parameters(engine: Found) -> None:
    """Rank 0 gives head 0 the gradient 0.1, rank 1 head 1 the gradient 0.3: the means are 0.05 and
    0.15.

    ``test_user_models.py`` has ours, which names the parameters.
    """
    assert engine["heads"] == [0.2, 0.2]


def test_automatic_buckets_need_a_model_with_a_config(engine: Found) -> None:
    assert "Can't find `model.config` entry" in engine["auto"]


def test_the_engine_fails_on_a_scalar_parameter(engine: Found) -> None:
    assert "self.dim() cannot be 0" in engine["scalar"]


def test_an_offloaded_optimizer_is_replaced_by_adam(engine: Found) -> None:
    assert engine["offload"] == "SGD would be replaced"


def test_the_engine_exchanges_gradients_in_the_dtype_of_the_model(engine: Found) -> None:
    assert engine["exchanged in"] == "torch.bfloat16"


def test_fsdp_shards_some_models_in_a_way_that_fails(sharded: Found) -> None:
    """A scalar parameter, a head that is not called, an embedding within a layer.

    ``test_user_models.py`` has ours, which trains such models.
    """
    assert sharded["line"] == "FSDPLine"
    assert "doesn't support scalar parameters" in sharded["scaled"]
    assert "mixed torch.Tensor and DTensor" in sharded["tail"]
    assert "Invariant encountered" in sharded["nested"]
