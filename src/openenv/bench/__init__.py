"""How fast, how many at once, and at what cost: load for environment servers, and reports about it.

Everything here returns data or writes the files it is asked for; `openenv.cli` prints.
"""
