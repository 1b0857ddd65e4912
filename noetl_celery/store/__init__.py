"""PostgreSQL: one module per noun. Functions take the caller's connection and run in the caller's transaction."""
