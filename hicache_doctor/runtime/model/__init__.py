"""What computes: the null model for checking content, a small transformer for checking tokens."""
