"""The loss in chunks equals the plain one, in 16 bits as well, with less memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from launchers import clean_environment
from tiny_language import CONFIGS, VOCABULARY, build_with_batch

from trainer import ConfigError
from trainer.language import Adapter, CausalLM, token_losses
from trainer.language.loss import (
    ON_CPU,
    ON_GPU,
    FusedHead,
    mean_loss,
    rows_of_chunk,
)
from trainer.language.packing import IGNORED
from trainer.strategies.compiled import remember_settings


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide few tokens into several chunks."""
    monkeypatch.setattr("trainer.language.loss.ON_CPU", (1, 7, 1))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    "settings",
    [
        {"model": None, "config": CONFIGS["llama"]},
        {"model": None, "config": CONFIGS["gpt2"]},
        {"packing": "none"},
        {"adapter": {"r": 2, "trained": ["lm_head"]}},
    ],
    ids=["llama", "gpt2", "rows", "adapter"],
)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_fused_loss_has_the_values_and_gradients_of_plain_logits(
    reduction: str, settings: dict[str, Any], task: Callable[..., CausalLM], llama: Path
) -> None:
    """In several chunks, for any weights of the positions, and factors of the mean that are not 1.
    The last layer may be trained beside an adapter.
    """
    found = []
    for loss in ("plain", "fused"):
        causal = task(**settings, tokenizer=str(llama), loss=loss)
        model, batch = build_with_batch(causal)
        model.double()
        kinds = {type(layer) for layer in model.get_output_embeddings().modules()}
        assert (FusedHead in kinds) == (loss == "fused")
        labels = batch["labels"]
        labels[0, :40] = IGNORED
        inputs = causal.inputs(batch)
        value = mean_loss(model, inputs, labels, reduction)
        (value * torch.linspace(3, 1, value.numel())).sum().backward()
        if reduction == "mean":
            assert torch.equal(value, causal.training_step(model, batch))
        else:
            assert torch.equal(value.view_as(labels), token_losses(model, inputs, labels))

        logits = model(**inputs, use_cache=False).logits
        by_hand = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), reduction=reduction
        )
        torch.testing.assert_close(value.double(), by_hand, rtol=1e-6, atol=1e-7)
        found.append({key: p.grad for key, p in model.named_parameters() if p.grad is not None})
    assert any("lm_head" in name or "wte" in name for name in found[0])
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-8)


def test_auto_computes_in_chunks_where_the_logits_of_a_micro_batch_do_not_fit(
    task: Callable[..., CausalLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    causal = task(loss="auto")
    model, batch = build_with_batch(causal)
    tokens = batch["labels"].numel()
    whole = causal.training_step(model, batch)
    assert type(whole.grad_fn).__name__ != "ChunkedLossBackward"
    monkeypatch.setattr("trainer.language.loss.FIT", 4 * tokens * VOCABULARY - 1)
    cut = causal.training_step(model, batch)
    assert type(cut.grad_fn).__name__ == "ChunkedLossBackward"
    torch.testing.assert_close(cut, whole, rtol=3e-7, atol=0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("vocabulary", [32_000, 49_152, 151_936, 262_144])
@pytest.mark.parametrize("tokens", [1, 200, 257, 5000, 8192])
def test_chunks_are_large_and_about_as_large_as_each_other(
    tokens: int, vocabulary: int, device: str
) -> None:
    size, least, tile = ON_CPU if device == "cpu" else ON_GPU
    rows = rows_of_chunk(tokens, vocabulary, device)
    chunks = -(-tokens // rows)
    assert rows % tile == 0 and rows - tokens / chunks < tile + 1, "the last one is as large"
    assert chunks == 1 or least / 2 < rows < max(least, size / (4 * vocabulary)) + tile


@pytest.mark.parametrize(("rows", "micro_batches"), [(32, 8), (1024, 1)])
def test_the_heads_gradient_in_bf16_is_within_two_thousandths_of_float64(
    rows: int, micro_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that of words that are never a target, whose gradients all have the same sign."""
    monkeypatch.setattr("trainer.language.loss.rows_of_chunk", lambda *given: rows)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(2048, 64, generator=generator) + torch.randn(1, 64, generator=generator)
    weight = (0.02 * torch.randn(8192, 64, generator=generator)).bfloat16()
    frequencies = 1.0 / torch.arange(1, 8193)
    targets = torch.multinomial(frequencies, 2048, replacement=True, generator=generator)

    exact = weight.double().requires_grad_()
    logits = hidden.bfloat16().double() @ exact.t()
    whole = torch.nn.functional.cross_entropy(logits, targets)
    whole.backward()
    assert exact.grad is not None

    head = FusedHead(64, 8192, bias=False)
    head.weight.data = weight.float()
    head.always = True
    losses = []
    for inputs, labels in zip(
        hidden.chunk(micro_batches), targets.chunk(micro_batches), strict=True
    ):
        head.targets = labels
        with torch.autocast("cpu", torch.bfloat16):
            losses.append(head(inputs) / micro_batches)
        losses[-1].backward()
    loss = torch.stack(losses).sum()
    assert loss.item() == pytest.approx(whole.item(), rel=1e-4), "16 bits would round it by 2e-3"
    assert head.weight.grad is not None

    is_target = torch.zeros(8192, dtype=torch.bool).scatter(0, targets, True)
    for words in (slice(None), ~is_target):
        difference = head.weight.grad[words].double() - exact.grad[words]
        assert difference.norm() <= 2e-3 * exact.grad[words].norm()


def test_a_model_that_bounds_its_logits_is_not_fused(
    task: Callable[..., CausalLM], llama: Path
) -> None:
    gemma2 = {**CONFIGS["gemma"], "model_type": "gemma2", "query_pre_attn_scalar": 16}
    settings: dict[str, Any] = {"model": None, "config": gemma2, "tokenizer": str(llama)}
    with pytest.raises(
        ConfigError,
        match="loss: 'fused': the logits of Gemma2ForCausalLM are not those of a Linear without a bias",
    ):
        task(**settings, loss="fused").build_model()
    auto = task(**settings)
    assert type(auto.build_model().get_output_embeddings()) is torch.nn.Linear  # type: ignore[operator]
    assert auto.notices() == [
        "loss: all logits at once, since the logits of Gemma2ForCausalLM are not those of a Linear without a bias"
    ]
    with pytest.raises(
        ConfigError, match="loss: 'fused': the last layer has an adapter; set plain"
    ):
        task(loss="fused", adapter=Adapter(targets=["lm_head"])).build_model()


class Graphs:
    """A backend that runs graphs as they are, and keeps the names of their operations."""

    def __init__(self) -> None:
        self.operations: list[set[str]] = []

    def __call__(self, graph: torch.fx.GraphModule, examples: Any) -> Any:
        names = set()
        for part in graph.modules():  # a function with a backward pass of its own is one
            if isinstance(part, torch.fx.GraphModule):
                names |= {getattr(n.target, "__name__", str(n.target)) for n in part.graph.nodes}
        self.operations.append(names)
        return graph.forward


# Dynamo looks at the gradients of its inputs, and makes objects of functions; every warning is an
# error here.
@pytest.mark.filterwarnings("ignore:.*Function.* should not be instantiated")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("loss", ["auto", "fused"])
def test_under_compile_head_and_loss_are_one_graph(
    loss: str, task: Callable[..., CausalLM]
) -> None:
    """Layer by layer, as strategies compile: the head and its loss are a leaf of the model."""
    from accelerate.utils.other import compile_regions_fsdp2

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    causal = task(loss=loss)
    model, batch = build_with_batch(causal)
    found = []
    graphs = Graphs()
    for is_compiled in (False, True):
        if is_compiled:
            compile_regions_fsdp2(model, backend=graphs)
        model.zero_grad()
        value = causal.training_step(model, batch)
        value.backward()
        found.append([value.detach(), model.get_output_embeddings().weight.grad.clone()])
    torch.testing.assert_close(found[0], found[1])

    assert not torch._dynamo.utils.counters["graph_break"]
    head = [names for names in graphs.operations if names & {"cross_entropy", "log_softmax"}]
    assert len(head) == 1 and "linear" in head[0], graphs.operations


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_loss_outside_of_the_model_is_compiled_as_the_model_is(
    task: Callable[..., CausalLM],
) -> None:
    torch._dynamo.reset()
    causal = task(loss="plain")
    model, batch = build_with_batch(causal)
    expected = causal.training_step(model, batch)
    graphs = Graphs()
    remember_settings(model, {"backend": graphs, "fullgraph": True})
    for _ in range(2):
        torch.testing.assert_close(causal.training_step(model, batch), expected)
    assert len(graphs.operations) == 1 and "cross_entropy" in graphs.operations[0]


# The gradients of the weights are there before: what is measured is what one step adds.
STEP = """
import re, sys, torch
from trainer.language.loss import FusedHead, mean_loss

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(32_000, 64)
        self.head = torch.nn.Linear(64, 32_000, bias=False)

    def forward(self, input_ids, use_cache):
        return type("Output", (), {"logits": self.head(self.embedding(input_ids))})

def resident(name):
    return int(re.search(name + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024

torch.manual_seed(0)
model = Model()
ids, labels = torch.randint(0, 32_000, (2, 4, 1024))
if sys.argv[1] == "fused":
    model.head.__class__, model.head.always = FusedHead, True
mean_loss(model, {"input_ids": ids[:, :16]}, labels[:, :16]).backward()
before = resident("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
loss = mean_loss(model, {"input_ids": ids}, labels)
loss.backward()
print(loss.item(), resident("VmHWM") - before)
"""


@pytest.mark.slow
def test_fused_head_takes_a_fifth_of_the_memory_at_32k_words_and_4096_tokens(
    tmp_path: Path,
) -> None:
    (tmp_path / "step.py").write_text(STEP)
    found = {}
    for loss in ("plain", "fused"):
        words = [sys.executable, str(tmp_path / "step.py"), loss]
        done = subprocess.run(
            words, env=clean_environment(), capture_output=True, text=True, check=True
        )
        found[loss] = tuple(map(float, done.stdout.split()))
    (plain_loss, plain_peak), (fused_loss, fused_peak) = found["plain"], found["fused"]
    assert fused_loss == pytest.approx(plain_loss, rel=1e-6)
    assert plain_peak > 900, f"MiB: logits and their gradients are 500 MiB each; {found}"
    assert fused_peak * 5 <= plain_peak, found


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("loss", ["plain", "fused"])
def test_predictions_are_the_loss_and_the_tokens_of_each_row(
    loss: str, task: Callable[..., CausalLM]
) -> None:
    causal = task(loss=loss, packing="none")
    model, batch = build_with_batch(causal)
    model.eval()
    batch["labels"][0, :9] = IGNORED
    with torch.no_grad():
        predicted = causal.prediction_step(model, batch)
        assert predicted["tokens"].tolist() == [
            int((row != IGNORED).sum()) for row in batch["labels"]
        ]
        for number in range(2):
            row = {name: tensor[number : number + 1] for name, tensor in batch.items()}
            alone = causal.training_step(model, row).item()
            assert predicted["loss"][number].item() == pytest.approx(alone, rel=1e-5)

        batch["labels"][1] = IGNORED
        assert causal.prediction_step(model, batch)["loss"][1].isnan(), "a row without a token"
