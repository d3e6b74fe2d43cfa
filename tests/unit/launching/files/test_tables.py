"""The tables of known keys say what the installed Accelerate and DeepSpeed know."""

from __future__ import annotations

from known_keys import accelerate_keys, deepspeed_keys

from trainer.launching.files.tables import annotation, table


def test_accelerate_table_equals_the_installed_accelerate() -> None:
    """Rewrite with ``python tests/support/known_keys.py``, and read what changed."""
    written = table("accelerate")
    assert {name: written[name] for name in ("top_level", "sections")} == accelerate_keys()


def test_deepspeed_table_equals_the_installed_deepspeed() -> None:
    written = table("deepspeed")
    known = deepspeed_keys(written["refused"])
    assert {name: written[name] for name in known} == known


def test_own_rules_name_keys_that_exist() -> None:
    accelerate, deepspeed = table("accelerate"), table("deepspeed")
    strategies = accelerate["sections"]["fsdp_config"]["fsdp_sharding_strategy"]
    assert list(accelerate["fsdp_strategies"]) == strategies, (
        "in this order, for files may say the number"
    )
    converted = {
        "fp16",
        "dynamo_backend",
    }  # of older files, which Accelerate converts before it compares
    for section, keys in accelerate["own"].items():
        known = (
            accelerate["top_level"] if section == "top_level" else accelerate["sections"][section]
        )
        assert keys.keys() - known.keys() <= converted
    for name in (
        *deepspeed["own"],
        *deepspeed["only"],
        *deepspeed["auto"],
        *deepspeed["idle"],
        *deepspeed["models"],
    ):
        at = deepspeed["keys"]
        for part in name.split("."):
            at = at[part]


def test_defaults_are_those_of_accelerates_launcher() -> None:
    from accelerate.commands.launch import launch_command_parser

    assert (
        launch_command_parser().get_default("fsdp_min_num_params")
        == table("accelerate")["fsdp_plugin"]["min_num_params"][1]
    )


def test_every_type_of_the_tables_is_understood() -> None:
    def types(keys: dict[str, object]) -> list[object]:
        return [
            one
            for spec in keys.values()
            for one in (types(spec) if isinstance(spec, dict) else [spec])
        ]

    for name in ("accelerate", "deepspeed"):
        written = table(name)
        for part in ("own", "top_level", "sections", "keys"):
            for spec in types(written.get(part, {})):
                annotation(spec)
