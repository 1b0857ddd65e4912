"""The Celery side: thin tasks that load, decide or run, save, publish."""
