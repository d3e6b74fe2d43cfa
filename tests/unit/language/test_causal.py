"""The task: its loss is the mean over what is learnt, fused or not; its exports are complete; settings fit together."""

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
from trainer.language.loss import FusedHead
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
    logits = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
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
        assert model(input_ids=batch["input_ids"]).logits.shape[-1] == VOCABULARY, "logits as ever without targets"
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


def test_auto_fuses_large_vocabularies_only(task: Callable[..., CausalLM], monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(task().build_model().get_output_embeddings()) is torch.nn.Linear  # type: ignore[operator]
    monkeypatch.setattr("trainer.language.causal.LARGE_VOCABULARY", VOCABULARY)
    assert type(task().build_model().get_output_embeddings()) is FusedHead  # type: ignore[operator]


def test_a_model_that_bounds_its_logits_is_not_fused(
    task: Callable[..., CausalLM], llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gemma2 = {**CONFIGS["gemma"], "model_type": "gemma2", "query_pre_attn_scalar": 16}
    settings: dict[str, Any] = {"model": None, "config": gemma2, "tokenizer": str(llama)}
    with pytest.raises(ConfigError, match="loss: 'fused': Gemma2ForCausalLM changes the logits behind its last layer"):
        task(**settings, loss="fused").build_model()
    monkeypatch.setattr("trainer.language.causal.LARGE_VOCABULARY", VOCABULARY)
    assert type(task(**settings).build_model().get_output_embeddings()) is torch.nn.Linear  # type: ignore[operator]
    with pytest.raises(ConfigError, match="the last layer of PeftModelForCausalLM is a Linear, no plain Linear"):
        task(loss="fused", adapter=Adapter(targets=["lm_head"])).build_model()


def test_evaluation_keeps_a_share_of_the_documents(task: Callable[..., CausalLM], texts: Path) -> None:
    data = task(evaluation=0.25).build_data()
    assert (data.train.fill.documents, data.evaluation.fill.documents) == (90, 30)
    whole = task(evaluation=str(texts)).build_data()
    assert (whole.train.fill.documents, whole.evaluation.fill.documents) == (120, 120)
    with pytest.raises(ConfigError, match=r"evaluation: 0.001: keeps 0 of 120 documents; both parts must hold one"):
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
        ({"model": None, "config": {"model_type": "llama"}}, "tokenizer: a model from scratch has none of its own"),
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
        ({"adapter": {"rank": 4}}, r"language task: task_settings.adapter.rank: 4: unknown key; known: alpha, dropout"),
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
