"""Checks: hooks that end a run whose numbers would be silently wrong.

Each file has a single subject. No check changes a number: ``checks: none`` leaves all out. A check
belongs here only if people really make the mistake, and would not notice. A mistake that ends in a
clear error anyway needs no check.

same_settings.py   ranks that were started with other settings
same_data.py       ranks that have other data
model.py           models with parts that a strategy would lose
same_model.py      ranks that built another model or optimizer
optimizer.py       optimizers that cannot step parts of parameters, rates that do not last
gradients.py       gradients that were not averaged over the ranks
parameters.py      parameters that were edited, frozen or replaced behind the optimizer's back
training_mode.py   models that a callback left in evaluation mode

finite.py has a setting of its own: ``on_nan``.
"""
