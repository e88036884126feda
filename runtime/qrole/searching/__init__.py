"""Choosing formats per layer under a budget."""

from qrole.searching.search import Budget, Point, SearchResult, search

__all__ = ["Budget", "Point", "SearchResult", "search"]
