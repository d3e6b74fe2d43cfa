"""Checkpoints that cannot be lost and load anywhere.

Files and tensors: ``disk`` (atomic writes, checksums), ``safetensors_io``, ``ranges`` (how any
layout reads the tensors that any other wrote), ``contents`` (a checkpoint, opened).

The folder of checkpoints: ``store`` commits new and deletes old checkpoints. ``discover`` finds
those that are there and whole, and where a run begins.

Saving: ``parts`` (the live parts, and which elements this rank writes), ``optimizer_state``,
``snapshot`` (a copy in host memory, and state.json), ``saver``.

Loading: ``restore`` and ``restore_optimizer``. ``compatibility`` says which settings, and weights
in no file, may not differ then.

Models: ``exported`` (model files), ``same_logits`` (whether a file gives the trained model).
"""
