"""The configuration of a pretrained model with keys that the settings change."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from ..text import did_you_mean
from .problems import setting_error


def changed_configuration(source: str, changes: Mapping[str, Any] | None, **options: Any) -> Any:
    """Return the configuration of a folder or a name on the Hub, with ``changes`` of keys.

    A key of the text part of a composite configuration is changed there. A mapping
    (``rope_parameters``) is merged into the mapping of the files. ``options`` replace values.

    Raises ``ConfigError`` for a key that neither configuration knows. transformers raises other
    errors for values that it refuses.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source, **options)
    # Made anew instead of changed, so that the values are checked by the configuration's class.
    values = config.to_dict()
    text = config.get_text_config()
    parts = [values, *(values[name] for name in config.sub_configs if vars(config)[name] is text)]
    given = changes or {}
    check_keys("model_config", given, set().union(*parts))
    for part in parts:
        for key in part.keys() & given:
            value = given[key]
            part[key] = {**part[key], **value} if isinstance(part[key], Mapping) else value
    return type(config).from_dict(values)


def check_keys(setting: str, given: Mapping[str, Any], known: Set[str]) -> None:
    """Raise ``ConfigError`` for a key of a setting that a configuration does not know."""
    for key in given.keys() - known:
        rule = f"unknown key; {did_you_mean(key, known)}"
        raise setting_error(f"{setting}.{key}", given[key], rule)
