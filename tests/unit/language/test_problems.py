"""A wrong setting and an error of a library become one line."""

from __future__ import annotations

from trainer.language.problems import first_line, setting_error


def test_the_message_of_a_library_is_shortened_to_its_first_line() -> None:
    assert first_line(ValueError("one.\ntwo")) == "one"
    assert first_line(KeyError()) == "KeyError"


def test_the_error_of_a_setting_names_key_value_and_rule() -> None:
    error = setting_error("adapter.r", 0, "must be at least 1")
    assert str(error) == "language task: task_settings.adapter.r: 0: must be at least 1"
