"""Between the stages: the leader's counts, proxy tensors, the centralised plan."""
