"""Upstream PRs, releases, and which fix is in which release."""
