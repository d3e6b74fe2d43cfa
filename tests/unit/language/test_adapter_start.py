"""Training goes on with an adapter, and DPO keeps the adapter as it was as the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from launchers import json_in
from one_process import fit
from preferences import check_steps, preferences, settings_of_task, trainer, two_steps
from safetensors.torch import load_file, save_file
from tiny_language import paragraphs, save_adapter, save_model, save_rows, tokenizer
from whole_model import build_whole

from trainer import ConfigError
from trainer.language import DPO, Adapter, CausalLM, SequenceClassifier

FILE = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def adapter(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of an adapter that peft wrote, every value of which was drawn."""
    return save_adapter(llama, tmp_path_factory.mktemp("adapter"))


def merged(folder: Path) -> Any:
    from peft import AutoPeftModelForCausalLM

    loaded: Any = AutoPeftModelForCausalLM.from_pretrained(folder)
    return loaded.merge_and_unload()


@pytest.mark.parametrize("way", ["model", "start", "start on another base"])
def test_an_adapter_goes_on_with_its_values_and_settings(
    way: str, adapter: Path, given: Path, task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    settings = {
        "model": {"model": str(adapter)},
        "start": {"adapter": {"start": str(adapter)}},
        "start on another base": {
            "model": str(given / "other"),
            "adapter": {"start": str(adapter), "r": 3, "targets": ["up_proj", "q_proj"]},
        },
    }[way]
    causal = task(**settings)
    assert causal.adapter is not None
    assert (causal.adapter.r, causal.adapter.alpha, causal.adapter.start) == (3, 9, str(adapter))
    model: Any = build_whole(causal)
    held = load_file(adapter / FILE)
    names = causal.saved_part(model).names  # type: ignore[union-attr]
    own = dict(model.named_parameters())
    assert {names[n] for n, p in own.items() if p.requires_grad} == held.keys()
    assert all(torch.equal(own[name], held[in_file]) for name, in_file in names.items())
    if way == "model":
        ids = torch.arange(12)[None]
        expected = merged(adapter)(ids).logits
        torch.testing.assert_close(model.eval()(input_ids=ids).logits, expected)

    fit(tmp_path / "run", causal, max_steps=2)  # the export is compared with the trained model
    after = json_in(tmp_path / "run/model/adapter_config.json")
    assert (after["r"], after["lora_alpha"]) == (3, 9)
    assert after["base_model_name_or_path"] == causal.model
    trained = load_file(tmp_path / "run/model" / FILE)
    assert all(not torch.equal(trained[name], held[name]) for name in held)


def test_the_adapter_of_a_classifier_goes_on_with_its_last_layer(
    llama: Path, tmp_path: Path
) -> None:
    texts = [{"text": text[:40], "label": at % 2} for at, text in enumerate(paragraphs(12))]
    settings: dict[str, Any] = {"data": str(save_rows(tmp_path / "rows.jsonl", texts))}
    settings["cache_dir"] = str(tmp_path)
    first = SequenceClassifier(model=str(llama), adapter=Adapter(r=2), **settings)
    fit(tmp_path / "run", first, max_steps=2)
    folder = tmp_path / "run/model"
    again = SequenceClassifier(model=str(folder), **settings)
    model: Any = build_whole(again)
    held = load_file(folder / FILE)
    own = dict(model.named_parameters())
    names = again.saved_part(model).names  # type: ignore[union-attr]
    assert any("score" in name for name in names)
    assert all(torch.equal(own[name], held[in_file]) for name, in_file in names.items())


@pytest.mark.parametrize("dora", [False, True])
def test_dpo_has_the_adapter_as_it_was_as_its_reference(
    dora: bool, adapter: Path, llama: Path, given: Path, tmp_path: Path
) -> None:
    """Beside peft by hand in float64, with a second adapter of the same values."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    if dora:
        adapter = save_adapter(llama, tmp_path / "adapter", use_dora=True)
    dpo = DPO(**{**settings_of_task(given, tmp_path), "model": str(adapter)})
    assert (dpo.kind, dpo.model) == ("start", str(llama))
    base: Any = AutoModelForCausalLM.from_pretrained(llama)
    policy = PeftModel.from_pretrained(base, adapter, is_trainable=True).eval()
    exact = two_steps(policy, merged(adapter), tokenizer(), preferences(8), 3e-3)
    del exact[0]["accuracy"]
    assert exact[0]["loss"] == pytest.approx(0.693147, abs=1e-6)
    check_steps(trainer(dpo, tmp_path / "run"), exact)


@pytest.mark.filterwarnings("ignore::RuntimeWarning:peft.*")  # of its own defaults for experts
@pytest.mark.parametrize("kind", ["dropout", "experts"])
def test_the_reference_has_no_dropout_and_stays(
    kind: str, llama: Path, given: Path, tmp_path: Path
) -> None:
    """peft wraps fused experts as parameters, of which a second adapter is another wrapper."""
    settings = {**settings_of_task(given, tmp_path), "attention": "eager"}
    start = tmp_path / "first/model"
    if kind == "experts":
        settings["model"] = str(save_model(tmp_path / "mixtral", "mixtral"))
        trainer(DPO(**settings, adapter={"r": 2}), tmp_path / "first", lr=0.1).fit()
    else:
        save_adapter(llama, start, lora_dropout=0.5)
    model: Any = build_whole(DPO(**{**settings, "model": str(start)})).train()
    adapted = [name for name, _ in model.named_parameters() if "lora_" in name]
    assert any("experts" in name for name in adapted) == (kind == "experts")

    batch = {"input_ids": torch.arange(12)[None]}
    begun, again = (model(**batch, from_reference=True).logits for _ in range(2))
    assert torch.equal(begun, again)
    is_same = torch.equal(model(**batch).logits, model(**batch).logits)
    assert is_same == (kind == "experts")
    torch.testing.assert_close(model.eval()(**batch).logits, begun)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)
    assert not torch.allclose(model(**batch).logits, begun)
    assert torch.equal(model(**batch, from_reference=True).logits, begun)
    assert {p.requires_grad for n, p in model.named_parameters() if "reference" in n} == {False}


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({}, {"r": 8}, r"adapter.r: is another in .*; leave the key out"),
        ({}, {"targets": ["q_proj"]}, "adapter.targets: is another in"),
        ({"r": 2}, {}, r"does not hold this model: .*q_proj.lora_A.default.weight has shape"),
        ({"target_modules": ["q_proj", "up_proj", "k_proj"]}, {}, r"k_proj.lora_A.* is missing"),
        ({"init_lora_weights": "pissa"}, {}, r"adapter.start: .* needs a LoRA adapter.*; merge it"),
        ({"use_dora": True}, {}, r"lora_magnitude_vector.* is missing"),
        ({"use_rslora": True}, {"layers": [0]}, "adapter.layers: is another in "),
    ],
)
def test_what_cannot_go_on_is_refused(
    changes: Any,
    settings: dict[str, Any],
    message: str,
    adapter: Path,
    task: Callable[..., CausalLM],
    tmp_path: Path,
) -> None:
    from trainer import CheckpointError

    start = tmp_path / "start"
    start.mkdir()
    config = {**json_in(adapter / "adapter_config.json"), **changes}
    save_rows(start / "adapter_config.json", [config])
    save_file(load_file(adapter / FILE), start / FILE)
    with pytest.raises((ValueError, CheckpointError), match=message):
        fit(tmp_path / "run", task(adapter={"start": str(start), **settings}), max_steps=1)


def test_settings_that_cannot_be(adapter: Path, given: Path, tmp_path: Path) -> None:
    settings = {**settings_of_task(given, tmp_path), "model": str(adapter)}
    words = str(given / "llama")
    again = DPO(**settings, adapter={"start": str(adapter)}, tokenizer=words)
    with pytest.raises(ConfigError, match=r"it holds an adapter; give the adapter's model, and"):
        again.build_model()
    with pytest.raises(ValueError, match="and start need an adapter"):
        DPO(**{**settings, "model": str(given / "llama")}, reference="start")
    assert DPO(**settings, reference="without_adapter").kind == "without_adapter"
    assert DPO(**settings, reference_model=str(given / "other")).kind == "frozen"
