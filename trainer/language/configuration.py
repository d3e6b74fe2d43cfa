"""The configuration of a pretrained model with keys that the settings change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ConfigError
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
    for key, value in (changes or {}).items():
        owners = [part for part in parts if key in part]
        if not owners:
            raise unknown_key("model_config", key, value, {*values, *text.to_dict()})
        for own in owners:
            own[key] = {**own[key], **value} if isinstance(own[key], Mapping) else value
    return type(config).from_dict(values)


def unknown_key(setting: str, key: str, value: object, known: Iterable[str]) -> ConfigError:
    """Return the error for a key that a configuration does not know."""
    return setting_error(f"{setting}.{key}", value, f"unknown key; {did_you_mean(key, known)}")
