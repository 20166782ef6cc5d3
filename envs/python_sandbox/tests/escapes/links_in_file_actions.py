"""Makes file actions read and write outside, by symbolic links and by dots."""
# ruff: noqa
# without the sandbox: escapes by code
# ends: ok error
# then: read link
# then: read root{secret_file}
# then: read ../../../../../..{secret_file}
# then: read {secret_file}
# then: read /proc/self/environ
# then: write folder/escaped
# then: write {folder}/escaped
# then: write ../../../../../..{folder}/escaped
# then: list {folder}
# then: read /dev/zero

import os

os.symlink(HOST["secret_file"], "link")
os.symlink("/", "root")
os.symlink(HOST["folder"], "folder")
try:
    print(ESCAPED, open("link").read())
except OSError as error:
    print(error)
