"""Private names of other packages that this package depends on: a file for each of those packages.

No other file reads one (``tests/unit/private/test_names.py``). Each function says why no public
name serves and in which release its name was last seen. The test file of the same name fails,
naming package, release and name, where a new release has removed one.
"""
