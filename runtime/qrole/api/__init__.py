"""One function per command, for programs: what `import qrole` offers.

What a model, a factory and input data can be, everywhere the same, is in `qrole.given`. The
functions are thin: they make one each of what is given, and call the room that does the work.
"""

from qrole.api.checkpoints import apply, verify
from qrole.api.numbers import compare, judge, search
from qrole.api.plans import audit, inspect, plan
from qrole.given import as_factory

__all__ = [
    "apply",
    "as_factory",
    "audit",
    "compare",
    "inspect",
    "judge",
    "plan",
    "search",
    "verify",
]
