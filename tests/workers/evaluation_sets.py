"""A task with two evaluation sets."""

from __future__ import annotations

from typing import Any

from rank_numbers import Images
from torch import nn
from torchmetrics import CatMetric, SpearmanCorrCoef
from torchmetrics.classification import MulticlassAccuracy

from trainer import Data, EvaluationSet


class TwoSets(Images):
    """Seven samples, which two ranks cannot share evenly, and one, which leaves a rank without."""

    def build_data(self) -> Data:
        data = super().build_data()
        one = EvaluationSet(
            data.evaluation[7:8],
            every=2,
            evaluation_step=self.measure_one,
            build_metrics=lambda: {"ids": CatMetric()},
        )
        seven = EvaluationSet(data.evaluation[:7], every="1/4 epoch")
        return Data(train=data.train, evaluation={"seven": seven, "one": one})

    def build_metrics(self) -> dict[str, Any]:
        return {"accuracy": MulticlassAccuracy(4, average="micro"), "order": SpearmanCorrCoef()}

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        logits, labels = model(batch["image"]), batch["label"]
        loss = nn.functional.cross_entropy(logits, labels, reduction="none")
        order = {"preds": logits[:, 0], "target": labels.float()}
        return {"loss": loss, "accuracy": (logits, labels), "order": order}

    def measure_one(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        logits = model(batch["image"])
        return {"logit": (logits.sum(0), float(len(logits))), "ids": batch["label"]}
