"""Tasks in the format of Harbor: an agent works in a sandbox, and the tests of the task score what it left there.

See docs/how-to/harbor.md. Names are imported when they are first used.
"""
