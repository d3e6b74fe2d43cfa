"""Private names of other packages that this package depends on: a file for each package.

No other file reads private names (``tests/unit/private/test_names.py``). Each function says why no
public name serves. If a new release removes a name, the test file of the same name fails with
package, release and name.
"""
