"""Rehearse a rank of a large job on a machine without a GPU (``trainer rehearse``).

The rank runs the real task, trainer and engine. The other ranks are fakes that answer nothing, and
the GPU is a fake that computes no values. So memory and exchanges are those of the job.
"""
