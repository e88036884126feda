"""Element types by name, number, and from other enums."""

from enum import Enum, IntEnum

import pytest

from qrole.dtypes import DType, fp8_element
from qrole.errors import ConfigError


class Pybind(Enum):
    kFloat8E4M3 = 99
    kFloat8E8M0 = 9


class Other(IntEnum):
    NINE = 9


def test_members():
    assert [d.name for d in DType] == [
        "kByte", "kInt32", "kFloat32", "kFloat16", "kBFloat16",
        "kFloat8E4M3", "kFloat8E5M2", "kFloat4E2M1",
    ]  # fmt: skip


@pytest.mark.parametrize("value", [DType.kFloat8E4M3, 7, Pybind.kFloat8E4M3], ids=str)
def test_cast(value):
    assert DType.cast(value) is DType.kFloat8E4M3


@pytest.mark.parametrize("value", ["kFloat8E4M3", Pybind.kFloat8E8M0, 9, Other.NINE, None, 1.5])
def test_what_is_no_element_type(value):
    with pytest.raises(ConfigError, match="is no element type"):
        DType.cast(value)


def test_fp8_element():
    assert fp8_element(DType.kFloat8E4M3) == "e4m3"
    assert fp8_element(DType.kFloat8E5M2) == "e5m2"
    with pytest.raises(ConfigError, match=r"fp8_dtype is DType\.kFloat4E2M1"):
        fp8_element(DType.kFloat4E2M1)
