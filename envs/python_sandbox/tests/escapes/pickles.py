"""Returns objects that run code when they are unpickled."""
# ruff: noqa
# without the sandbox: escapes by unpickling
# ends: ok error limit timeout
# submitted

import os
import pickle


class Bomb:
    def __reduce__(self):
        return (open, (HOST["folder"] + "/escaped", "w"))


data = pickle.dumps(Bomb())
for descriptor in range(3, 64):
    try:
        os.write(descriptor, data)
    except OSError:
        pass


def NAME(*arguments):
    return Bomb()


try:
    pickle.loads(data)
    print(ESCAPED)
except OSError as error:
    print(error)
