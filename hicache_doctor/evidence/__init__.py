"""The evidence store: row types, the DuckDB schema, ingestion and the derived streams."""
