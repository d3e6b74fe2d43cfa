"""Traps of Accelerate 1.15 that two processes show: what a plain use of it gives, beside ours.

Those that one process shows are in ``tests/upstream/test_one_process.py``; all stand in
``docs/accelerate_traps.md``. A trap that a later version mends fails its test: then its line here,
and what the trainer does about it, can go.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import json_in, worked

pytestmark = pytest.mark.upstream

Both = tuple[dict[str, Any], dict[str, Any]]  # what bare Accelerate gave, what the trainer gave
SAMPLES = [float(n) for n in range(9)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traps")


@cache
def found(name: str, strategy: str, folder: Path) -> Both:
    place = folder / name
    place.mkdir()
    worked(["tests/upstream/traps.py", f"accel_configs/{strategy}.yaml", place, name])
    both = json_in(place / "found.json")
    return both["bare"], both["ours"]


@pytest.fixture
def replicas(folder: Path) -> Both:
    return found("replicas", "ddp", folder)


@pytest.fixture
def engine(folder: Path) -> Both:
    return found("engine", "zero2", folder)


@pytest.fixture
def sharded(folder: Path) -> Both:
    return found("sharded", "fsdp", folder)


def test_connected_processes_are_taken_for_single_ones_without_gpu(replicas: Both) -> None:
    bare, ours = replicas
    assert bare["processes"] == 1
    assert ours["processes"] == 2


def test_fsdp_on_the_cpu_becomes_ddp(replicas: Both) -> None:
    """``test_refusals.py`` has ours, from the same file."""
    bare, _ = replicas
    assert bare["sharded"] == "DistributedDataParallel"


def test_a_dictionary_is_reduced_value_by_value(replicas: Both) -> None:
    bare, ours = replicas
    assert bare["reductions"] == 3
    assert ours["reductions"] == 1


def test_a_prepared_schedule_moves_once_for_each_process(replicas: Both) -> None:
    bare, ours = replicas
    assert bare["schedule"] == [4, 2], "two optimizer steps on two processes"
    assert ours["schedule"] == [2, 2]


def test_a_short_last_window_is_divided_as_if_it_were_whole(replicas: Both) -> None:
    """Every sample has the gradient 1, so each step's is 1."""
    bare, ours = replicas
    assert bare["short window"] == [1.0, 0.25]
    assert ours["short window"] == [1.0, 1.0]


def test_the_tail_is_filled_up_with_samples_seen_before(replicas: Both) -> None:
    bare, ours = replicas
    assert bare["samples"] == sorted([*SAMPLES, 0.0])
    assert ours["samples"] == SAMPLES


def test_means_of_batches_are_gathered_wrong(replicas: Both) -> None:
    bare, ours = replicas
    assert ours["mean"] == 4.0
    assert abs(bare["gathered means"] - 4.0) > 0.1


def test_a_reduced_mean_takes_all_processes_for_equal(replicas: Both) -> None:
    bare, ours = replicas
    assert bare["reduced mean"] == 4.75, "(mean of 0..5 + mean of 6..8) / 2"
    assert ours["mean"] == 4.0


def test_a_seed_of_ones_own_gives_a_data_order_of_ones_own(replicas: Both) -> None:
    """``device_specific`` seeds, as dropout wants them, and the seedable sampler: some samples come
    twice.
    """
    bare, ours = replicas
    assert len(bare["own orders"]) == 8 and len(set(bare["own orders"])) < 8
    assert len(set(ours["samples"])) == 9


def test_the_engine_clips_as_it_likes(engine: Both) -> None:
    """A gradient of norm 10 at learning rate 1: without a word it is clipped to 1, and a limit of
    0.25 is ignored.
    """
    bare, ours = engine
    assert bare["way"] == {
        "None": pytest.approx(1.0, rel=1e-5),
        "0.25": pytest.approx(1.0, rel=1e-5),
    }
    assert ours["way"] == {"None": 10.0, "0.25": pytest.approx(0.25, rel=1e-5)}


def test_the_engines_accumulation_wins(engine: Both) -> None:
    """The script asks for 1, the engine's settings for 2."""
    bare, ours = engine
    assert bare["accumulation"] == 2
    assert "accumulation_steps: 1: disagrees with 2 at" in ours["refused"]


def test_the_engine_steps_inside_backward(engine: Both) -> None:
    bare, ours = engine
    assert bare["after backward"] == pytest.approx(1.0, rel=1e-5), (
        "nothing can look at the gradients in between"
    )
    assert ours["after backward"] == 0.0


def test_weights_set_by_the_engines_function_do_not_compute(engine: Both) -> None:
    bare, ours = engine
    assert bare["set"] == {"kept": 14.0, "computed": 0.0}, "until the next step"
    assert ours["set"] == {"computed": 14.0}


def test_the_engine_adds_up_gradients_of_different_parameters(engine: Both) -> None:
    """Rank 0 gives head 0 the gradient 0.1, rank 1 head 1 the gradient 0.3: the means are 0.05 and
    0.15.

    ``test_user_models.py`` has ours, which names the parameters.
    """
    bare, _ = engine
    assert bare["heads"] == [0.2, 0.2]


def test_automatic_buckets_need_a_model_with_a_config(engine: Both) -> None:
    bare, _ = engine
    assert "Can't find `model.config` entry" in bare["auto"]


def test_the_engine_fails_on_a_scalar_parameter(engine: Both) -> None:
    bare, _ = engine
    assert "self.dim() cannot be 0" in bare["scalar"]


def test_an_offloaded_optimizer_is_replaced_by_adam(engine: Both) -> None:
    bare, _ = engine
    assert bare["offload"] == "SGD would be replaced"


def test_the_engine_exchanges_gradients_in_the_dtype_of_the_model(engine: Both) -> None:
    bare, ours = engine
    assert bare["exchanged in"] == "torch.bfloat16"
    assert ours["exchanged in"] == "torch.float32"


def test_fsdp_shards_some_models_in_a_way_that_fails(sharded: Both) -> None:
    """A scalar parameter, a head that is not called, an embedding within a layer: ours trains all
    of them.
    """
    bare, ours = sharded
    assert bare["line"] == "FSDPLine"
    assert "doesn't support scalar parameters" in bare["scaled"]
    assert (
        "mixed torch.Tensor and DTensor" in bare["tail"]
        and "Invariant encountered" in bare["nested"]
    ), bare
    classes = {
        "line": "FSDPLine",
        "scaled": "FSDPScaled",
        "tail": "FSDPTail",
        "nested": "FSDPNested",
    }
    assert ours == {name: [kind, [1]] for name, kind in classes.items()}
