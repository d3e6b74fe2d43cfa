"""What surrounds the loop, in real jobs: early stop, the best model, averages, compiling, a loop of
one's own.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from launchers import command, run
from safetensors.torch import load_file

DIGITS = ["--config", "examples/configs/digits_cnn.yaml", "--log_every", "1", "--warmup_steps", "0"]


def test_early_stop_keeps_the_best_model(tmp_path: Path) -> None:
    """A learning rate that ruins the model after its first steps: the best evaluation is an early
    one.
    """
    rule = [
        "--eval_every",
        "2",
        "--best_metric",
        "eval/loss",
        "--early_stop_patience",
        "3",
        "--save_every",
        "4",
    ]
    job = run(
        [*command("ranks", "zero3"), *DIGITS, *rule, "--max_steps", "60", "--lr", "0.5"],
        tmp_path / "run",
    ).ok()
    seen = {row["step"]: row["eval/loss"] for row in job.rows if "eval/loss" in row}
    best = min(seen, key=lambda step: seen[step])
    # The third evaluation in a row without a better one asks, and the ranks agree at the end of the
    # next step.
    later = [step for step in seen if step > best]
    assert len(later) in (3, 4) and max(seen) < 60
    kept = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert len(kept) in (2, 3), "the last two, and that of the best step if it is another one"
    kept, last = (
        load_file(tmp_path / "run" / name / "model.safetensors") for name in ("best", "model")
    )
    assert any(not kept[key].equal(last[key]) for key in kept)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero3"])
def test_compiling_changes_nothing_but_rounding(strategy: str, tmp_path: Path) -> None:
    words = [*command("torchrun", strategy), *DIGITS, "--max_steps", "4"]
    plain = run(words, tmp_path / "plain").ok()
    cache = tmp_path / "kernels"
    compiled = run(
        [*words, "--compile", "true"],
        tmp_path / "compiled",
        environment={"TORCHINDUCTOR_CACHE_DIR": str(cache)},
    ).ok()
    assert any(cache.rglob("*.so")), "no kernel was compiled"
    assert compiled.plan["compile"] and not plain.plan["compile"]
    assert compiled.losses == pytest.approx(plain.losses, rel=1e-4)
    ours, theirs = (
        load_file(job.output_dir / "model" / "model.safetensors") for job in (plain, compiled)
    )
    assert ours.keys() == theirs.keys()


@pytest.mark.parametrize("launcher", [pytest.param("accelerate", marks=pytest.mark.slow), "ranks"])
def test_a_loop_of_ones_own(launcher: str, tmp_path: Path) -> None:
    """It has the trainer's numbers, and other strategies go on from its checkpoint, the trainer
    too.
    """
    words = [*DIGITS, "--drop_last", "true", "--max_steps", "30", "--save_every", "20"]

    def own_loop(launcher: str, strategy: str, *more: str) -> list[float]:
        world = 0 if strategy == "single" else 2
        job = run(
            [*command(launcher, strategy, world, "examples/own_loop.py"), *words, *more],
            tmp_path / strategy,
        )
        assert (
            f"done under {strategy} on {1 if strategy == 'single' else 2} processes" in job.ok().out
        )
        assert (job.output_dir / "model" / "model.safetensors").exists()
        return [
            float(line.rpartition(" ")[2])
            for line in job.out.splitlines()
            if line.startswith("step ")
        ]

    losses = run([*command("ranks", "single", world=0), *words], tmp_path / "trainer").ok().losses
    unbroken = own_loop(launcher, "zero2")
    assert unbroken == pytest.approx(losses, rel=1e-5, abs=1e-6) and len(unbroken) == 30
    middle = ("--resume", str(tmp_path / "zero2" / "checkpoints" / "step-00000020"))
    for strategy in ("fsdp", "zero3", "single"):
        assert own_loop("ranks", strategy, *middle) == pytest.approx(
            losses[20:], rel=1e-5, abs=1e-6
        )
    trained_on = run([*command("ranks", "ddp"), *words, *middle], tmp_path / "trained_on").ok()
    assert trained_on.losses == pytest.approx(losses[20:], rel=1e-5, abs=1e-6)
