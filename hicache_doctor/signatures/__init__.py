"""Rules over the store, the walk along the diagnosis path, and the verdict with its evidence chain."""
