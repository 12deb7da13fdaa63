"""Getting evidence out of running processes."""
