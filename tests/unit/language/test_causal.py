"""The task: its loss is the mean over what is learnt, fused or not; its exports are complete;
settings fit together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_language import CONFIGS, VOCABULARY

from trainer import ConfigError
from trainer.commands.whole_model import build_whole
from trainer.language import Adapter, CausalLM
from trainer.language.loss import ChunkedLoss, FusedHead
from trainer.language.packing import IGNORED
from trainer.language.problems import first_line


def built(task: CausalLM) -> tuple[Any, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model, data = build_whole(task), task.build_data()
    return model.train(), data.collate([data.train[0], data.train[1]])


def test_loss_is_the_mean_over_what_is_learnt(task: Callable[..., CausalLM]) -> None:
    one = task()
    model, batch = built(one)
    batch["labels"][1, 50:] = IGNORED
    weight = int(one.weight(batch))
    assert weight == 128 + 50
    logits = model(
        input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False
    ).logits
    per_token = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
    loss = one.training_step(model, batch)
    torch.testing.assert_close(loss, per_token.sum() / weight)
    values = one.evaluation_step(model, batch)
    torch.testing.assert_close(values["loss"][0] / values["loss"][1], loss)
    assert int(values["tokens"][0]) == weight
    assert one.summarize({"loss": 2.0})["perplexity"] == pytest.approx(math.exp(2))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_fused_loss_has_the_value_and_gradients_of_the_plain_one(
    name: str, task: Callable[..., CausalLM], llama: Path
) -> None:
    losses, found = [], []
    for loss in ("plain", "fused"):
        one = task(model=None, config=CONFIGS[name], tokenizer=str(llama), loss=loss)
        model, batch = built(one)
        model.double()
        assert isinstance(model.get_output_embeddings(), FusedHead) == (loss == "fused")
        batch["labels"][0, :40] = IGNORED
        value = one.training_step(model, batch)
        value.backward()
        losses.append(value.item())
        found.append({key: parameter.grad for key, parameter in model.named_parameters()})
        assert model(input_ids=batch["input_ids"]).logits.shape[-1] == VOCABULARY, (
            "logits as ever without targets"
        )
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-8)


def test_fused_loss_in_16_bits_is_not_rounded_to_them(task: Callable[..., CausalLM]) -> None:
    one = task(loss="fused")
    model, batch = built(one)
    exact = one.training_step(model, batch).item()
    with torch.autocast("cpu", torch.bfloat16):
        loss = one.training_step(model, batch)
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(exact, rel=1e-3)
    assert loss.item() != loss.bfloat16().item(), "its last digits are there"


def test_auto_takes_chunks_where_the_logits_of_a_micro_batch_do_not_fit(
    task: Callable[..., CausalLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = task(loss="auto")
    model, batch = built(one)
    tokens, taken = batch["labels"].numel(), []
    apply = ChunkedLoss.apply
    monkeypatch.setattr(ChunkedLoss, "apply", lambda *given: taken.append(given) or apply(*given))
    whole = one.training_step(model, batch)
    monkeypatch.setattr("trainer.language.loss.FIT", 4 * tokens * VOCABULARY)
    assert torch.equal(one.training_step(model, batch), whole) and not taken
    monkeypatch.setattr("trainer.language.loss.FIT", 4 * tokens * VOCABULARY - 1)
    torch.testing.assert_close(one.training_step(model, batch), whole, rtol=3e-7, atol=0)
    assert len(taken) == 1
    assert (
        one.notices()[-1]
        == "loss: all logits at once up to micro_batch_size 3,276 (512.0 MiB), in chunks above it"
    )


def head_and_loss(dtype: torch.dtype, loss: str, rows: int = 7) -> tuple[float, list[torch.Tensor]]:
    """A loss over 31 tokens and 50 words, and its gradients in the hidden states, the weight and
    the bias.
    """
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
    """One chunk or thirty: the weight's gradient errs by a rounding of each product, not by one of
    each sum.
    """
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
    assert auto.notices() == [
        "loss: all logits at once, since Gemma2ForCausalLM changes the logits behind its last layer"
    ]
    with pytest.raises(
        ConfigError, match="the last layer of PeftModelForCausalLM is a Linear, no plain Linear"
    ):
        task(loss="fused", adapter=Adapter(targets=["lm_head"])).build_model()


def test_the_version_of_the_data_is_its_content(
    task: Callable[..., CausalLM], texts: Path, tmp_path: Path
) -> None:
    """Two rows that change places are another run; a file that lies elsewhere is not."""
    first, second, *rest = texts.read_text().splitlines()
    (tmp_path / "moved.jsonl").write_text(texts.read_text())
    (tmp_path / "swapped.jsonl").write_text("\n".join([second, first, *rest]) + "\n")
    versions = [
        task(data=str(path)).build_data().version
        for path in (texts, tmp_path / "moved.jsonl", tmp_path / "swapped.jsonl")
    ]
    assert versions[0] == versions[1] != versions[2] and versions[0]


def test_evaluation_keeps_a_share_of_the_documents(
    task: Callable[..., CausalLM], texts: Path
) -> None:
    data = task(evaluation=0.25).build_data()
    assert (data.train.fill.documents, data.evaluation.fill.documents) == (90, 30)
    whole = task(evaluation=str(texts)).build_data()
    assert (whole.train.fill.documents, whole.evaluation.fill.documents) == (120, 120)
    with pytest.raises(
        ConfigError, match=r"evaluation: 0.001: keeps 0 of 120 documents; both parts must hold one"
    ):
        task(evaluation=0.001).build_data()


def test_extras_are_tokenizer_and_template(task: Callable[..., CausalLM], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    (tmp_path / "own.jinja").write_text("own {{ messages }}")
    task(template=str(tmp_path / "own.jinja")).save_extras(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert (len(tokenizer), tokenizer.chat_template) == (VOCABULARY, "own {{ messages }}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": None}, "give one of model .* and config"),
        ({"config": {"model_type": "llama"}}, "give one of model .* and config"),
        (
            {"model": None, "config": {"model_type": "llama"}},
            "tokenizer: a model from scratch has none of its own",
        ),
        ({"prompt_column": "a"}, "prompt_column and completion_column go together"),
        ({"prompt_column": "a", "completion_column": "b", "messages_column": "c"}, "not both"),
        ({"evaluation": 1.5}, "evaluation: 1.5: a share of the documents is between 0 and 1"),
    ],
)
def test_settings_that_do_not_fit_together(
    settings: dict[str, Any], message: str, task: Callable[..., CausalLM]
) -> None:
    with pytest.raises(ValueError, match=message):
        task(**settings)


def test_code_gives_settings_as_a_yaml_does(task: Callable[..., CausalLM], tmp_path: Path) -> None:
    made = task(adapter={"r": 4}, cache_dir=tmp_path, sequence_length=32)
    assert made.adapter == Adapter(r=4) and made.cache_dir == str(tmp_path)
    assert task(adapter=Adapter(r=4)) == task(adapter={"r": 4})

    @dataclass(frozen=True, kw_only=True)
    class Own(CausalLM):
        reward: Callable[[int], int] = abs

    assert Own(model="m", data="d", reward=round).reward is round


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"adapter": {"rank": 4}},
            r"language task: task_settings.adapter.rank: 4: unknown key; known: alpha, dropout",
        ),
        ({"adapter": {"r": 0}}, r"task_settings.adapter.r: 0: must be at least 1"),
        ({"adapter": 8}, r"task_settings.adapter: 8: must be"),
        ({"sequence_length": "64"}, r"task_settings.sequence_length: '64': must be a whole number"),
        ({"packing": "best"}, r"task_settings.packing: 'best': .*best_fit"),
    ],
)
def test_settings_of_code_that_no_yaml_could_have(
    settings: dict[str, Any], message: str, task: Callable[..., CausalLM]
) -> None:
    with pytest.raises(ConfigError, match=message):
        task(**settings)


def test_what_libraries_say_is_shortened_to_a_line() -> None:
    assert first_line(ValueError("one.\ntwo")) == "one" and first_line(KeyError()) == "KeyError"


def test_flash_attention_is_given_one_long_row(task: Callable[..., CausalLM]) -> None:
    one = task(attention="flash_attention_2")
    data = one.build_data()
    batch = data.collate([data.train[0], data.train[1]])
    inputs = one.inputs(batch)
    assert inputs["input_ids"].shape == inputs["position_ids"].shape == (1, 2 * 128)
    assert torch.equal(inputs["position_ids"].reshape(2, 128), batch["position_ids"])
    assert task().inputs(batch)["input_ids"].shape == (2, 128)
