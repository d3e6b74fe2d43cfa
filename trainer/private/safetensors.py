"""The private name of safetensors that this package depends on. Last seen in safetensors 0.8."""

from __future__ import annotations

import torch
from safetensors.torch import _TYPES

# The dtypes of tensors by their codes in files. No public name has them. Those of complex numbers
# are left out: optimizers keep other states for them.
DTYPES: dict[str, torch.dtype] = {
    code: dtype for code, dtype in _TYPES.items() if dtype and not dtype.is_complex
}
