"""Launch files as ``trainer check`` reads them: their kind is found by their keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from launchers import ROOT

from trainer.commands.launch_files import kind_of, read_launch_file, request_rows
from trainer.config.documents import read_document


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("a.yaml", "num_processes: 2\nmixed_precision: bf16\n", "accelerate"),
        ("a.yaml", "bf16: {enabled: true}\nmixed_precision: bf16\n", "deepspeed"),
        ("a.yaml", "bf16: true\nmodel: gpt2\n", "training"),
        ("a.yaml", "lr: 0.1\n", "training"),
        ("a.json", "{}", "deepspeed"),
        ("a.yaml", "{}", "training"),
        ("a.json", '{"task": "a:B"}', "training"),
    ],
)
def test_kind_of_a_file_by_its_keys(name: str, text: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert kind_of(read_document(tmp_path / name)) == kind


def test_processes_replace_those_of_the_file() -> None:
    for name in ("accel_configs/ddp.yaml", "ds_configs/zero2.json"):
        request = read_launch_file(ROOT / name, 4)
        assert request.world_size is not None and request.world_size.value == 4
    assert read_launch_file(ROOT / "ds_configs/zero2.json").world_size is None


def test_request_rows_show_what_the_file_says_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(
        '{"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 4, '
        '"gradient_clipping": 0.5, "optimizer": {"type": "AdamW", "params": {"lr": 0.1}}}'
    )
    rows = dict(request_rows(read_launch_file(path), None, rehearsal=False))
    assert rows["strategy"] == "zero1"
    assert rows["world size"] == "the number of processes comes from the launcher"
    assert (rows["batch"], rows["clipping"]) == ("micro 4", "global norm 0.5")
    assert rows["optimizer"].startswith("adamw, lr=0.1") and "(default)" in rows["optimizer"]
    assert "schedule" not in rows and "precision" not in rows
    ddp = read_launch_file(ROOT / "accel_configs/ddp.yaml", 1)
    assert dict(request_rows(ddp, 1, rehearsal=False))["strategy"] == "single"
