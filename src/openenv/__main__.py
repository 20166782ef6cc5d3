"""`python -m openenv` is `openenv`."""

from .cli import main

if __name__ == "__main__":
    main()
