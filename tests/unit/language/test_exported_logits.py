"""An export that loads as another model is not published, and adapters that would be are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from one_process import fit
from tiny_language import change_config, save_model
from torch import nn

from trainer import CheckpointError, ConfigError, Data, Task
from trainer.checkpoint.exported import save_config
from trainer.language import CausalLM
from trainer.language.adapters import adapter_part
from trainer.task import SavedPart

pytestmark = pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")


class OtherConfig(CausalLM):
    """Its configuration is not the one that was trained with."""

    def save_extras(self, directory: Path) -> None:
        super().save_extras(directory)
        change_config(directory, hidden_act="relu")


class Noisy(CausalLM):
    """Its embeddings draw noise in evaluation mode too, as a diffusion model does."""

    def build_model(self) -> Any:
        model = super().build_model()
        embeddings = model.get_input_embeddings()
        embeddings.register_forward_hook(lambda _, __, output: output + torch.randn_like(output))
        return model


@dataclass(frozen=True, kw_only=True)
class Own(Task):
    """A peft model of a user's own task."""

    folder: str
    kind: str

    def build_data(self) -> Data:
        ids = torch.randint(0, 300, (8, 6), generator=torch.Generator().manual_seed(3))
        return Data(train=[{"ids": row} for row in ids])

    def build_model(self) -> nn.Module:
        from peft import LoraConfig, PromptTuningConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        base: Any = AutoModelForCausalLM.from_pretrained(self.folder)
        settings: dict[str, Any] = {"target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
        if self.kind == "prompt":
            return get_peft_model(
                base, PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")
            )
        if self.kind == "changed":
            with torch.no_grad():
                base.get_output_embeddings().weight.mul_(1.5)
        if self.kind == "tied twice":
            settings |= {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}
        return get_peft_model(base, LoraConfig(r=2, **settings))

    def saved_part(self, model: nn.Module) -> SavedPart | None:
        return adapter_part(model)

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return model(input_ids=batch["ids"], labels=batch["ids"]).loss


def test_an_export_whose_configuration_gives_another_model_is_not_published(
    llama: Path, texts: Path, tmp_path: Path
) -> None:
    own = OtherConfig(model=str(llama), data=str(texts), cache_dir=str(tmp_path / "cache"))
    with pytest.raises(
        CheckpointError, match=r"a model with other logits than the trained model: they diff"
    ):
        fit(tmp_path / "run", own, max_steps=2)
    assert not (tmp_path / "run/model").exists()


def test_an_export_of_a_model_that_draws_numbers_is_not_compared(
    llama: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = Noisy(model=str(llama), data=str(texts), cache_dir=str(tmp_path / "cache"))
    fit(tmp_path / "run", own, max_steps=2)
    out = capsys.readouterr().out
    assert "exports are not compared with the model: it draws random numbers" in out
    assert list((tmp_path / "run/model").glob("*.safetensors"))


def test_an_adapter_on_a_model_that_was_changed_after_it_was_loaded_is_not_published(
    llama: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"a model with other logits than the trained model"):
        fit(tmp_path / "run", Own(folder=str(llama), kind="changed"), max_steps=2)
    fit(tmp_path / "run", Own(folder=str(llama), kind="lora"), max_steps=2, overwrite=True)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("prompt", "prompt_embeddings.*cannot be held by the file of an adapter"),
        ("tied twice", "cannot be held by the file of an adapter; .*tie no saved modules"),
    ],
)
def test_an_adapter_that_would_not_come_back_is_refused_before_training(
    kind: str, reason: str, tmp_path: Path
) -> None:
    folder = save_model(tmp_path / "tied", tie_word_embeddings=True)
    own = Own(folder=str(folder), kind=kind)
    with pytest.raises(ConfigError, match=reason):
        own.saved_part(own.build_model())


@pytest.mark.parametrize("key", ["targets", "trained"])
@pytest.mark.parametrize("layer", ["lm_head", "embed_tokens"])
def test_an_adapted_layer_with_tied_weights_is_refused(
    layer: str, key: str, task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    folder = save_model(tmp_path / "tied", tie_word_embeddings=True)
    causal = task(model=str(folder), adapter={"r": 2, key: [layer]})
    with pytest.raises(ConfigError, match=rf"{layer}.* belongs to two layers .* targets and train"):
        causal.saved_part(causal.build_model())


def test_a_wrapper_does_not_write_the_configuration_of_the_wrapped_model(
    llama: Path, tmp_path: Path
) -> None:
    """from_pretrained would find none of the tensors, and draw random numbers."""
    own = Own(folder=str(llama), kind="lora").build_model()
    assert hasattr(own, "config")
    save_config(own, tmp_path)
    assert not list(tmp_path.iterdir())
