"""The commands of ``trainer`` look at runs, files and tasks from outside of a training."""
