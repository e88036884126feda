"""The import machinery behind `import transformer_engine` where it is not installed."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import ClassVar

from qrole.te_shim.surface import RENAMED, REST, SURFACE

__all__ = ["OlderNameWarning", "ShimFinder", "ShimModule"]


class OlderNameWarning(UserWarning):
    """A module name of an older TransformerEngine release is used."""


class ShimModule(ModuleType):
    """A module of TransformerEngine whose names are qrole's objects, looked up when first used."""

    def __getattr__(self, name: str) -> object:
        target = SURFACE[self.__name__].get(name)
        where, _, attribute = (target or f"{REST.get(self.__name__, '')}:{name}").partition(":")
        if name.startswith("__") or not where or (target is None and not _exports(where, name)):
            raise AttributeError(
                f"qrole's stand-in for {self.__name__} has no {name!r}; TransformerEngine is not "
                "installed"
            )
        found: object = importlib.import_module(where)
        if attribute:
            found = getattr(found, attribute)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *SURFACE[self.__name__]})


def _exports(module: str, name: str) -> bool:
    return name in getattr(importlib.import_module(module), "__all__", ())


class ShimFinder(MetaPathFinder, Loader):
    """Serves the modules of the surface.

    It stands last on `sys.meta_path`, so that whatever is really installed is found before.

    Attributes:
        on_use: Called when user code imports the first module; None calls nobody.
    """

    on_use: ClassVar[Callable[[], None] | None] = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for a module of the surface; None for any other."""
        if fullname not in SURFACE:
            return None
        package = any(name.startswith(f"{fullname}.") for name in SURFACE)
        return ModuleSpec(fullname, self, origin="qrole.te_shim", is_package=package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty module that looks its names up."""
        return ShimModule(spec.name, f"qrole's stand-in for {spec.name}.")

    def exec_module(self, module: ModuleType) -> None:
        """Sets what `from module import *` takes; warns of older names."""
        name = module.__name__
        module.__dict__["__all__"] = sorted(SURFACE[name])
        if name == "transformer_engine":
            module.__dict__["__version__"] = "2.20.0+qrole"
            if ShimFinder.on_use is not None:
                ShimFinder.on_use()
        if name in RENAMED:
            warnings.warn(
                f"{name} is a module of older TransformerEngine releases; "
                f"today it is {RENAMED[name]}",
                OlderNameWarning,
                stacklevel=2,
            )
