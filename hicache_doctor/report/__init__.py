"""Renderers of a verdict: terminal, JSON, HTML. None of them computes one."""
