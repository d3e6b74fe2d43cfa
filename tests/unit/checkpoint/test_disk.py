"""Files and folders that appear whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from trainer.checkpoint.disk import delete, part_of, publish


def test_publish_of_a_folder_replaces_the_one_before(tmp_path: Path) -> None:
    model = tmp_path / "model"
    for content in ("before", "after"):
        (part_of(model) / "words").mkdir(parents=True)
        (part_of(model) / "words" / content).write_text(content)
        (part_of(model) / "nowhere").symlink_to("missing")
        publish(model)
    assert os.listdir(tmp_path) == ["model"] and os.listdir(model / "words") == ["after"]


def test_delete_of_a_link_leaves_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to("mine")
    delete(tmp_path / "link")
    delete(tmp_path / "nothing")
    assert os.listdir(tmp_path) == ["mine"]
