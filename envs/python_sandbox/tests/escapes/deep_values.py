"""Answers with values so deep that a reader may crash."""
# ruff: noqa
# without the sandbox: not run: there is no grader
# ends: ok error limit
# submitted

import json

json.dumps = lambda *arguments, **named: "[" * 100_000


def NAME(*arguments):
    return None
