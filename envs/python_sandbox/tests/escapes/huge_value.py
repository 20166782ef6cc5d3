"""Ends with a value of 200 MB, and with one that cannot be shown."""
# ruff: noqa
# without the sandbox: not run: it does not try to get out
# ends: ok error timeout limit


class Value:
    def __repr__(self):
        return "x" * (200 * 1024 * 1024)


Value()
