"""The reference PP + L2/L3 cache runtime: protocol code written once, run in real processes or in a simulation."""
