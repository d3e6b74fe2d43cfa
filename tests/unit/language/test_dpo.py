"""DPO: the formulas in float64, every kind of reference, and settings that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from preferences import (
    check_steps,
    preferences,
    settings_of_task,
    steps,
    trainer,
    two_steps,
)
from tiny_language import save_model, save_rows, tokenizer

from trainer import ConfigError, DataError
from trainer.language import DPO, Adapter, CausalLM


@pytest.fixture
def task(given: Path, tmp_path: Path) -> Callable[..., DPO]:
    return lambda **settings: DPO(**{**settings_of_task(given, tmp_path), **settings})


@pytest.mark.parametrize(
    ("reference", "settings"),
    [
        ("frozen", {}),
        ("other", {"label_smoothing": 0.2, "beta": 0.5}),
        ("computed_once", {"objective": "robust", "label_smoothing": 0.2}),
        ("computed_once", {"objective": "ipo", "beta": 0.3}),
        ("frozen", {"sft_weight": 0.7}),
        (None, {"objective": "orpo", "beta": 0.4}),
        (
            None,
            {"objective": "simpo", "beta": 2.0, "simpo_gamma": 0.9, "label_smoothing": 0.1},
        ),
    ],
)
def test_two_steps_are_those_of_the_formula_in_float64(
    reference: str | None,
    settings: dict[str, Any],
    given: Path,
    task: Callable[..., DPO],
    tmp_path: Path,
) -> None:
    from transformers import AutoModelForCausalLM

    how: dict[str, Any] = {"reference": reference}
    if reference == "other":
        how = {"reference_model": str(given / "other"), "loss": "plain"}
    dpo = task(**how, **settings)
    model: Any = AutoModelForCausalLM.from_pretrained(given / "llama")
    fixed: Any = AutoModelForCausalLM.from_pretrained(
        given / ("other" if reference == "other" else "llama")
    )
    exact = two_steps(model, fixed, tokenizer(), preferences(8), 3e-3, **settings)
    if reference:
        del exact[0]["accuracy"]  # of rewards that are zero up to rounding
    check_steps(trainer(dpo, tmp_path / "run"), exact)


def test_the_reference_is_the_model_without_its_adapter(
    task: Callable[..., DPO], tmp_path: Path
) -> None:
    """Frozen copy and the model without an adapter have the same curve, and the adapter learns."""
    found = []
    for reference in (None, "frozen", "computed_once"):
        dpo = task(adapter=Adapter(r=4), reference=reference)
        assert dpo.kind == (reference or "without_adapter")
        found.append(steps(trainer(dpo, tmp_path / str(reference), max_steps=4, lr=2e-2)))
    numbers = ("loss", "grad_norm", "chosen_reward", "rejected_reward")
    for row, *others in zip(*found, strict=True):
        for other in others:
            expected = pytest.approx([row[name] for name in numbers], rel=1e-5, abs=2e-6)
            assert [other[name] for name in numbers] == expected
    assert found[1][0]["margin"] == 0.0 and found[1][-1]["margin"] > 0.01


def test_a_trained_model_is_no_reference(task: Callable[..., DPO], tmp_path: Path) -> None:
    """A resumed run has the log-probabilities of its checkpoint, but not of other pairs."""
    for share, stop in ((0.25, 2), (0.5, 6)):
        dpo = task(reference="computed_once", evaluation=share)
        training = trainer(
            dpo, tmp_path, max_steps=6, stop_at=stop, resume="auto", allow_config_change=True
        )
        if share == 0.25:
            training.fit()
    with pytest.raises(DataError, match="set reference: frozen"):
        steps(training)
    training.close()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "from scratch": (
        {"model": None, "config": {"model_type": "llama"}, "tokenizer": "x"},
        "config: preferences need a trained model",
    ),
    "no adapter": ({"reference": "without_adapter"}, "need an adapter"),
    "no use": (
        {"reference": "computed_once", "reference_model": "x"},
        "reference_model: has no use without",
    ),
    "4 bits": (
        {"adapter": Adapter(quantize="nf4"), "reference": "frozen"},
        "a model in 4 bits has the reference without_adapter",
    ),
    "ipo": ({"objective": "ipo", "label_smoothing": 0.1}, "objective: has no such"),
    "orpo": (
        {"objective": "orpo", "reference": "frozen"},
        "objective: has no such",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_settings_that_cannot_be(case: str, task: Callable[..., DPO], tmp_path: Path) -> None:
    settings, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        task(**settings)


def test_a_reference_with_other_tokens_is_refused(task: Callable[..., DPO], tmp_path: Path) -> None:
    other = save_model(tmp_path / "model")
    longer = tokenizer()
    longer.add_tokens(["<|extra|>"])
    longer.save_pretrained(other)
    dpo = task(reference_model=str(other))
    with pytest.raises(ConfigError, match=r"model'.*: has another vocabulary than the model"):
        dpo.build_model()


@pytest.mark.parametrize(
    ("name", "dropout"),
    [
        ("gpt2", dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.5)),
        ("llama", {"attention_dropout": 0.5}),
        ("mixtral", {"router_jitter_noise": 0.5}),
        # Experts are sampled, without a number that says so.
        ("mixtral", {"model_type": "phimoe", "input_jitter_noise": 0.5}),
        # Layers read these numbers at each call.
        ("llama", {"model_type": "falcon", "hidden_dropout": 0.5, "attention_dropout": 0.5}),
    ],
)
def test_dropout_is_off(
    name: str, dropout: dict[str, Any], tmp_path: Path, task: Callable[..., DPO]
) -> None:
    """Otherwise the policy would be away from its reference before the first step."""
    model = save_model(tmp_path / "model", name, **dropout, bos_token_id=0, eos_token_id=0)
    dpo = task(model=str(model), reference="computed_once", sequence_length=100)
    [first] = steps(trainer(dpo, tmp_path / "run", max_steps=1))
    assert first["margin"] == pytest.approx(0.0, abs=1e-5)
    exported: Any = dpo.build_model()
    assert dropout.items() <= exported.policy.config.to_dict().items()


@pytest.mark.parametrize("kind", [DPO, CausalLM])
def test_a_loss_of_routers_is_refused(kind: Any, tmp_path: Path, given: Path) -> None:
    settings = {**settings_of_task(given, tmp_path), "model": str(tmp_path / "model")}
    save_model(tmp_path / "model", "mixtral", output_router_logits=True)
    with pytest.raises(ConfigError, match=r"the loss of the routers .*; set model_config"):
        kind(**settings).build_model()
    save_model(tmp_path / "model", "mixtral", output_router_logits=True, router_aux_loss_coef=0.0)
    kind(**settings).build_model()
    save_model(tmp_path / "model", "mixtral", output_router_logits=True)
    kind(**settings, model_config={"output_router_logits": False}).build_model()


def test_predictions_are_the_rewards_of_each_pair(
    given: Path, task: Callable[..., DPO], tmp_path: Path
) -> None:
    from whole_model import build_whole

    dpo = task(reference_model=str(given / "other"))
    data, model = dpo.build_data(), build_whole(dpo)
    with torch.no_grad():
        batch = data.collate([data.train[at] for at in range(3)])
        columns = dpo.prediction_step(model, batch)
    assert {len(column) for column in columns.values()} == {3}
    assert torch.equal(columns["margin"], columns["chosen_reward"] - columns["rejected_reward"])


def test_a_model_of_a_folder_has_the_first_model_as_its_reference(
    given: Path, task: Callable[..., DPO], tmp_path: Path
) -> None:
    dpo = task(adapter=Adapter(r=4))
    measured = dpo.for_model(given / "other")
    assert measured is not None and measured.model == str(given / "other")
    assert (measured.kind, measured.reference_model) == ("frozen", str(given / "llama"))
    save_rows(tmp_path / "adapter_config.json", [{}])
    save_rows(tmp_path / "config.json", [{}])
    assert dpo.for_model(tmp_path) is None
