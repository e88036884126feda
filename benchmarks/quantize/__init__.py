"""Quantizing a bf16 weight on the CPU, against a copy of it and against other libraries."""
