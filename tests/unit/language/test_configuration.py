"""Keys of a pretrained model's configuration by settings: changed, checked, and in the export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import save_architecture
from one_process import fit
from tiny_language import build_with_batch
from whole_model import build_whole

from trainer import ConfigError
from trainer.language import CausalLM
from trainer.language.configuration import changed_configuration

LINEAR = {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}


def test_a_key_changes_the_model_and_keeps_the_rest_of_a_mapping(
    llama: Path, task: Callable[..., CausalLM]
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    ours, batch = build_with_batch(task(model_config=LINEAR))
    by_hand = AutoConfig.from_pretrained(llama)
    by_hand.rope_parameters = {**by_hand.rope_parameters, **LINEAR["rope_parameters"]}
    theirs: Any = AutoModelForCausalLM.from_pretrained(llama, config=by_hand)
    plain: Any = AutoModelForCausalLM.from_pretrained(llama)
    ids = batch["input_ids"]
    logits = ours.eval()(input_ids=ids).logits
    assert torch.equal(logits, theirs.eval()(input_ids=ids).logits)
    assert not torch.allclose(logits, plain.eval()(input_ids=ids).logits)
    assert ours.config.rope_parameters["rope_theta"] == 10_000.0


@pytest.mark.parametrize("adapter", [None, {"r": 2}])
def test_the_export_of_a_changed_model_has_its_logits(
    adapter: Any, llama: Path, task: Callable[..., CausalLM], tmp_path: Path, capsys: Any
) -> None:
    """The comparison of the export ends the run otherwise."""
    fit(tmp_path / "run", task(model_config=LINEAR, adapter=adapter), max_steps=2)
    [file] = (tmp_path / "run/model").glob("*.safetensors")
    assert file.name == ("adapter_model.safetensors" if adapter else "model.safetensors")
    note = "model_config: the file of the adapter has none"
    assert (note in capsys.readouterr().out) == bool(adapter)


def test_keys_of_the_text_part_of_a_composite_configuration(tmp_path: Path) -> None:
    save_architecture(tmp_path, "gemma3")
    before = changed_configuration(str(tmp_path), {})
    changed = changed_configuration(str(tmp_path), {"sliding_window": 8, "initializer_range": 0.5})
    assert before.get_text_config().sliding_window == 32
    assert changed.get_text_config().sliding_window == 8
    assert changed.initializer_range == changed.get_text_config().initializer_range == 0.5
    assert type(changed) is type(before)
    with pytest.raises(ConfigError, match=r"model_config.sliding_windw: 8: .*'sliding_window'\?"):
        changed_configuration(str(tmp_path), {"sliding_windw": 8})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rope_scaling": {}}, r"model_config.rope_scaling: \{\}: unknown key; .*rope_parameters"),
        ({"hidden_act": 3}, r"model: '.*': cannot be loaded: .*hidden_act"),
        ({"rope_parameters": {"rope_type": "yarn"}}, r"cannot be loaded: .*'factor'"),
        ({"hidden_size": 64}, r"model: '.*': cannot be loaded: "),
        ({"num_hidden_layers": 1}, r"its files hold .*layers\.1.*ignore_tensors"),
    ],
)
def test_wrong_keys_and_values_are_one_line(
    keys: dict[str, Any], message: str, refused: Callable[..., None]
) -> None:
    refused(message, model_config=keys)


def test_fewer_layers(task: Callable[..., CausalLM]) -> None:
    model: Any = build_whole(
        task(model_config={"num_hidden_layers": 1}, ignore_tensors="model.layers.1.*")
    )
    assert len(model.model.layers) == 1


def test_a_model_from_scratch_has_no_files_to_change(llama: Path, texts: Path) -> None:
    with pytest.raises(ValueError, match="config: has no files, so neither model_config"):
        CausalLM(config={"model_type": "llama"}, tokenizer=str(llama), data="", model_config=LINEAR)
