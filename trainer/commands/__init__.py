"""The commands of ``trainer``: they look at runs, files and tasks from outside; training does not
need them.
"""
