"""PostgreSQL: one module per noun. Every function takes the caller's connection and runs in the caller's transaction."""
