"""The GAN in its own loop: one process and two have the same curves, under every strategy."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from accelerate.utils import set_seed
from gan import BLUR, Discriminator, Generator
from launchers import Job, run, some_quick
from small_examples import words

from trainer.data.batches import Layout
from trainer.data.indexed import IndexedData

# Step 29 ends the epoch with the 5 samples that are left: the second rank has none of them.
GAN = ["--config", "examples/configs/gan.yaml", "--max_steps", "32", "--save_every", "16"]

GAN += ["--micro_batch_size", "16", "--global_batch_size", "64"]


# --- the GAN


@cache
def gan(strategy: str, folder: Path) -> Job:
    return run([*words(strategy, "examples/gan.py"), *GAN], folder / f"gan-{strategy}").ok()


def both_losses(job: Job) -> list[float]:
    lines = (job.output_dir / "generator" / "metrics.jsonl").read_text().splitlines()
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


@pytest.mark.parametrize("strategy", some_quick())
def test_gan_has_both_losses_of_one_process(strategy: str, folder: Path) -> None:
    done = gan(strategy, folder)
    for name in ("discriminator", "generator"):
        plan = json.loads((done.output_dir / name / "plan.json").read_text())
        assert (plan["strategy"], plan["world_size"]) == (strategy, 2)
    assert both_losses(done) == pytest.approx(both_losses(gan("single", folder)), rel=2e-6)


def broken_off(whole: Job, output_dir: Path, *names: str) -> Path:
    """A copy of a finished run without the last checkpoint of the models that are named."""
    shutil.copytree(whole.output_dir, output_dir)
    for name in names:
        shutil.rmtree(output_dir / name / "checkpoints" / "step-00000032")
    shutil.rmtree(output_dir / "model")
    return output_dir


@pytest.mark.parametrize("strategy", some_quick())
def test_gan_goes_on_bit_by_bit(strategy: str, folder: Path) -> None:
    whole = gan(strategy, folder)
    halfway = broken_off(whole, folder / f"resumed-{strategy}", "generator", "discriminator")
    resumed = run([*words(strategy, "examples/gan.py"), *GAN, "--resume", "auto"], halfway).ok()
    assert resumed.out.count("resumed from") == 2
    assert both_losses(resumed) == both_losses(whole)
    ours, theirs = (job.output_dir / "model" / "model.safetensors" for job in (resumed, whole))
    assert ours.read_bytes() == theirs.read_bytes()


def test_gan_whose_models_were_saved_at_different_steps_is_not_gone_on_with(folder: Path) -> None:
    halfway = broken_off(gan("single", folder), folder / "unpaired", "discriminator")
    refused = run([*words("single", "examples/gan.py"), *GAN, "--resume", "auto"], halfway)
    assert refused.code == 1
    assert "saved at steps [16, 32]; delete the newer one" in refused.err
