"""Language models as tasks that need no code: ``task: trainer.language:CausalLM`` in a training
config.

Needs the extra ``llm``. Nothing else of the package but commands knows of this room.
"""

from .adapters import Adapter
from .causal import CausalLM
from .classifier import SequenceClassifier
from .masked import MaskedLM

__all__ = ["Adapter", "CausalLM", "MaskedLM", "SequenceClassifier"]
