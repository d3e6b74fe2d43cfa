"""Public recipes of preference training run as configs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from launchers import ROOT
from tiny_language import UNMARKED, paragraphs, save_model, save_rows, tokenizer

import trainer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

RECIPES: dict[str, dict[str, Any]] = yaml.safe_load(
    (ROOT / "tests" / "support" / "preference_recipes.yaml").read_text()
)


def rows_like(name: str) -> list[dict[str, Any]]:
    """Rows in the form of a public data set."""
    texts = paragraphs(60)
    rows = []
    for at in range(0, 60, 3):
        question, good, bad = (text[:40] for text in texts[at : at + 3])
        user = {"role": "user", "content": question}
        answers = [{"role": "assistant", "content": text} for text in (good, bad)]
        if "ultrafeedback" in name:
            row: dict[str, Any] = {"chosen": [user, answers[0]], "rejected": [user, answers[1]]}
            row |= {"score_chosen": 8.0, "score_rejected": 5.5}
            if "HuggingFaceH4" in name:
                row |= {"prompt": question, "prompt_id": str(at), "messages": [user, answers[0]]}
        elif "dpo_en_demo" in name:
            row = {"conversations": [{"from": "human", "value": question}]}
            row["chosen"], row["rejected"] = ({"from": "gpt", "value": t} for t in (good, bad))
        elif "alpaca_messages" in name:
            row = {"conversation": [user], "chosen": answers[0], "rejected": answers[1]}
        else:
            assert "orca" in name
            row = {"system": "Be brief.", "input": question, "chosen": good, "rejected": bad}
        rows.append(row)
    return rows


def small(recipe: dict[str, Any], folder: Path) -> Path:
    """Write a recipe for a small model and a few rows, for two steps."""
    settings = recipe["task_settings"]
    save_model(folder / "llama", max_position_embeddings=8192)
    own = tokenizer()
    own.chat_template = UNMARKED
    own.save_pretrained(folder / "llama")
    data = str(save_rows(folder / "rows.jsonl", rows_like(settings["data"])))
    changed = {"model": str(folder / "llama"), "data": data, "cache_dir": str(folder / "cache")}
    evaluation = settings.get("evaluation")
    if isinstance(evaluation, str):
        changed["evaluation"] = data
    elif isinstance(evaluation, dict):
        changed["evaluation"] = dict.fromkeys(evaluation, data)
    if "epoch" in str(recipe.get("eval_every")):
        recipe = {**recipe, "eval_every": "1 epoch"}
    given = {
        **recipe,
        "task_settings": {**settings, **changed},
        "max_steps": 2,
        "output_dir": str(folder / "run"),
        "workers": 0,
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(given))
    return folder / "recipe.yaml"


QUICK = ("zephyr-7b-beta/dpo/config_full", "qwen3_lora_dpo", "gemma2/reward-model")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if any(one in name for one in QUICK) else pytest.mark.slow)
        for name in RECIPES
    ],
)
def test_a_recipe_runs_at_small_size(name: str, tmp_path: Path) -> None:
    loaded = trainer.load_config(["--config", str(small(RECIPES[name], tmp_path))])
    task, config = trainer.load_task(loaded)
    training = trainer.Trainer(task, config, origins=loaded.origins)
    losses = [float(info.loss) for info in training.steps()]
    assert len(losses) == 2 and all(0.1 < loss < 2.0 for loss in losses)
    if RECIPES[name]["task"].endswith(":DPO"):
        assert losses[0] == pytest.approx(0.6931, abs=2e-3), "the policy is its own reference"
    training.close()
