"""Rows of preferences, and the formulas of preference training in float64."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_language import paragraphs, save_rows

from trainer import Task, TrainConfig, Trainer

# A template that writes nothing behind the end of a turn, so that each token of a side belongs to
# the prompt or to the answer.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}|{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant|{% endif %}"
)


def preference(prompt: str, chosen: str, rejected: str, **more: Any) -> dict[str, Any]:
    """A row of messages."""
    return {
        "prompt": [{"role": "user", "content": prompt}],
        "chosen": [{"role": "assistant", "content": chosen}],
        "rejected": [{"role": "assistant", "content": rejected}],
        **more,
    }


def preferences(count: int) -> list[dict[str, Any]]:
    """Rows of messages of uneven lengths, with margins."""
    texts = paragraphs(3 * count)
    return [
        preference(
            texts[3 * at][: 20 + at],
            texts[3 * at + 1][: 10 + 9 * (at % 8)],
            texts[3 * at + 2][: 8 + 7 * (at % 11)],
            margin=at % 4 / 10,
        )
        for at in range(count)
    ]


def save_preferences(path: Path, count: int = 48) -> Path:
    return save_rows(path, preferences(count))


def settings_of_task(given: Path, cache: Path) -> dict[str, Any]:
    """Settings of a task of preferences: the model ``llama`` and ``pairs.jsonl`` of a folder."""
    return {
        "model": str(given / "llama"),
        "data": str(given / "pairs.jsonl"),
        "template": TEMPLATE,
        "sequence_length": 128,
        "cache_dir": str(cache),
    }


def trainer(task: Task, folder: Path, **settings: Any) -> Trainer:
    """A trainer of two steps, each over eight pairs."""
    defaults = {
        "task": f"trainer.language:{type(task).__name__}",
        "output_dir": str(folder),
        "max_steps": 2,
        "micro_batch_size": 3,
        "accumulation_steps": 3,
        "lr": 3e-3,
        "eps": 1e-4,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "log_every": 1,
    }
    return Trainer(task, TrainConfig(**{**defaults, **settings}))


def check_steps(training: Trainer, exact: list[dict[str, float]]) -> None:
    """Compare the steps of a training with those of a formula."""
    for ours, theirs in zip(steps(training), exact, strict=True):
        assert {name: ours[name] for name in theirs} == pytest.approx(theirs, rel=1e-5, abs=1e-6)


def steps(training: Trainer) -> list[dict[str, float]]:
    """Train, and return the metrics and the gradient norm of each step."""
    found = [
        {**(info.metrics or {}), "grad_norm": float(info.grad_norm)} for info in training.steps()
    ]
    training.close()
    return found


def log_probs(model: Any, tokenizer: Any, row: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of the log-probabilities of both answers of a row, each alone, and their lengths."""
    sums, counts = [], []
    for side in ("chosen", "rejected"):
        how = {"chat_template": TEMPLATE, "return_dict": False}
        prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, **how)
        ids = torch.tensor(tokenizer.apply_chat_template(row["prompt"] + row[side], **how))
        assert ids[: len(prompt)].tolist() == prompt
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
        assert logits.dtype == torch.float64
        of_tokens = logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        sums.append(of_tokens[len(prompt) - 1 :].sum())
        counts.append(len(ids) - len(prompt))
    return torch.stack(sums), torch.tensor(counts)


def formula(
    model: Any,
    reference: Any,
    tokenizer: Any,
    rows: list[dict[str, Any]],
    *,
    objective: str = "sigmoid",
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    sft_weight: float = 0.0,
    simpo_gamma: float = 0.0,
) -> tuple[torch.Tensor, dict[str, float]]:
    """The mean loss of DPO over some rows, in float64, and the metrics. As TRL's trainers have it."""
    losses, rewards = [], []
    for row in rows:
        policy, counts = log_probs(model, tokenizer, row)
        with torch.no_grad():
            fixed, _ = log_probs(reference, tokenizer, row)
        # ORPO and SimPO have no reference, and log-probabilities a token.
        ratio = policy / counts if objective in ("orpo", "simpo") else policy - fixed
        if objective == "orpo":
            odds = ratio.exp() / (1 - ratio.exp())
            loss = -beta * F.logsigmoid((odds[0] / odds[1]).log()) - ratio[0]
        elif objective == "simpo":
            h = beta * (ratio[0] - ratio[1]) - simpo_gamma
            loss = -(1 - label_smoothing) * F.logsigmoid(h) - label_smoothing * F.logsigmoid(-h)
        elif objective == "ipo":
            chosen, rejected = ratio / counts
            loss = (chosen - rejected - 1 / (2 * beta)) ** 2
        else:
            h = beta * (ratio[0] - ratio[1])
            loss = -(1 - label_smoothing) * F.logsigmoid(h)
            flipped = -label_smoothing * F.logsigmoid(-h)
            loss = loss + flipped if objective == "sigmoid" else loss - flipped
            if objective == "robust":
                loss = loss / (1 - 2 * label_smoothing)
        losses.append(loss - sft_weight * policy[0] / counts[0])
        rewards.append((beta * ratio).detach())
    chosen, rejected = torch.stack(rewards).unbind(1)
    metrics = {
        "chosen_reward": chosen.mean().item(),
        "rejected_reward": rejected.mean().item(),
        "margin": (chosen - rejected).mean().item(),
        "accuracy": (chosen > rejected).double().mean().item(),
    }
    return torch.stack(losses).mean(), metrics


def two_steps(model: Any, reference: Any, tokenizer: Any, rows: Any, lr: float, **how: Any) -> Any:
    """Loss, gradient norm and metrics of two steps of AdamW over all rows, in float64."""
    model, reference = copy.deepcopy(model).double(), copy.deepcopy(reference).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, eps=1e-4, weight_decay=0.0)
    found = []
    for _ in range(2):
        loss, metrics = formula(model, reference, tokenizer, rows, **how)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append({"loss": loss.item(), "grad_norm": norm.item(), **metrics})
    return found
