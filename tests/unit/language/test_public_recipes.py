"""Of forty public recipes of fine-tunes those that keys can say run as configs.

So do public recipes of preference training.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from launchers import ROOT, json_lines, slow_but
from preferences import preference
from tiny_language import CONFIGS, conversation, paragraphs, save_model, save_rows

import trainer
from trainer.language import DPO

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

ASKED = {"from": "human", "value": "Say it."}
RECIPES, PREFERENCES = (
    yaml.safe_load((ROOT / f"tests/support/{name}_recipes.yaml").read_text())
    for name in ("public", "preference")
)
SAID = {name: recipe for name, recipe in RECIPES.items() if "config" in recipe}
QUICK = (
    *("handbook zephyr-7b-beta/sft/config_full", "axolotl orpheus/finetune"),
    "alignment-handbook/recipes/zephyr-7b-beta/dpo/config_full.yaml",
    "LLaMA-Factory/examples/train_lora/qwen3_lora_dpo.yaml",
    "axolotl/examples/gemma2/reward-model.yaml",
)


def whole_pair(text: str, **more: Any) -> dict[str, Any]:
    """A row with the prompt in both answers."""
    chosen, rejected = (conversation("Say it.", answer) for answer in (text, text[::-1]))
    sides = {"chosen": chosen["messages"], "rejected": rejected["messages"]}
    return {**sides, "score_chosen": 8.0, "score_rejected": 5.5, **more}


@cache
def rows_of(form: str, folder: Path) -> Path:
    """A file of forty short rows in the form of a recipe's data."""
    texts = [text[:60] for text in paragraphs(40)]
    ways: dict[str, Any] = {
        "texts": lambda text: {"text": text},
        "tokens": lambda text: {
            "input_ids": [3 + ord(letter) for letter in text if ord(letter) < 300]
        },
        "chats": lambda text: conversation("Say it.", text),
        "sharegpt": lambda text: {"conversations": [ASKED, {"from": "gpt", "value": text}]},
        "alpaca": lambda text: {"instruction": "Say it.", "input": "", "output": text},
        "pairs": lambda text: preference("Say it.", text, text[::-1]),
        "plain pairs": lambda text: {"prompt": "Say it.", "chosen": text, "rejected": text[::-1]},
        "system pairs": lambda text: {"system": "Be brief.", **ways["plain pairs"](text)},
        "answers": lambda text: {
            name: rows if name == "prompt" else rows[0]
            for name, rows in ways["pairs"](text).items()
        },
        "sharegpt pairs": lambda text: {
            "conversations": [ASKED],
            "chosen": {"from": "gpt", "value": text},
            "rejected": {"from": "gpt", "value": text[::-1]},
        },
        "whole pairs": whole_pair,
        "scored pairs": lambda text: whole_pair(
            text, prompt="Say it.", prompt_id=text, **ways["chats"](text)
        ),
    }
    return save_rows(folder / f"{form}.jsonl", [ways[form](text) for text in texts])


def in_tiny(recipe: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The config of a recipe with a small model, few rows, short texts and two steps."""
    config, settings = {**recipe["config"]}, {**recipe["config"]["task_settings"]}
    given = str(settings.get("model")).lower()
    name = next((kind for kind in ("gpt2", "mixtral") if kind in given), "llama")
    if not (folder / name).exists():
        save_model(folder / name, name)
    data = rows_of(recipe["rows"], folder)
    for key in ("model", "tokenizer"):
        if key in settings:
            settings[key] = str(folder / name)
    if "config" in settings:
        settings["config"] |= CONFIGS["qwen2"]
    names = {key.removesuffix("_column"): value for key, value in settings.items()}
    rows = [{names.get(key, key): value for key, value in row.items()} for row in json_lines(data)]
    settings["data"] = str(save_rows(folder / "rows.jsonl", rows))
    if "evaluation" in settings:
        is_share = isinstance(settings["evaluation"], float)
        settings["evaluation"] = 0.2 if is_share else settings["data"]
    settings |= {"sequence_length": 64, "cache_dir": str(folder / "cache")}
    for key in ("push_to_hub", "trackers", "workers", "epochs"):
        config.pop(key, None)
    for key in ("warmup_steps", "eval_every", "save_every"):
        if config.get(key):
            config[key] = 1
    # Neither runs on a CPU.
    if config.get("optimizer", "").startswith(("bitsandbytes", "torchao")):
        del config["optimizer"]
    return {**config, "task_settings": settings, "max_steps": 2, "log_every": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipes")


@pytest.mark.parametrize("name", slow_but(QUICK, [*SAID, *PREFERENCES]))
def test_a_recipe_runs_in_tiny(name: str, folder: Path, tmp_path: Path) -> None:
    recipe = {**RECIPES, **PREFERENCES}[name]
    config = {**in_tiny(recipe, folder), "output_dir": str(tmp_path / "run")}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(config))
    loaded = trainer.load_config(["--config", str(tmp_path / "recipe.yaml")])
    task, found = trainer.load_task(loaded)
    training = trainer.Trainer(task, found, origins=loaded.origins)
    losses = [float(info.loss) for info in training.steps()]
    assert len(losses) == 2
    if name in PREFERENCES and isinstance(task, DPO):
        assert losses[0] == pytest.approx(0.6931, abs=2e-3), "the policy is its own reference"
    training.close()


def test_forty_recipes_are_counted_as_the_page_says() -> None:
    assert (len(RECIPES), len(SAID)) == (40, 28)
    page = (ROOT / "docs/fine_tuning.md").read_text()
    for name in {name.split()[0] for name in RECIPES}:
        of_source = [key for key in RECIPES if key.startswith(name)]
        counts = f"| {len(of_source)} | {sum(key in SAID for key in of_source)} |"
        assert f"{name} {counts}" in page.lower()
