"""The commands of ``trainer`` that look at runs, files and tasks from outside; training does not need them."""
