"""A config that was written reads back as an equal one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
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
interval = st.none() | st.integers(1, 10**6) | st.just("1/4 epoch")
folders = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
names = st.text(min_size=1).filter(lambda name: "\n" not in name)
share = st.floats(0, 1, exclude_max=True)
configs = st.fixed_dictionaries(
    {"task": st.just("a:B"), "max_steps": st.integers(1, 100), "eval_every": st.just(3)},
    optional={
        "task_settings": st.dictionaries(words, nested, max_size=4),
        "output_dir": st.text(folders, min_size=1).map(as_literal),
        "lr": st.floats(0, 1e6, exclude_min=True),
        "max_grad_norm": st.none() | st.floats(0, 1e6),
        "mixed_precision": st.sampled_from([None, "no", "bf16", "fp16"]),
        "save_every": interval,
        "best_metric": names.map("eval/{}".format),
        "betas": st.tuples(share, share),
    },
).map(lambda values: TrainConfig(**values))


@settings(max_examples=40)
@given(configs)
def test_what_is_written_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, config: TrainConfig
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.yaml"
    path.write_text(to_yaml(vars(config)), encoding="utf-8")
    again = load_config(["--config", str(path)]).config
    assert again == config
