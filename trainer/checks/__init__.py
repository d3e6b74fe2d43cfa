"""Checks: hooks that end a run whose numbers would be silently wrong.

Each file has a single subject. No check changes a number: ``checks: none`` leaves all out, except
``finite.py``, which has a setting of its own: ``on_nan``. A check belongs here only if people
really make the mistake, and would not notice.
"""
