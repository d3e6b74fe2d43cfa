"""A model ends what it generates with the tokens that it is trained to end with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from launchers import json_in
from tiny_language import UNMARKED, conversation, save_model, save_rows, tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from whole_model import build_whole

from trainer.checkpoint.exported import save_config
from trainer.language import CausalLM

TEXT_END, TURN_END = 0, 2  # <|end|>, as a base model has it, and <|im_end|>


NO_END = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\n{% endfor %}"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base model whose template ends turns with another token than its texts, as Qwen's are."""
    folder = save_model(tmp_path / "base")
    own = tokenizer()
    own.chat_template = UNMARKED
    own.save_pretrained(folder)
    GenerationConfig(eos_token_id=TEXT_END).save_pretrained(folder)
    return folder


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    return save_rows(tmp_path / "chats.jsonl", [conversation("Say A", "A")] * 16)


def trained(base: Path, chats: Path, folder: Path, **settings: Any) -> CausalLM:
    """Learn to answer with one letter and the end of the turn, and write what an export holds."""
    task = CausalLM(
        model=str(base),
        data=str(chats),
        messages_column="messages",
        packing="none",
        cache_dir=str(folder),
        **settings,
    )
    data = task.build_data()
    model: Any = build_whole(task)
    batch = data.collate([data.train[0], data.train[1]])
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-2
    )
    for _ in range(40):
        optimizer.zero_grad()
        loss = task.training_step(model, batch)
        loss.backward()
        optimizer.step()
    assert task.adapter is not None or loss.item() < 0.1
    model.save_pretrained(folder)
    part = task.saved_part(model)
    if part is None:
        save_config(model, folder)
    else:
        part.save_config(folder)
    task.save_extras(folder)
    return task


@pytest.mark.parametrize("adapter", [None, {"r": 8}])
def test_the_trained_end_of_a_turn_ends_generation(
    base: Path, chats: Path, tmp_path: Path, adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    monkeypatch.chdir(tmp_path)
    task = trained(Path("base"), chats, folder, adapter=adapter)
    told = "generation: the exported model ends a text with <|im_end|>, <|end|>"
    assert told in task.notices()
    written = AutoTokenizer.from_pretrained(folder)
    assert written.eos_token == "<|im_end|>"
    assert task.load_tokenizer().eos_token == "<|end|>", "that of the training stays as it was"
    if adapter is None:
        ends = json_in(folder / "generation_config.json")["eos_token_id"]
        assert ends == [TURN_END, TEXT_END]
        assert json_in(folder / "config.json")["eos_token_id"] == TURN_END
        said = [{"role": "user", "content": "Say A"}]
        given = written.apply_chat_template(
            said, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        model: Any = AutoModelForCausalLM.from_pretrained(folder)
        answer = model.generate(**given, max_new_tokens=20)[0, given["input_ids"].shape[1] :]
        assert written.decode(answer) == "A<|im_end|>", "it stops"


def test_a_model_that_ends_there_already_is_unchanged_and_a_template_without_an_end_is_a_notice(
    base: Path, chats: Path, task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    GenerationConfig(eos_token_id=[TEXT_END, TURN_END]).save_pretrained(base)
    settings = {"model": str(base), "data": str(chats), "messages_column": "messages"}
    ends_so = task(**settings)
    ends_so.build_data()
    model: Any = ends_so.build_model()
    assert model.generation_config.eos_token_id == [TEXT_END, TURN_END]
    assert not any(line.startswith("generation:") for line in ends_so.notices())

    marked = (
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}\n{% endgeneration %}"
        "{% else %}{{ m.content }}\n{% endif %}"
    )
    (tmp_path / "none.jinja").write_text(NO_END.replace("{{ m.content }}\n", marked))
    without = task(**settings, template=str(tmp_path / "none.jinja"))
    without.build_data()
    assert "template: no token ends a turn of the assistant" in "\n".join(without.notices())
    unchanged: Any = without.build_model()
    assert unchanged.generation_config.eos_token_id == [TEXT_END, TURN_END]


def test_texts_end_with_the_end_of_the_tokenizer_that_is_given(
    base: Path, task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    other = tokenizer()
    other.eos_token = "<|im_end|>"
    other.save_pretrained(tmp_path / "other")
    causal = task(model=str(base), tokenizer=str(tmp_path / "other"))
    causal.build_data()
    model: Any = causal.build_model()
    assert (
        model.generation_config.eos_token_id == [TURN_END, TEXT_END]
        and model.config.eos_token_id == TURN_END
    )


def test_an_end_that_the_tokenizer_lacks_is_left_out(
    task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    """A small GPT-2 of its own names token 50,256 in its configuration."""
    causal = task(model=str(save_model(tmp_path / "gpt2", "gpt2")))
    causal.build_data()
    model: Any = causal.build_model()
    assert model.generation_config.eos_token_id == [TEXT_END]
