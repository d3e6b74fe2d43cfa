"""A config that was written reads back as an equal one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config.documents import to_yaml
from trainer.config.load import load_config
from trainer.config.naming import as_literal
from trainer.config.train_config import TrainConfig

words = st.text(max_size=12)
plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | words
)
nested = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
batch = st.integers(1, 64)
interval = (
    st.none()
    | st.integers(1, 10**6)
    | st.integers(1, 99).map(lambda n: f"{n} epochs")
    | st.just("1 epoch")
)
folders = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
share = st.floats(0, 1, exclude_max=True)


@st.composite
def configs(draw: st.DrawFn) -> TrainConfig:
    values: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {"task": st.sampled_from(["a:B", "pkg.module:Task"])},
            optional={
                "task_settings": st.dictionaries(words, nested, max_size=4),
                "output_dir": st.text(folders, min_size=1).map(as_literal),
                "overwrite": st.booleans(),
                "seed": st.integers(0, 2**32 - 1),
                "micro_batch_size": batch,
                "accumulation_steps": st.none() | batch,
                "evaluation_batch_size": st.none() | batch,
                "optimizer": st.sampled_from([None, "adamw", "adam", "sgd"]),
                "lr": st.floats(0, 1e6, exclude_min=True),
                "schedule": st.sampled_from([None, "constant", "linear", "cosine"]),
                "max_grad_norm": st.none() | st.floats(0, 1e6),
                "mixed_precision": st.sampled_from([None, "no", "bf16", "fp16"]),
                "eval_every": interval,
                "save_every": interval,
                "stop_at": interval,
            },
        )
    )
    if draw(st.booleans()):
        values["epochs"] = draw(batch)
    else:
        values |= {"max_steps": 100, "warmup_steps": draw(st.integers(0, 100))}
    if draw(st.booleans()):
        window = values.get("micro_batch_size", 8) * (values.get("accumulation_steps") or 1)
        values["global_batch_size"] = window * draw(batch)
    if draw(st.booleans()):
        values |= {
            "lr_scaling": draw(st.sampled_from(["linear", "sqrt"])),
            "reference_batch_size": draw(batch),
        }
    if values.get("eval_every") and draw(st.booleans()):
        values |= {
            "best_metric": draw(
                st.text(min_size=1).map("eval/{}".format).filter(lambda name: "\n" not in name)
            )
        }
    if values.get("optimizer") == "sgd":
        values["momentum"] = draw(share)
    else:
        values["betas"] = (draw(share), draw(share))
    return TrainConfig(**values)


@given(configs())
def test_what_is_written_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, config: TrainConfig
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.yaml"
    path.write_text(to_yaml(vars(config)), encoding="utf-8")
    again = load_config(["--config", str(path)]).config
    assert again == config
