"""Ends with a value that has 200 MB, and another that cannot be shown."""
# ruff: noqa
# without the sandbox: not run: there is nobody to escape from
# ends: ok error timeout limit


class Value:
    def __repr__(self):
        return "x" * (200 * 1024 * 1024)


Value()
