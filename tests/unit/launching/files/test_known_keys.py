"""Keys that launch files may hold: any typo is answered by the key, and none that is right is
refused.
"""

from __future__ import annotations

import json
import string
from typing import Any

from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from launch_texts import DDP, Write, complaint

from trainer.launching.files.accelerate_file import read_accelerate_file
from trainer.launching.files.accelerate_keys import spellings
from trainer.launching.files.deepspeed_file import read_deepspeed_file
from trainer.launching.files.tables import accelerate_keys, deepspeed_keys, table


def _typos(key: str) -> st.SearchStrategy[str]:
    """One letter of ``key`` left out, doubled, put in, exchanged with its neighbour or replaced."""
    at = st.integers(0, len(key) - 1)
    letter = st.sampled_from(string.ascii_lowercase)
    return st.one_of(
        at.map(lambda i: key[:i] + key[i + 1 :]),
        at.map(lambda i: key[:i] + key[i] + key[i:]),
        st.tuples(at, letter).map(lambda pair: key[: pair[0]] + pair[1] + key[pair[0] :]),
        st.tuples(at, letter).map(lambda pair: key[: pair[0]] + pair[1] + key[pair[0] + 1 :]),
        at.map(lambda i: key[:i] + key[i : i + 2][::-1] + key[i + 2 :]),
    )


def _one_letter_away(left: str, right: str) -> bool:
    if len(left) == len(right):
        different = [i for i in range(len(left)) if left[i] != right[i]]
        return len(different) == 1 or (len(different) == 2 and sorted(left) == sorted(right))
    short, long = sorted((left, right), key=len)
    return len(long) - len(short) == 1 and any(
        long[:i] + long[i + 1 :] == short for i in range(len(long))
    )


NESTED = sorted(
    (name, key) for name in table("accelerate")["sections"] for key in accelerate_keys(name)
)
PATHS: list[tuple[str, ...]] = [
    (),
    ("zero_optimization",),
    ("zero_optimization", "offload_optimizer"),
    ("zero_optimization", "offload_param"),
    ("activation_checkpointing",),
    ("fp16",),
    ("bf16",),
    ("aio",),
    ("comms_logger",),
    ("flops_profiler",),
]


# With fewer letters, one less leaves nothing to recognise.
JSON_KEYS = sorted(
    (path, key) for path in PATHS for key in deepspeed_keys(path) or () if len(key) > 4
)


@settings(max_examples=200)
@given(data=st.data())
def test_a_typo_in_a_nested_key_is_answered_by_the_key(
    data: st.DataObject, tmp_path_factory: Any
) -> None:
    name, key = data.draw(st.sampled_from(NESTED))
    typo = data.draw(_typos(key))
    others = {one for section in table("accelerate")["sections"] for one in spellings(section)}
    assume(typo not in others)
    assume(not any(_one_letter_away(typo, other) for other in others - {key}))
    path = tmp_path_factory.getbasetemp() / "typo.yaml"
    path.write_text(f"{DDP}{name}:\n  {typo}: 1\n")
    line = complaint(lambda: read_accelerate_file(path)).splitlines()[0]
    assert line == f"{path}:4: {name}.{typo}: 1: unknown key; did you mean {key!r}?"


@settings(max_examples=200)
@given(data=st.data())
def test_a_typo_in_json_is_answered_by_the_key(data: st.DataObject, tmp_path_factory: Any) -> None:
    path, key = data.draw(st.sampled_from(JSON_KEYS))
    typo = data.draw(_typos(key))
    known = set(deepspeed_keys(path) or ()) | set(deepspeed_keys(("zero_optimization",)) or ())
    assume(typo not in known)
    assume(not any(_one_letter_away(typo, other) for other in known - {key}))
    content: dict[str, Any] = {"zero_optimization": {"stage": 3}}
    section = content
    for part in path:
        section = section.setdefault(part, {})
    section[typo] = 7
    file = tmp_path_factory.getbasetemp() / "typo.json"
    file.write_text(json.dumps(content))
    lines = complaint(lambda: read_deepspeed_file(file)).splitlines()
    assert f"{file}:1: {'.'.join((*path, typo))}: 7: unknown key; did you mean {key!r}?" in lines


def test_known_keys_are_deepspeeds_own() -> None:
    fields = DeepSpeedZeroConfig.model_fields
    aliases = {field.alias for field in fields.values() if field.alias}
    assert set(deepspeed_keys(("zero_optimization",)) or ()) == set(fields) | aliases
    assert {"optimizer", "aio", "wandb", "train_batch_size"} <= set(deepspeed_keys(()) or ())


def test_all_keys_of_a_written_accelerate_file_are_known(write: Write) -> None:
    """Also those that have no argument of the launcher."""
    assert "fsdp_ignored_modules" in accelerate_keys("fsdp_config")
    assert "ignored_modules" in spellings("fsdp_config")
    assert "tp_size" not in spellings("parallelism_config")
