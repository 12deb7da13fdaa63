"""The scheduler step: receive, form a batch, forward, result."""
