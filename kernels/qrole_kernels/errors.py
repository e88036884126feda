"""Errors of the kernels.

KernelError (ValueError)
├── ArgumentError      an argument's value, shape or dtype is outside what the function takes
└── PairingError       two GEMM operands whose formats have no common product
"""


class KernelError(ValueError):
    """Base of all errors that `qrole_kernels` raises for a caller's mistake.

    The message has three parts: what was given, what was expected, what to do.
    """

    def __init__(self, given: str, expected: str, action: str) -> None:
        """Compose the message from its three parts."""
        super().__init__(f"Given {given}. Expected {expected}. {action}")
        self.given = given
        self.expected = expected
        self.action = action

    def __reduce__(self) -> tuple[type["KernelError"], tuple[str, str, str]]:
        """Pickle by the three parts, so that the error crosses process borders."""
        return type(self), (self.given, self.expected, self.action)


class ArgumentError(KernelError):
    """An argument's value, shape or dtype is outside what the function takes."""


class PairingError(KernelError):
    """Two GEMM operands whose formats have no common product."""
