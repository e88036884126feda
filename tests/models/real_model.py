"""A real trained model as a folder that is there whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory


@dataclass(frozen=True)
class RealModel:
    """What a model's folder holds and how it is filled.

    Attributes:
        folder: Name of the folder, below the root of all models.
        files: Every file that a complete folder has; the folder may have more.
        make: Fills its first argument, an empty folder, with the files. Its second argument is
            an empty folder for downloads and the like, which is removed afterwards.
    """

    folder: str
    files: tuple[str, ...]
    make: Callable[[Path, Path], None]

    def missing(self, root: Path) -> list[str]:
        """The files that the model's folder below `root` lacks."""
        return [name for name in self.files if not (root / self.folder / name).is_file()]

    def build(self, root: Path) -> None:
        """Makes the folder below `root`, in place of what is left of an earlier one.

        The work is done beside it and renamed when it is complete.
        """
        root.mkdir(parents=True, exist_ok=True)
        target = root / self.folder
        with TemporaryDirectory(prefix=f".{self.folder}-", dir=root) as work:
            made, scratch = Path(work, self.folder), Path(work, "scratch")
            made.mkdir()
            scratch.mkdir()
            self.make(made, scratch)
            assert not self.missing(Path(work)), f"{self.folder} lacks {self.missing(Path(work))}"
            if target.exists():
                shutil.rmtree(target)
            made.rename(target)
