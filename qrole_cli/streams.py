"""stdout and stderr that cannot be written: a reader that is gone, or a full disk."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from qrole.errors import CheckpointError

__all__ = ["guard_streams"]

#: What shells report of a process that SIGPIPE has ended.
_CLOSED_PIPE = 128 + signal.SIGPIPE


def guard_streams() -> None:
    """Makes this process end without a word where whoever reads it is gone, as in `| head`.

    The signal itself stays ignored, as Python has it: it would also end a job whose socket to
    another rank, or pipe to a child of the user's code, is closed. A stream that was closed before
    the start takes everything and keeps nothing.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        setattr(sys, name, io.StringIO() if stream is None else cast(TextIO, _Guarded(stream)))


class _Guarded:
    """A text stream whose failures to write end the command; all else is the stream's."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._writing():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._writing():
            self._stream.flush()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # What is left in its buffer is written when Python ends, and would fail there again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if isinstance(error, BrokenPipeError):
                raise SystemExit(_CLOSED_PIPE) from None
            raise CheckpointError(
                f"{self._stream.name.strip('<>')} cannot be written: {error.strerror}",
                expected="a stream with room for the output",
                hint="send it elsewhere",
            ) from error
