r"""Pictures of a run: what it is trained on, what it mistakes, its weights, its confusion matrix.

    accelerate launch --config_file accel_configs/fsdp.yaml examples/digits_pictures.py \
        --config examples/configs/digits_cnn.yaml --trackers "[tensorboard, trackio]"
    python examples/digits_pictures.py --config examples/configs/digits_cnn.yaml

They are in the run's folder, ``media/NAME/step-XXXXXXXX.png``, and in its trackers: ``tensorboard
--logdir runs/digits_cnn/tracking``, ``trackio show``, ``wandb sync`` or W&B's page.
"""

from __future__ import annotations

import sys

import torch

import trainer
from trainer import Callback, Histogram, Images, Run, ShowConfusion, StepInfo


class Pictures(Callback):
    """Shows samples once, and at each evaluation mistakes among the first images held out."""

    def on_start(self, run: Run) -> None:
        if run.step > 0:  # resumed: they were shown when it began
            return

        items = [run.data.train[index] for index in range(16)]
        captions = [str(int(item["label"])) for item in items]
        run.show("samples", Images([item["image"] for item in items], captions))

    def on_step(self, run: Run, info: StepInfo) -> None:
        if info.evaluation is None:
            return

        # Every rank computes the same, since a strategy may keep a part of the model on each.
        items = [run.data.evaluation[index] for index in range(128)]
        images = torch.stack([item["image"] for item in items]).to(run.accelerator.device)
        run.model.eval()
        with torch.no_grad():
            predicted = run.model(images).argmax(-1).cpu()
        run.train_mode()
        labels = torch.stack([item["label"] for item in items])
        wrong = (predicted != labels).nonzero().flatten().tolist()
        if wrong:
            captions = [f"{int(labels[at])}, taken for {int(predicted[at])}" for at in wrong]
            run.show("eval/mistakes", Images(images[wrong], captions))

        with run.whole_parameters("0") as model:
            run.show("weights/first", Histogram(model[0].weight))


def main() -> None:
    loaded = trainer.load_config(sys.argv[1:])
    task, config = trainer.load_task(loaded)
    launched = trainer.launch(
        config, origins=loaded.origins, accel_config=loaded.accel_config, deepspeed=loaded.deepspeed
    )
    callbacks = [Pictures(), ShowConfusion("confusion", names=list("0123456789"))]
    training = trainer.Trainer(task, config, launched, callbacks=callbacks, origins=loaded.origins)
    training.fit()
    training.close()


if __name__ == "__main__":
    trainer.run_and_exit(main)
