"""Language models as tasks that need no code: ``task: trainer.language:CausalLM`` in a config.

Needs the extra ``llm``. The core of the package never imports this folder. Some commands do.

How a file of rows becomes a packed batch, and the module of each step:

1. ``sources``: the setting ``data`` (a file, a folder, a data set of the Hub) becomes rows.
2. ``columns``: the columns of a row that hold the text, the conversation, or the prompt and answer.
   ``messages`` brings conversations of any data set to the same form.
3. ``chat``: the chat template (``templates``) writes a conversation as text, and ``rendering``
   finds the message that wrote each part, so that only the assistant's words are trained on.
4. ``tokens``: the tokenizer turns texts into a memory-mapped file of tokens, made once per machine.
5. ``packing``: documents become rows of the same length, and rows become batches.
   ``separation`` proves on the model itself that documents of a row do not see each other.
6. ``causal``, ``masked``, ``classifier``, ``dpo``, ``reward``: the tasks, on ``base``, ``decoder``
   and ``preference``. ``loss`` computes the mean over the targets, or the loss of each.
   ``pretrained`` and ``model_files`` build the model without values and find these in the files.
   ``configuration`` changes keys of the model.
   ``adapters`` and ``quantized`` add LoRA and QLoRA.
7. ``ends``, ``card``: the end of a text and the model card of an export.
8. ``pairs``: rows with a chosen and a rejected answer, as two neighbouring documents. ``turns``:
   the tokens of conversations with the spans of each turn, for tasks of your own.
"""

from .adapters import Adapter
from .causal import CausalLM
from .classifier import SequenceClassifier
from .dpo import DPO
from .loss import token_losses
from .masked import MaskedLM
from .reward import RewardModel
from .turns import tokenize_rows

__all__ = [
    "DPO",
    "Adapter",
    "CausalLM",
    "MaskedLM",
    "RewardModel",
    "SequenceClassifier",
    "token_losses",
    "tokenize_rows",
]
