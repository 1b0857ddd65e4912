"""What one would use instead, written as its users would write it. Nothing in here knows NoETL-Celery."""
