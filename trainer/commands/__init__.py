"""The commands of ``trainer``: they look at runs, files and tasks from outside. Training does not
need them.
"""
