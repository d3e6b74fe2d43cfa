"""Placeholders in names: what they take, and what is refused."""

from __future__ import annotations

import pytest

from trainer.config.placeholders import (
    PlaceholderError,
    as_literal,
    file_name_part,
    fill_in,
    names_in,
    of_literal,
)

VALUES = {
    "lr": 1e-5,
    "seed": 3,
    "task": "pkg.digits:CNN",
    "compile": True,
    "optimizer": None,
    "betas": (0.9, 0.99),
    "task_settings": {"width": 8, "api_key": "x"},
    "task_settings.width": 8,
    "task_settings.api_key": "x",
    "task_settings.model": "org/a name",
    "task_settings.title": "",
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("plain", "plain"),
        ("lr{lr}-s{seed:03}", "lr1e-05-s003"),
        ("{lr:.1e}", "1.0e-05"),
        ("{task_settings.width}", "8"),
        ("{compile}-{optimizer}-{betas}", "true-none-0.9,0.99"),
        ("{task} {task_settings.model}", "pkg.digits:CNN org/a name"),
        ("{{{seed}}}", "{3}"),
        ("x{task_settings.title}", "x_"),
    ],
)
def test_values_are_spelled_as_in_yaml_and_formats_count(template: str, text: str) -> None:
    assert fill_in(template, VALUES, path=False) == text


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ("runs/{task}", "runs/pkg.digits-CNN"),
        ("runs/{task_settings.model}/{seed}", "runs/org-a-name/3"),
        ("a b/{lr}", "a b/1e-05"),  # what is typed itself stays
    ],
)
def test_a_value_is_one_part_of_a_path(template: str, path: str) -> None:
    assert fill_in(template, VALUES, path=True) == path


@pytest.mark.parametrize("value", ["..", "../..", "/etc", ".hidden", "a\nb", "~", "a:b\\c", "ü/é"])
def test_no_value_leaves_its_folder(value: str) -> None:
    part = file_name_part(value)
    assert not {"/", "\\", ":", " ", "\n", "~"} & set(part) and not part.startswith(".")


@pytest.mark.parametrize(
    ("template", "rule"),
    [
        ("{sede}", "{sede}: no such placeholder; did you mean 'seed'?"),
        ("{width}", "did you mean 'task_settings.width'?"),
        ("{widht}", "did you mean 'task_settings.width'?"),
        ("{task_settings.widht}", "did you mean 'task_settings.width'?"),
        ("{time}", "the shell puts it there once"),
        ("{task_settings}", "name one of them, such as {task_settings.width}"),
        ("{task_settings.api_key}", "is a secret"),
        ("{lr:d}", "{lr:d}: 1e-05 has no such format"),
        ("{lr", "a brace has no partner"),
        ("lr}", "a brace has no partner"),
        ("{}", "{} is not a placeholder, such as {lr}"),
        ("{lr!r}", "{lr!r} is not a placeholder"),
        ("{betas[0]}", "is not a placeholder"),
    ],
)
def test_what_cannot_be_filled_in_is_an_error_with_a_hint(template: str, rule: str) -> None:
    with pytest.raises(PlaceholderError) as caught:
        fill_in(template, VALUES, path=False)
    assert rule in str(caught.value)


def test_a_placeholder_that_the_launch_decides_is_a_hint_before_it_as_well() -> None:
    with pytest.raises(PlaceholderError, match="did you mean 'world_size'"):
        fill_in("{word_size}", VALUES, ("strategy", "world_size"), path=False)


def test_what_is_not_known_yet_stays() -> None:
    assert fill_in("{lr}-{x}-{y:03}", VALUES, ("x", "y"), path=True) == "1e-05-{x}-{y:03}"


@pytest.mark.parametrize("text", ["a", "{", "a{b}c", "{{}}", "}{"])
def test_literal_braces_come_back(text: str) -> None:
    assert names_in(as_literal(text)) == []
    assert fill_in(as_literal(text), {}, path=True) == of_literal(as_literal(text)) == text
