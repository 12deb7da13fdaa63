"""L3 backends."""
