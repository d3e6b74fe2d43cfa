"""Checkpoints that cannot be lost and load anywhere.

Files and tensors
    disk.py             atomic writes, checksums of files, room on the disk
    untrusted.py        paths and JSON that somebody else may have written
    safetensors_io.py   safetensors files
    pieces.py           flat ranges of tensors, as a rank writes them
    ranges.py           how any layout reads the ranges of any other
    forms.py            the form of manifest.json and state.json
    contents.py         a checkpoint, opened

The folder of checkpoints
    discover.py         the checkpoints that are there, and whether they are whole
    start.py, find.py   the checkpoint that a run begins with
    store.py            committing new checkpoints and deleting old checkpoints

Saving
    parts.py            the live parts of a training, and which elements this rank writes
    optimizer_state.py, schedule_state.py, codec.py   the state of some of the parts
    snapshot.py         a copy of this rank's part in host memory
    saver.py            saving while training continues

Loading
    restore.py          setting a training to a checkpoint, or its weights
    restore_optimizer.py, decode.py   the state of optimizer, schedule, task and callbacks
    compatibility.py    which settings may not differ then
    checksums.py        whether the weights are those of the files

Models
    export.py, load_export.py   model files
"""
