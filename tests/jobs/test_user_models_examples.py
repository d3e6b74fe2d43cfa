"""A GAN in a loop of its own, a BERT classifier and a ResNet have the curves of one process.

| promised | strategies and worlds | tests |
|---|---|---|
| The GAN has the losses of one that is written plainly | one process | test_gan_has_the_losses_of_one_that_is_written_plainly |
| Both of its losses, two trainings on one launch, are those of one process | ZeRO-3 on 2; all on 2 (nightly) | test_gan_has_both_losses_of_one_process |
| It resumes bit by bit | all on 2 (nightly) | test_gan_goes_on_bit_by_bit |
| Models that were saved at different steps are not resumed together | one process | test_gan_whose_models_were_saved_at_different_steps_is_not_gone_on_with |
| BERT has the curve of one process | all on 2 (nightly) | test_bert_has_the_curve_of_one_process |
| The ResNet has the curve of one process, with BatchNorm, mixup by epoch, class weights and a stem that is unfrozen, stopped before and after that and resumed under other strategies | all on 2, one process (nightly) | test_resnet_that_changes_its_strategy_has_the_curve_of_one_process |
"""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accelerate.utils import set_seed
from gan import BLUR, Discriminator, Generator
from launchers import STRATEGIES, Job, json_in, options, run, some_quick
from small_examples import words

from trainer.data.batches import Layout
from trainer.data.indexed import IndexedData

# Step 29 ends the epoch with the 5 samples that are left: the second rank has none of them.
GAN = ["--config", "examples/configs/gan.yaml", "--max_steps", "32", "--save_every", "16"]

GAN += ["--micro_batch_size", "16", "--global_batch_size", "64"]


@cache
def gan(strategy: str, folder: Path) -> Job:
    return run([*words(strategy, "examples/gan.py"), *GAN], folder / f"gan-{strategy}").ok()


def both_losses(job: Job) -> list[float]:
    lines = (job.output_dir / "generator/metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["step"] for row in rows] == list(range(1, 33))
    return [row[name] for row in rows for name in ("discriminator", "generator")]


def written_plainly(steps: int) -> list[float]:
    """The losses of a GAN as textbooks write it: the generator's gradient comes by one backward
    through both models.
    """
    layout = Layout(rank=0, world_size=1, micro_batch_size=64, accumulation_steps=1)
    models, optimizers, streams, losses = [], [], [], []
    for task in (Discriminator(), Generator()):
        set_seed(0)
        models.append(task.build_model())
        optimizers.append(torch.optim.Adam(models[-1].parameters(), 2e-3, (0.0, 0.99)))
        data = task.build_data()
        streams.append(
            IndexedData(data.train, layout, seed=0, augment=data.augment).windows(0, steps)
        )
    discriminator, generator = models
    for reals, noises in zip(*streams, strict=True):
        real, (latent, noise) = reals.micros[0].batch, noises.micros[0].batch
        true, false = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        fake = generator(latent).detach() + BLUR * noise
        ours = F.binary_cross_entropy_with_logits(discriminator(real), true)
        ours = ours + F.binary_cross_entropy_with_logits(discriminator(fake), false)
        optimizers[0].zero_grad()
        ours.backward()
        optimizers[0].step()
        theirs = F.binary_cross_entropy_with_logits(
            discriminator(generator(latent) + BLUR * noise), true
        )
        optimizers[1].zero_grad()
        theirs.backward()
        optimizers[1].step()
        losses += [ours.item(), theirs.item()]
    return losses


def test_gan_has_the_losses_of_one_that_is_written_plainly(folder: Path) -> None:
    assert both_losses(gan("single", folder)) == pytest.approx(written_plainly(32), rel=1e-5)


@pytest.mark.parametrize("strategy", some_quick("zero3"))
def test_gan_has_both_losses_of_one_process(strategy: str, folder: Path) -> None:
    done = gan(strategy, folder)
    for name in ("discriminator", "generator"):
        plan = json_in(done.output_dir / name / "plan.json")
        assert (plan["strategy"], plan["world_size"]) == (strategy, 2)
    assert both_losses(done) == pytest.approx(both_losses(gan("single", folder)), rel=2e-6)


def broken_off(whole: Job, output_dir: Path, *names: str) -> Path:
    """A copy of a finished run without the last checkpoint of the models that are named."""
    shutil.copytree(whole.output_dir, output_dir)
    for name in names:
        shutil.rmtree(output_dir / name / "checkpoints/step-00000032")
    shutil.rmtree(output_dir / "model")
    return output_dir


@pytest.mark.parametrize("strategy", some_quick())
def test_gan_goes_on_bit_by_bit(strategy: str, folder: Path) -> None:
    whole = gan(strategy, folder)
    halfway = broken_off(whole, folder / f"resumed-{strategy}", "generator", "discriminator")
    resumed = run([*words(strategy, "examples/gan.py"), *GAN, "--resume", "auto"], halfway).ok()
    assert resumed.out.count("resumed from") == 2
    assert both_losses(resumed) == both_losses(whole)
    ours, theirs = (job.output_dir / "model/model.safetensors" for job in (resumed, whole))
    assert ours.read_bytes() == theirs.read_bytes()


def test_gan_whose_models_were_saved_at_different_steps_is_not_gone_on_with(folder: Path) -> None:
    halfway = broken_off(gan("single", folder), folder / "unpaired", "discriminator")
    refused = run([*words("single", "examples/gan.py"), *GAN, "--resume", "auto"], halfway)
    assert refused.code == 1
    assert "saved at steps [16, 32]; delete the newer one" in refused.err


# The BERT classifier


SMALL: dict[str, Any] = {
    "texts": 100,
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 48,
    "heads": 2,
}
STEPS = 60
BERT = [
    "--config",
    "examples/configs/bert_classifier.yaml",
    "--epochs",
    "null",
    "--max_steps",
    str(STEPS),
]

BERT += ["--lr", "3e-3", "--eval_every", "null", "--log_every", "1", "--micro_batch_size", "8"]

BERT += ["--global_batch_size", "32"]


@cache
def bert(strategy: str, folder: Path) -> Job:
    settings = {**SMALL, "cache_dir": folder / "cache"}
    full = [*words(strategy, "examples/train.py"), *BERT, *options(settings, "task_settings.")]
    return run(full, folder / strategy).ok()


@pytest.mark.parametrize("strategy", some_quick())
def test_bert_has_the_curve_of_one_process(strategy: str, folder: Path) -> None:
    done, alone = bert(strategy, folder), bert("single", folder)
    assert (done.plan["strategy"], done.plan["world_size"]) == (strategy, 2)
    # The first steps differ by the order of float32 sums only; Adam's division amplifies that
    # afterwards.
    assert done.losses[:8] == pytest.approx(alone.losses[:8], rel=2e-6)
    assert len(done.losses) == STEPS and done.losses == pytest.approx(alone.losses, rel=1e-3)
    assert sum(done.losses[-5:]) / 5 < 1.45, "it learns: a model that knows nothing has log(5)"
    ours, theirs = done.evaluation, alone.evaluation
    names = {"eval/accuracy", "eval/f1", *(f"eval/recall/{label}" for label in range(5))}
    assert names <= ours.keys() == theirs.keys()
    assert ours["eval/loss"] == pytest.approx(theirs["eval/loss"], rel=1e-3)
    accuracy = pytest.approx(theirs["eval/accuracy"], abs=0.01)
    assert ours["eval/accuracy"] == accuracy, "one text of 136 may tip over"


# The ResNet: four epochs of 22 steps, its stem is unfrozen behind step 44.


RESNET = ["--config", "examples/configs/resnet_digits.yaml", "--log_every", "1"]


def trained_resnet(strategy: str, output_dir: Path, *options: str) -> Job:
    return run([*words(strategy, "examples/train.py"), *RESNET, *options], output_dir).ok()


@cache
def resnet_alone(folder: Path) -> Job:
    return trained_resnet("single", folder / "resnet-single")


@pytest.mark.slow
@pytest.mark.parametrize("place", range(len(STRATEGIES)))
def test_resnet_that_changes_its_strategy_has_the_curve_of_one_process(
    place: int, folder: Path
) -> None:
    """Each strategy begins, and each has the stem unfrozen."""
    alone = resnet_alone(folder)
    first, second = STRATEGIES[place], STRATEGIES[(place + 2) % len(STRATEGIES)]
    output_dir = folder / f"resnet-{first}-{second}"
    for strategy, stop in ((first, "30"), (second, "60"), ("single", "88")):
        done = trained_resnet(strategy, output_dir, "--resume", "auto", "--stop_at", stop)
        world = 1 if strategy == "single" else 2
        assert (done.plan["strategy"], done.plan["world_size"]) == (strategy, world)
    assert "resumed from" in done.out
    assert len(done.losses) == 88 and done.losses == pytest.approx(alone.losses, rel=1e-5)
    assert alone.evaluation["eval/clean/accuracy"] > 0.95
    # BatchNorm's running statistics are of the micro-batches that a rank saw.
    accuracy = pytest.approx(alone.evaluation["eval/clean/accuracy"], abs=0.03)
    assert done.evaluation["eval/clean/accuracy"] == accuracy
