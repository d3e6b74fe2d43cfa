"""The kinds of a device's memory."""

from __future__ import annotations

PARAMETERS = "parameters"
GRADIENTS = "gradients"
OPTIMIZER = "optimizer"
ACTIVATIONS = "activations"
EXCHANGED = "collectives"
KINDS = (PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, EXCHANGED)
