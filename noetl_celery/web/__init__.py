"""The console and the HTTP API: one ASGI application that looks at PostgreSQL and tells the workers what to do.

It keeps nothing: any number of it may run, and may be stopped at any time.
"""
