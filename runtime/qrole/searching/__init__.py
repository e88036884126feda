"""Choosing formats under a budget."""
