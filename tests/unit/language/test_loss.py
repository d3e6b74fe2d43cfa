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
from trainer.language import Adapter, CausalLM
from trainer.language.loss import ChunkedLoss, FusedHead
from trainer.language.packing import IGNORED


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_fused_loss_has_the_value_and_gradients_of_the_plain_one(
    name: str, task: Callable[..., CausalLM], llama: Path
) -> None:
    losses, found = [], []
    for loss in ("plain", "fused"):
        causal = task(model=None, config=CONFIGS[name], tokenizer=str(llama), loss=loss)
        model, batch = build_with_batch(causal)
        model.double()
        assert isinstance(model.get_output_embeddings(), FusedHead) == (loss == "fused")
        batch["labels"][0, :40] = IGNORED
        value = causal.training_step(model, batch)
        value.backward()

        losses.append(value.item())
        found.append({key: parameter.grad for key, parameter in model.named_parameters()})
        assert model(input_ids=batch["input_ids"]).logits.shape[-1] == VOCABULARY, (
            "logits as ever without targets"
        )
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-8)


def test_fused_loss_in_16_bits_is_not_rounded_to_them(task: Callable[..., CausalLM]) -> None:
    causal = task(loss="fused")
    model, batch = build_with_batch(causal)
    exact = causal.training_step(model, batch).item()
    with torch.autocast("cpu", torch.bfloat16):
        loss = causal.training_step(model, batch)
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(exact, rel=1e-3)
    assert loss.item() != loss.bfloat16().item(), "its last digits are there"


def test_auto_computes_in_chunks_where_the_logits_of_a_micro_batch_do_not_fit(
    task: Callable[..., CausalLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    causal = task(loss="auto")
    model, batch = build_with_batch(causal)
    tokens = batch["labels"].numel()
    taken: list[Any] = []
    apply = ChunkedLoss.apply
    monkeypatch.setattr(ChunkedLoss, "apply", lambda *given: taken.append(given) or apply(*given))
    whole = causal.training_step(model, batch)

    monkeypatch.setattr("trainer.language.loss.FIT", 4 * tokens * VOCABULARY)
    assert torch.equal(causal.training_step(model, batch), whole) and not taken
    monkeypatch.setattr("trainer.language.loss.FIT", 4 * tokens * VOCABULARY - 1)
    torch.testing.assert_close(causal.training_step(model, batch), whole, rtol=3e-7, atol=0)
    assert len(taken) == 1

    assert (
        causal.notices()[-1]
        == "loss: all logits at once up to micro_batch_size 3,276 (512.0 MiB), in chunks above it"
    )


def head_and_loss(dtype: torch.dtype, loss: str, rows: int = 7) -> tuple[float, list[torch.Tensor]]:
    """A loss over 31 tokens and 50 words, and its gradients in hidden states, weight and bias."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(*shape, generator=generator) for shape in ((31, 16), (50, 16), (50,))
    )
    targets = torch.randint(50, (31,), generator=generator)
    targets[::3] = IGNORED

    given = [tensor.to(dtype).requires_grad_() for tensor in (hidden, weight, bias)]
    if loss == "plain":
        value = torch.nn.functional.cross_entropy(
            torch.nn.functional.linear(*given), targets, ignore_index=IGNORED
        )
    else:
        value = ChunkedLoss.apply(*given, targets, rows, dtype, True)
    (3.0 * value).backward()
    return value.item(), [tensor.grad.double() for tensor in given if tensor.grad is not None]


def test_the_loss_in_chunks_is_that_of_float64() -> None:
    exact, gradients = head_and_loss(torch.float64, "plain")
    for rows in (1, 7, 31, 100):
        value, found = head_and_loss(torch.float32, "chunks", rows)
        assert value == pytest.approx(exact, rel=3e-7)
        for mine, theirs in zip(found, gradients, strict=True):
            assert (mine - theirs).norm() < 1e-6 * theirs.norm()


def test_many_chunks_in_16_bits_add_up_in_float32() -> None:
    """The weight's gradient has the rounding of each product, and not that of each sum."""
    torch.manual_seed(0)
    hidden, targets = torch.randn(4096, 16).bfloat16(), torch.randint(64, (4096,))
    weight = (0.1 * torch.randn(64, 16)).bfloat16()
    exact = weight.double().requires_grad_()
    torch.nn.functional.cross_entropy(hidden.double() @ exact.t(), targets).backward()
    errors = {}
    for rows in (16, 4096):
        mine = weight.float().requires_grad_()
        ChunkedLoss.apply(hidden, mine, None, targets, rows, torch.bfloat16, True).backward()  # type: ignore[no-untyped-call]
        errors[rows] = float((mine.grad.double() - exact.grad).norm() / exact.grad.norm())  # type: ignore[union-attr]
    assert errors[16] < 4e-3 and errors[4096] < 4e-3


def test_a_loss_in_chunks_that_is_only_measured_takes_no_gradients() -> None:
    hidden, weight = torch.randn(4, 8, requires_grad=True), torch.randn(5, 8, requires_grad=True)
    with torch.no_grad():
        value = ChunkedLoss.apply(
            hidden, weight, None, torch.arange(4), 2, torch.float32, torch.is_grad_enabled()
        )  # type: ignore[no-untyped-call]
    expected = torch.nn.functional.cross_entropy(hidden @ weight.t(), torch.arange(4))
    torch.testing.assert_close(value, expected.detach())
    assert not value.requires_grad


def test_a_model_that_bounds_its_logits_is_not_fused(
    task: Callable[..., CausalLM], llama: Path
) -> None:
    gemma2 = {**CONFIGS["gemma"], "model_type": "gemma2", "query_pre_attn_scalar": 16}
    settings: dict[str, Any] = {"model": None, "config": gemma2, "tokenizer": str(llama)}
    with pytest.raises(
        ConfigError,
        match="loss: 'fused': Gemma2ForCausalLM changes the logits behind its last layer",
    ):
        task(**settings, loss="fused").build_model()
    auto = task(**settings)
    assert type(auto.build_model().get_output_embeddings()) is torch.nn.Linear  # type: ignore[operator]
    assert auto.notices()[1:] == [
        "loss: all logits at once, since Gemma2ForCausalLM changes the logits behind its last layer"
    ]
    with pytest.raises(
        ConfigError, match="the last layer of PeftModelForCausalLM is a Linear, no plain Linear"
    ):
        task(loss="fused", adapter=Adapter(targets=["lm_head"])).build_model()


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
