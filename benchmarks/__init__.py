"""Benchmarks: ratios of interleaved runs, never absolute speed."""
