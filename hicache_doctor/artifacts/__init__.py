"""File formats: sniffing, peeling wrappers, one reader a format, each yielding typed evidence rows."""
