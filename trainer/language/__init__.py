"""Language models as tasks that need no code: ``task: trainer.language:CausalLM`` in a config.

Needs the extra ``llm``. The core of the package never imports this folder. Some commands do.

How a file of rows becomes a packed batch, and which module does which step:

1. ``sources``: the setting ``data`` (a file, a folder, a pattern, a data set of the Hub) becomes
   rows, each with its file and number for messages of errors. ``datasets`` reads them.
2. ``columns``: which columns of a row hold the text, the conversation, or the prompt and answer.
   ``messages`` brings conversations of any data set to one form.
3. ``chat``: the chat template (``templates``) writes a conversation as one text, and ``rendering``
   finds which message wrote which part of it, so that only the assistant's words are trained on.
4. ``tokens``: the tokenizer turns texts into one memory-mapped file of tokens, made once per
   machine. One bit of each token says whether it is a target, that is, whether it has a loss.
5. ``packing``: documents are cut and put together into rows of one length, and rows into batches
   of input_ids, labels and position_ids, by which transformers keeps the documents of a row
   apart. ``separation`` proves on the model itself that they do not see each other.
6. ``causal``, ``masked``, ``classifier``: the tasks, on ``base``. ``loss`` computes the mean over
   the targets. ``pretrained`` and ``meta_model`` build the model without values and find these in
   its files. ``adapters`` and ``quantized`` add LoRA and QLoRA.
7. ``ends``, ``card``: the text's end and the model card of an export.
"""

from .adapters import Adapter
from .causal import CausalLM
from .classifier import SequenceClassifier
from .masked import MaskedLM

__all__ = ["Adapter", "CausalLM", "MaskedLM", "SequenceClassifier"]
