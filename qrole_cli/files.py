"""Files that commands write, looked at before the work is done."""

from __future__ import annotations

from pathlib import Path

__all__ = ["check_folder"]


def check_folder(path: Path) -> None:
    """Refuses a path that nothing can be written to, for want of its folder.

    Raises:
        CheckpointError: There is no such folder.
    """
    from qrole.errors import CheckpointError

    if not path.parent.is_dir():
        raise CheckpointError(
            f"{path} cannot be written: there is no folder {path.parent}",
            expected="a writable path with space left",
            hint="create the folder, or name another file",
        )
