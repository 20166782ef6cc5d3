"""Prints bytes and letters that are not valid text, and creates files with such names."""
# ruff: noqa
# without the sandbox: not run: it does not try to get out
# ends: ok error
# then: list
# then: read \ud800
# then: write \ud800
# then: read a\0b

import os

os.write(1, bytes(range(256)))
print("\ud800\udfff\x00")
open(b"/desk/\xff\xfe", "w").close()
open("/desk/a\nb", "w").close()
"\ud800"
