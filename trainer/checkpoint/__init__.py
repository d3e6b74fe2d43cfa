"""Checkpoints that cannot be lost and load anywhere.

Files and tensors
    disk.py             atomic writes, checksums of files, paths and JSON of others
    safetensors_io.py   safetensors files
    ranges.py           how any layout reads the ranges of tensors that any other wrote
    contents.py         a checkpoint, opened

The folder of checkpoints
    store.py            committing new checkpoints and deleting old checkpoints
    discover.py         the checkpoints that are there, whether they are whole, where a run begins

Saving
    parts.py            the live parts of a training, and which elements this rank writes
    optimizer_state.py  the state of optimizer and schedule
    codec.py            the state of task and callbacks
    snapshot.py         a copy of this rank's part in host memory
    saver.py            saving while training continues

Loading
    restore.py, restore_optimizer.py   setting a training to a checkpoint, or its weights
    compatibility.py    which settings, and weights in no file, may not differ then

Models
    exported.py         model files
    same_logits.py      whether a model file gives the trained model
"""
