"""The cache tiers: tree, pools, transfer, prefetch."""
