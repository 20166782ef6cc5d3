"""Prints bytes and letters that are no text, and makes such names of files."""
# ruff: noqa
# without the sandbox: not run: there is nobody to escape from
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
