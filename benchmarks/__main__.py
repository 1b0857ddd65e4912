"""``python -m benchmarks``: the command line."""

from benchmarks.cli import main

if __name__ == "__main__":
    main()
