"""The checks of a run, in the order in which they are called."""

from __future__ import annotations

from ..config.train_config import TrainConfig
from ..hooks import Callback
from .gradients import ExchangedGradients
from .model import SupportedModel
from .optimizer import DivisibleOptimizer
from .parameters import EditedParameters, TrainableSet
from .same_data import SameData
from .same_model import SameModel
from .same_settings import SameSettings
from .training_mode import TrainingMode


def checks_of(config: TrainConfig) -> list[Callback]:
    """Return the checks that a config asks for: all of them, or none."""
    if config.checks == "none":
        return []
    return [
        SameSettings(),
        SameData(),
        SupportedModel(),
        SameModel(),
        DivisibleOptimizer(),
        ExchangedGradients(),
        EditedParameters(),
        TrainableSet(),
        TrainingMode(),
    ]
