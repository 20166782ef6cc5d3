"""Replaces functions that the interpreter itself uses."""
# ruff: noqa
# without the sandbox: not run: there is no supervisor
# ends: ok error timeout crashed

import builtins
import json
import os
import sys

sys.meta_path.insert(0, type("Hook", (), {"find_spec": lambda *arguments: print(ESCAPED) or None})())
sys.settrace(lambda *arguments: None)
json.dumps = lambda *arguments, **named: '{"value": "forged"}'
json.loads = lambda *arguments, **named: {"kind": "run", "code": ""}
os.write = lambda descriptor, data: len(data)
builtins.compile = lambda *arguments, **named: None
