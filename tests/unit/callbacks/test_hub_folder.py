"""What is uploaded has no secret in it, and no path of this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trainer.callbacks.hub_folder import (
    NotUploaded,
    Private,
    copy_for_upload,
    unknown_base_model,
)

SECRET = "s3cret-of-a-bucket"
TOKEN = "hf_" + "a1B2" * 9


def model_folder(folder: Path, **files: Any) -> Path:
    """Write a model with these files beside it; values that are no text are JSON."""
    folder.mkdir(parents=True)
    save_file({"weight": torch.ones(2)}, folder / "model.safetensors", metadata={"format": "pt"})
    for name, value in files.items():
        text = value if isinstance(value, str) else json.dumps(value)
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def private(settings: Any = None, *paths: str) -> Private:
    return Private.of(settings or {}, TOKEN, paths)


def copied(source: Path, known: Private, card: str = "# card\n") -> Path:
    target = source.parent / "copy"
    copy_for_upload(source, target, known, card)
    return target


def test_tensors_are_links_that_stay_when_the_folder_is_replaced(tmp_path: Path) -> None:
    source = model_folder(tmp_path / "best")
    copy = copied(source, private())
    assert (copy / "model.safetensors").stat().st_nlink == 2, "no second copy on the disk"
    save_file({"weight": torch.zeros(2)}, tmp_path / "new.safetensors")
    os.replace(tmp_path / "new.safetensors", source / "model.safetensors")
    assert load_file(copy / "model.safetensors")["weight"].sum() == 2


def test_without_hard_links_it_is_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> None:
        raise OSError("not on this file system")

    monkeypatch.setattr(os, "link", refused)
    copy = copied(model_folder(tmp_path / "best"), private())
    assert load_file(copy / "model.safetensors")["weight"].sum() == 2


def test_a_folder_without_a_page_gets_one(tmp_path: Path) -> None:
    assert (
        copied(model_folder(tmp_path / "a/m"), private()) / "README.md"
    ).read_text() == "# card\n"
    own = model_folder(tmp_path / "b/m", **{"README.md": "# own"})
    assert (copied(own, private()) / "README.md").read_text() == "# own"


def test_pages_have_the_last_part_of_each_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("a")
    (tmp_path / "with space" / "base").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    settings = {
        "model": str(tmp_path / "with space" / "base"),
        "data": ["corpus/a.txt", "corpus/*.txt", "corpus/a.txt@train", "hf:user/set", "user/model"],
    }
    page = "\n".join(
        [
            "---",
            "library_name: peft",
            f"base_model: {tmp_path}/with space/base",
            "---",
            f"Fine-tuned from {tmp_path}/with space/base.",
            f"- {tmp_path}/corpus/a.txt",
            "- corpus/a.txt",
            "- corpus/*.txt",
            "- corpus/a.txt@train",
            "- hf:user/set and user/model",
            f"- {tmp_path}/elsewhere/rows.jsonl, `~/notes/x.txt`",
            "- https://huggingface.co/user/model and and/or 1/2/3",
            "- /v/w is a word, and so is bf16/fp32",
        ]
    )
    source = model_folder(tmp_path / "run" / "best", **{"README.md": page})
    text = (copied(source, private(settings, str(tmp_path))) / "README.md").read_text()
    assert text.splitlines() == [
        "---",
        "library_name: peft",
        "---",
        "Fine-tuned from base.",
        "- a.txt",
        "- a.txt",
        "- *.txt",
        "- a.txt@train",
        "- hf:user/set and user/model",
        "- rows.jsonl, `x.txt`",
        "- https://huggingface.co/user/model and and/or 1/2/3",
        "- /v/w is a word, and so is bf16/fp32",
    ]
    kept = page.replace(f"base_model: {tmp_path}/with space/base", "base_model: user/model")
    other = model_folder(tmp_path / "other" / "best", **{"README.md": kept})
    assert "base_model: user/model" in (copied(other, private(settings)) / "README.md").read_text()


def test_settings_have_the_last_part_of_each_path_and_a_tokenizer_stays(tmp_path: Path) -> None:
    base = tmp_path / "jösé" / "base"
    base.mkdir(parents=True)
    tokenizer = {"model": {"vocab": {str(base): 1, "/usr/bin": 2, "/v": 3}}}
    settings = {
        "adapter_config.json": {"base_model_name_or_path": str(base), "r": 8, "target": "q_proj"},
        "tokenizer_config.json": {
            "name_or_path": f"{base}/tokenizer",
            "eos_token": "</s>",
            "audio_token": "<|audio|>",
            "pad": "/",
            "chat_template": "{% if a %}/home/x{% endif %}\n",
        },
        "config.json": {"hidden_size": 8},
        "tokenizer.json": tokenizer,
    }
    source = model_folder(tmp_path / "best", **settings)
    copy = copied(source, private())
    adapter = json.loads((copy / "adapter_config.json").read_text())
    assert adapter == {"base_model_name_or_path": "base", "r": 8, "target": "q_proj"}
    changed = json.loads((copy / "tokenizer_config.json").read_text())
    assert changed == settings["tokenizer_config.json"] | {"name_or_path": "tokenizer"}
    assert json.loads((copy / "tokenizer.json").read_text()) == tokenizer
    assert (copy / "config.json").read_bytes() == (source / "config.json").read_bytes()
    assert "called 'base'" in unknown_base_model(source, copy)
    assert unknown_base_model(copy, copy) == ""
    assert unknown_base_model(tmp_path, tmp_path) == ""


def test_no_secret_is_in_any_page_or_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKET_SECRET", SECRET)
    monkeypatch.setenv("SHORT_TOKEN", "true")
    settings = {"source": {"api_key": "key-of-a-service"}, "width": 4}
    other_token = "hf_" + "Z9" * 17
    text = f"{SECRET} {TOKEN} key-of-a-service {other_token} https://me:pass@host/x true"
    files = {
        "README.md": text,
        "config.json": {"note": text, "deep": [{"api_key": "unknown to all", "hf_token": "abc"}]},
        "sub__notes.yaml": f"note: {text}",
    }
    copy = copied(model_folder(tmp_path / "best", **files), private(settings))
    content = b"".join(path.read_bytes() for path in copy.rglob("*") if path.is_file())
    for secret in (SECRET, TOKEN, other_token, "key-of-a-service", "me:pass", "unknown to all"):
        assert secret.encode() not in content, secret
    hidden = "(hidden) (hidden) (hidden) (hidden) https://(hidden)@host/x true"
    assert (copy / "README.md").read_text() == hidden


@pytest.mark.parametrize("name", ["tokenizer.json", "notes.txt", "model.safetensors"])
def test_a_file_that_cannot_do_without_a_secret_is_refused(tmp_path: Path, name: str) -> None:
    source = model_folder(tmp_path / "best")
    if name == "model.safetensors":
        save_file({"weight": torch.ones(2)}, source / name, metadata={"source": SECRET})
    else:
        (source / name).write_text(json.dumps({"vocab": SECRET}))
    known = private({"source": {"password": SECRET}})
    with pytest.raises(NotUploaded, match=rf"^{name} holds the value of task_settings") as caught:
        copied(source, known)
    assert "source.password" in str(caught.value) and SECRET not in str(caught.value)
