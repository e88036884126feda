"""TransformerEngine's element types, by name and number."""

from __future__ import annotations

from enum import IntEnum

from qrole.errors import ConfigError

__all__ = ["DType", "fp8_element"]


class DType(IntEnum):
    """Element type of raw data, numbered as TransformerEngine numbers it."""

    kByte = 0
    kInt32 = 2
    kFloat32 = 4
    kFloat16 = 5
    kBFloat16 = 6
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat4E2M1 = 10

    @classmethod
    def cast(cls, value: object) -> DType:
        """A member from a member, its number, or the equally named member of any other enum.

        Raises:
            ConfigError: The value names no element type.
        """
        if isinstance(value, cls):
            return value
        name = getattr(value, "name", None)
        if isinstance(name, str) and name in cls.__members__:
            return cls[name]
        if isinstance(value, int) and value in cls._value2member_map_:
            return cls(value)
        raise ConfigError(
            f"{value!r} is no element type",
            expected=f"one of {', '.join(f'DType.{n}' for n in cls.__members__)}",
            hint="import DType from qrole or from transformer_engine.pytorch",
        )


_FP8 = {DType.kFloat8E4M3: "e4m3", DType.kFloat8E5M2: "e5m2"}


def fp8_element(dtype: DType) -> str:
    """`e4m3` or `e5m2`.

    Raises:
        ConfigError: The type is no FP8 type.
    """
    try:
        return _FP8[dtype]
    except KeyError:
        raise ConfigError(
            f"fp8_dtype is DType.{dtype.name}",
            expected="DType.kFloat8E4M3 or DType.kFloat8E5M2",
            hint="pass one of the two FP8 types",
        ) from None
