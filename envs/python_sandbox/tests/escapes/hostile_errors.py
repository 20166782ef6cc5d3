"""Raises exceptions that cannot be printed, and exceptions that end a process."""
# ruff: noqa
# without the sandbox: not run: it does not try to get out
# ends: error crashed


class Error(BaseException):
    def __str__(self):
        raise self

    __repr__ = __str__

    def __getattribute__(self, name):
        raise KeyboardInterrupt


raise Error
