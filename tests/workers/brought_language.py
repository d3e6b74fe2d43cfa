"""Pretrained language models as users bring them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer import Data, Pretrained, Task
from trainer.language.adapters import adapter_part
from trainer.task import SavedPart


def hugging_face(kind: str) -> nn.Module:
    """Build a small model as people do."""
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        AutoModelForSequenceClassification,
        BertConfig,
        LlamaConfig,
    )

    small: dict[str, Any] = {
        "vocab_size": 40,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    if kind.startswith("llama"):
        tied = kind == "llama_tied"
        return AutoModelForCausalLM.from_config(LlamaConfig(tie_word_embeddings=tied, **small))
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(max_position_embeddings=32, num_labels=3, **off, **small)
    if kind == "bert_masked":
        return AutoModelForMaskedLM.from_config(config)
    return AutoModelForSequenceClassification.from_config(config)


@dataclass(frozen=True, kw_only=True)
class Language(Task):
    """A transformers model from a configuration, or from a folder (``from_pretrained``).

    Args:
        blank: built on the meta device, and filled when it is divided over the ranks.
    """

    kind: str = "llama"
    folder: str = ""
    blank: bool = False

    def build_data(self) -> Data:
        ids = torch.randint(0, 40, (32, 10), generator=torch.Generator().manual_seed(3))
        return Data(train=[{"ids": row, "label": row.sum() % 3} for row in ids])

    def build_model(self) -> nn.Module:
        if self.blank:
            with torch.device("meta"):
                return self._form()
        if self.kind.startswith("lora"):
            from peft import LoraConfig, get_peft_model

            base = hugging_face("llama_tied" if self.kind == "lora_saved" else "llama")
            saved = ["lm_head"] if self.kind == "lora_saved" else None
            if self.kind == "lora_narrow":
                base.to(torch.bfloat16)
            targets = ["q_proj", "v_proj"]
            settings = LoraConfig(
                r=4, target_modules=targets, modules_to_save=saved, task_type="CAUSAL_LM"
            )
            return get_peft_model(base, settings)
        if not self.folder:
            return hugging_face(self.kind)
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(self.folder)
        assert model.dtype == torch.bfloat16, "as the file has it"
        return model

    def saved_part(self, model: nn.Module) -> SavedPart | None:
        return adapter_part(model) if self.kind.startswith("lora") else None

    def _form(self) -> nn.Module:
        if not self.folder:
            return hugging_face(self.kind)
        from transformers import (
            AutoConfig,
            AutoModelForCausalLM,
            AutoModelForSequenceClassification,
        )

        if self.kind == "head":
            config = AutoConfig.from_pretrained(self.folder, num_labels=3, pad_token_id=0)
            return AutoModelForSequenceClassification.from_config(config)
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(self.folder))

    def pretrained(self, model: nn.Module) -> Pretrained | None:
        new = ["score.weight"] if self.kind == "head" else []
        return Pretrained(folder=Path(self.folder), new=new) if self.folder else None

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        labels = batch["label"] if self.kind in ("bert", "head") else batch["ids"]
        return model(input_ids=batch["ids"], labels=labels).loss


class Generating(Language):
    """Texts are generated while nothing is learnt, longer ones on some ranks; the model's own
    attributes are read.
    """

    def build_data(self) -> Data:
        data = super().build_data()
        return Data(train=data.train[:16], evaluation=data.train[16:27])

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        assert model.config.vocab_size == 40
        return super().training_step(model, batch)

    def evaluation_step(self, model: Any, batch: Any) -> Any:
        more = 2 + 3 * int(batch["label"][0])
        texts = model.generate(
            batch["ids"], max_new_tokens=more, min_new_tokens=more, do_sample=False, pad_token_id=0
        )
        assert texts.shape == (len(batch["ids"]), 10 + more)
        return {"generated": texts[:, 10:12].float().sum(1)}


PRETRAINED: list[str] = []  # the folder of a small Llama of bfloat16
