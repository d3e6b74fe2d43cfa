"""Two steps of a real job over gloo, with the memory and the collectives that a rehearsal predicts.

    ranks tests/workers/observed.py RESULT WORD ...

The words are those of ``trainer train``. Rank 0 leaves ``one_rank.observe``'s result as JSON.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from of_all_ranks import leave
from torch import Tensor, nn
from torch.utils.data import Dataset

import trainer
from trainer import Data, Task


class Rows(Dataset[dict[str, Tensor]]):
    """Token ids, the same in each row."""

    def __init__(self, length: int) -> None:
        self.ids = torch.arange(length) % 64

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"ids": self.ids}


@dataclass(frozen=True, kw_only=True)
class Llama(Task):
    """A Llama of 2.8 million parameters, or a model of another family."""

    family: str = "llama"
    layers: int = 3
    length: int = 64
    key_heads: int = 2
    recomputes: bool = False
    only_last: bool = False

    def build_data(self) -> Data:
        return Data(train=Rows(self.length))

    def build_model(self) -> nn.Module:
        from transformers import AutoConfig, AutoModelForCausalLM

        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(
                self.family,
                vocab_size=512,
                hidden_size=256,
                intermediate_size=512,
                num_hidden_layers=self.layers,
                num_attention_heads=4,
                num_key_value_heads=self.key_heads,
                use_cache=False,
            )
        )
        if self.recomputes:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        if self.only_last:
            model.requires_grad_(False)
            model.model.layers[-1].requires_grad_(True)
        return model

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        loss: Tensor = model(input_ids=batch["ids"], labels=batch["ids"]).loss
        return loss


class Uneven(Llama):
    """A task whose second rank sums a tensor of its own."""

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        if dist.get_rank() == 1:
            dist.all_reduce(torch.zeros(64, device=batch["ids"].device))
        return super().training_step(model, batch)


@dataclass(frozen=True, kw_only=True)
class Unrehearsable(Llama):
    """A task that asks for a key that its batch has not, or for the positions of large logits."""

    key: str = "ids"

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        logits = model(input_ids=batch[self.key]).logits
        return logits[(logits > 0).nonzero()[:, 0]].mean()


class Padded(Task):
    """A small BERT over padded texts, with a check of its own that the loss is a number."""

    def build_data(self) -> Data:
        rows = [
            {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids[0] % 2}
            for ids in torch.arange(1, 9).repeat(64, 2)
        ]
        for row in rows[::2]:
            row["input_ids"][5:] = row["attention_mask"][5:] = 0
        return Data(train=rows)

    def build_model(self) -> nn.Module:
        from transformers import BertConfig, BertForSequenceClassification

        model = BertForSequenceClassification(
            BertConfig(
                vocab_size=64,
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=2,
            )
        )
        # Draws until all are in the range.
        nn.init.trunc_normal_(model.classifier.weight, std=0.02, a=-0.06, b=0.06)
        return model

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        loss: Tensor = model(**batch).loss
        assert not torch.isnan(loss)
        return loss


def main() -> None:
    from trainer.rehearsal.fake_device import FakeDevice
    from trainer.rehearsal.ledger import Ledger
    from trainer.rehearsal.one_rank import observe

    class Real(FakeDevice):
        """Runs operations as they are."""

        def run(self, function: Any, args: Any, kwargs: Any) -> Any:
            return function(*args, **kwargs)

    class Patient(Ledger):
        """A ledger that claims no tensor of an exchange that is over.

        gloo's threads let go of exchanged tensors a moment after the wait has returned, and later
        on a busy machine.
        """

        def claim_new(self, kind: str) -> None:
            before = -1
            while self.live != before:
                before = self.live
                time.sleep(0.2)
            super().claim_new(kind)

    found = observe(sys.argv[2:], Real(Patient("cpu")))
    leave(Path(sys.argv[1]), found)


if __name__ == "__main__":
    trainer.run_and_exit(main)
