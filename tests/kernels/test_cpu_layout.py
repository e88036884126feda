"""Row-major copies of transposed matrices."""

import pytest
import torch

from qrole_kernels.cpu_layout import row_major

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (64, 200), (300, 70), (129, 4096), (0, 7)])
def test_transposed(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x = (torch.arange(shape[0] * shape[1]) % 251).to(dtype).view(shape)
    made = row_major(x.t())
    assert made.is_contiguous()
    assert torch.equal(made, x.t())


def test_columns_with_gaps_between_them() -> None:
    x = torch.randn(40, 100)[:, 7:77].t()
    assert torch.equal(row_major(x), x)
    assert row_major(x).is_contiguous()


@pytest.mark.parametrize(
    "x", [torch.randn(4, 6), torch.randn(2, 3, 4).mT, torch.randn(6, 8)[:, ::2]]
)
def test_other_layouts(x: torch.Tensor) -> None:
    assert torch.equal(row_major(x), x)
    assert row_major(x).is_contiguous()


def test_without_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qrole_kernels.cpu.is_compiled", lambda: False)
    x = torch.randn(30, 50).t()
    assert torch.equal(row_major(x), x)
