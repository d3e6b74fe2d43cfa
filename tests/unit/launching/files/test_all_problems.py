"""All problems of a launch file at once, and what Accelerate and DeepSpeed themselves let pass."""

from __future__ import annotations

import json
from pathlib import Path

from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DeepSpeedPlugin
from deepspeed.runtime.config import DeepSpeedConfig
from launch_texts import BY_FILE, ZERO, Write, complaint

from trainer.launching.files.accelerate_file import read_accelerate_file
from trainer.launching.files.deepspeed_file import read_deepspeed_file


def test_all_problems_at_once(write: Write) -> None:
    write("ds.json", '{"zero_optimization": {"stage": 5}}')
    text = f"{BY_FILE}mixed_precisio: bf16\nnum_machines: 0\n"
    assert complaint(lambda: read_accelerate_file(write("a.yaml", text))).splitlines() == [
        "a.yaml:5: mixed_precisio: 'bf16': unknown key; did you mean 'mixed_precision'?",
        "a.yaml:6: num_machines: 0: must be at least 1",
        "ds.json:1: zero_optimization.stage: 5: must be 0, 1, 2 or 3",
    ]


def test_json_beside_the_yaml_is_not_where_accelerate_looks(write: Write, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    write("conf/ds.json", '{"zero_optimization": {"stage": 2}}')
    assert complaint(lambda: read_accelerate_file(write("conf/a.yaml", BY_FILE))) == (
        "conf/a.yaml:4: deepspeed_config.deepspeed_config_file: 'ds.json': does not exist; accelerate looks for it "
        "from the current folder, not from that of this file"
    )


def test_accelerate_itself_takes_the_typo(write: Write) -> None:
    """Why this module exists: the same file that ends with one line here is fine there, and runs
    stage 2.
    """
    path = write("a.yaml", f"{ZERO}  zero_stge: 3\n")
    assert load_config_from_file(path).deepspeed_config == {"zero_stge": 3}
    assert DeepSpeedPlugin().zero_stage == 2
    assert "did you mean 'zero_stage'?" in complaint(lambda: read_accelerate_file(path))


def test_deepspeed_itself_takes_the_typo(write: Write) -> None:
    text = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, "gradient_cliping": 0.5}'
    assert DeepSpeedConfig(json.loads(text)).gradient_clipping != 0.5
    assert "did you mean 'gradient_clipping'?" in complaint(
        lambda: read_deepspeed_file(write("ds.json", text))
    )
