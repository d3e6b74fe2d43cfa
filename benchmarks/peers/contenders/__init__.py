"""The contenders, one file for each kind. Each function trains with ``work`` and returns the weights of rank 0 at the end.

The module of a contender is imported in its own process alone.
"""
