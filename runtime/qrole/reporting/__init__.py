"""One self-contained HTML page out of the JSON of inspect, audit and compare."""

from qrole.reporting.page import check_free, check_libraries, render_page, write_page, write_report
from qrole.reporting.view import View, build_view

__all__ = [
    "View",
    "build_view",
    "check_free",
    "check_libraries",
    "render_page",
    "write_page",
    "write_report",
]
