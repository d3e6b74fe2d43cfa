r"""A GAN on handwritten digits: two models and two optimizers on one launch, in your own loop.

    accelerate launch --config_file accel_configs/fsdp.yaml examples/gan.py \
        --config examples/configs/gan.yaml

`--resume auto` continues from the newest checkpoint of each; a path would be one for both.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate.utils import send_to_device
from torch import Tensor, nn

import trainer

LATENT, PIXELS, IMAGES = 32, 64, 1797
# deviation of the noise on all that the discriminator sees: so few images are soon known by heart
BLUR = 0.3


class Generator(trainer.Task):
    """Turns noise into images. Its data is the noise: it depends on (seed, epoch, sample), and not
    on the layout.
    """

    def build_data(self) -> trainer.Data:
        sizes = (LATENT, PIXELS)
        return trainer.Data(
            train=range(IMAGES),
            augment=lambda _, rng: [torch.randn(n, generator=rng) for n in sizes],
        )

    def build_model(self) -> nn.Module:
        return network(LATENT, PIXELS).append(nn.Sigmoid())


class Discriminator(trainer.Task):
    """Tells scikit-learn's digits of 8x8 pixels from generated images."""

    def build_data(self) -> trainer.Data:
        from sklearn.datasets import load_digits

        images = torch.from_numpy(load_digits().data).float() / 16
        return trainer.Data(
            train=images,
            augment=lambda image, rng: image + BLUR * torch.randn(PIXELS, generator=rng),
        )

    def build_model(self) -> nn.Module:
        return network(PIXELS, 1)


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, outputs)
    )


def train(discriminator: trainer.Run, generator: trainer.Run) -> None:
    """Alternate steps of the two until their windows end. Collective: call on every rank."""
    accelerator, world = generator.accelerator, generator.plan.world_size
    # The discriminator without its wrapper, which would wait for gradients (DDP) or scale them
    # (DeepSpeed).
    critic = getattr(discriminator.model, "module", discriminator.model)

    def of_discriminator(real: Tensor, latent: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            fake = generator.model(latent)
        scores = discriminator.model(torch.cat([real, fake + BLUR * noise]))
        loss = F.softplus(-scores[: len(real)]).mean() + F.softplus(scores[len(real) :]).mean()
        return loss, loss

    def of_generator(_: Tensor, latent: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        fake = generator.model(latent)
        # The chain rule in two halves: the first ends at the images, so the discriminator's
        # parameters collect nothing.
        shown = (fake.detach() + BLUR * noise).requires_grad_()
        with discriminator.strategy.micro_step(boundary=False):
            loss = F.softplus(-critic(shown)).mean()
            [slope] = torch.autograd.grad(loss, shown)
        return (fake * slope).sum(), loss

    for reals, noises in zip(discriminator.windows(), generator.windows(), strict=True):
        row: dict[str, float] = {"step": generator.step + 1}
        for state, window, losses in (
            (discriminator, reals, of_discriminator),
            (generator, noises, of_generator),
        ):
            mean = torch.zeros((), device=accelerator.device)
            for number, (real, noise) in enumerate(
                zip(reals.micros, noises.micros, strict=True), 1
            ):
                share = (
                    real.weight / window.samples
                )  # of the mean over the global batch, also in a short last window
                with state.strategy.micro_step(boundary=number == len(window.micros)):
                    objective, loss = losses(
                        *send_to_device((real.batch, *noise.batch), accelerator.device)
                    )
                    state.strategy.backward(
                        objective * share * world
                    )  # strategies average over ranks
                mean += loss.detach() * share
            state.advance(window, skipped=state.strategy.finish_step().skipped)
            row[type(state.task).__name__.lower()] = accelerator.reduce(mean, "sum").item()
        generator.directory.row(row)
        if generator.step % generator.config.log_every == 0:
            generator.say("  ".join(f"{name} {value:.6g}" for name, value in row.items()))
        if generator.step == generator.total_steps or generator.saves_at(generator.step):
            generator.save()
            discriminator.save()


def main() -> None:
    loaded = trainer.load_config(sys.argv[1:])
    _, config = trainer.load_task(loaded)
    launched = trainer.launch(
        config, origins=loaded.origins, accel_config=loaded.accel_config, deepspeed=loaded.deepspeed
    )
    states, folder = [], Path(config.output_dir)
    for name, task in (("discriminator", Discriminator()), ("generator", Generator())):
        own = dataclasses.replace(
            config, task=f"gan:{type(task).__name__}", output_dir=str(folder / name)
        )
        states.append(trainer.build(task, own, launched, origins=loaded.origins))
    if states[0].step != states[1].step:  # the run was killed between the two saves
        raise trainer.CheckpointError(
            f"{folder}: saved at steps {[s.step for s in states]}; delete the newer one"
        )
    train(*states)
    states[1].export(folder / "model")
    for state in states:
        state.close()


if __name__ == "__main__":
    trainer.run_and_exit(main)
