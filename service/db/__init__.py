"""The database: tables, engine, sessions, schema."""
