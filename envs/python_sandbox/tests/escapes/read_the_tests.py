"""Looks for the hidden tests on the disk."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

import os

try:
    if "Family(" in open(HOST["tests_file"]).read():
        print(ESCAPED)
except OSError as error:
    print(error)
for folder, _, names in os.walk("/inside"):
    for name in names:
        text = open(os.path.join(folder, name), "rb").read()
        if b"sum_of_multiples" in text or b"collatz" in text:
            print(ESCAPED, name)
