"""The GPU benchmark measures loops that differ in nothing but the loop: graphs, losses, counting."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.gpu_speed import (
    CONTESTANTS,
    MODELS,
    Clock,
    Llama,
    by_hand,
    forget,
    ours,
)

pytestmark = [
    pytest.mark.usefixtures("fresh_accelerate"),
    # dynamo looks at .grad of whatever it traces
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
TASK = Llama(name="tiny")
# Of scaled_dot_product_attention: whether it is given a mask, and ``is_causal``.
Attention = tuple[bool, bool]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Attention]]:
    """Let torch.compile leave the attention of each graph, and run the graph as it is."""
    seen: set[Attention] = set()
    compile_with = torch.compile

    def backend(graph: Any, _: Any) -> Callable[..., Any]:
        for node in graph.graph.nodes:
            if "scaled_dot_product" in str(node.target):
                has_mask = node.kwargs.get("attn_mask") is not None
                seen.add((has_mask, bool(node.kwargs.get("is_causal"))))
        return graph.forward  # type: ignore[no-any-return]

    def recorded(*args: Any, **kwargs: Any) -> Any:
        return compile_with(*args, **{**kwargs, "backend": backend})

    monkeypatch.setattr(torch, "compile", recorded)
    torch._dynamo.reset()
    yield seen
    torch._dynamo.reset()


@pytest.mark.parametrize("contestant", list(CONTESTANTS))
def test_each_contestant_compiles_causal_attention_without_a_mask(
    contestant: str, graphs: set[Attention]
) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        CONTESTANTS[contestant](TASK, True, Clock(warm=1, timed=1))
    forget()
    assert graphs == {(False, True)}


def test_a_model_that_is_compiled_as_a_whole_has_a_dense_mask(graphs: set[Attention]) -> None:
    """What the pages say of ``use_regional_compilation: false``, and why no contestant does it."""
    model: nn.Module = TASK.build_model()
    model.forward = torch.compile(model.forward)
    ids = torch.zeros(2, MODELS["tiny"].length, dtype=torch.long)
    model(input_ids=ids).logits.sum().backward()
    assert graphs == {(True, False)}


def test_the_loop_by_hand_and_samecurve_have_the_same_losses() -> None:
    hand, own = Clock(warm=1, timed=7), Clock(warm=1, timed=7)  # ten steps: into the second epoch
    by_hand(TASK, False, hand)
    with contextlib.redirect_stdout(io.StringIO()):
        ours(TASK, False, own)
    assert len(hand.losses) == 10
    values = [float(loss) for loss in own.losses]
    assert values[0] == float(hand.losses[0]), "same weights, same rows"
    assert values == pytest.approx([float(loss) for loss in hand.losses], rel=1e-3)  # bf16


def test_operations_are_those_of_the_matrices_and_half_of_the_pairs() -> None:
    # A layer: four matrices of 64 x 64 and three of 64 x 128; the head: 256 x 64; 64 tokens.
    matrices = 2 * (4 * 64 * 64 + 3 * 64 * 128) + 256 * 64
    pairs = 2 * 2 * (32 * 33 // 2)  # rows, layers, a triangle (the diagonal counts half of it)
    assert TASK.operations() == pytest.approx(6 * 64 * matrices + 12 * 64 * pairs, rel=0.01)
