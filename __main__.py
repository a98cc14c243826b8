"""``python -m headstock`` is the command line."""

from .entrypoints.cli import main

if __name__ == "__main__":
    main()
