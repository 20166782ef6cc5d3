"""Raises what cannot be shown, and what ends a process."""
# ruff: noqa
# without the sandbox: not run: there is nobody to escape from
# ends: error crashed


class Error(BaseException):
    def __str__(self):
        raise self

    __repr__ = __str__

    def __getattribute__(self, name):
        raise KeyboardInterrupt


raise Error
