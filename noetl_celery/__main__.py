"""``python -m noetl_celery``: the command line."""

from noetl_celery.cli import main

if __name__ == "__main__":
    main()
