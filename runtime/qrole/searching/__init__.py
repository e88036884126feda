"""Choosing formats per layer under a budget."""

from qrole.searching.result import Budget, Point, SearchResult
from qrole.searching.search import check_request, search

__all__ = ["Budget", "Point", "SearchResult", "check_request", "search"]
