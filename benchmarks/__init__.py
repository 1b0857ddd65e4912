"""The benchmarks: NoETL-Celery beside what else one would use, in the same run on the same services.

`python -m benchmarks --list` names the cases; README.md in this folder says what is fair about them.
"""
