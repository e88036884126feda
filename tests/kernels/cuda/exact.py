"""Operands whose products add up to small integers, exact in any order and on any tensor core.

Bits can therefore be compared with the emulation's wherever sums are made; scales of tensors and
rows, which come after the sums, are arbitrary.
"""

from dataclasses import replace

import torch
from torch import Tensor

from qrole_kernels.operand import PACKED, Operand
from qrole_kernels.reference.blocks import ceil_div

ONE_AND_TWO = {"e4m3": (0x38, 0x40), "e5m2": (0x3C, 0x40), "e2m1": (0x2, 0x4)}
PAIRS = {
    "tensor": ("fp8_tensor", "fp8_tensor"),
    "tensor e5m2": ("fp8_tensor e5m2", "fp8_tensor"),
    "tensor x e5m2": ("fp8_tensor", "fp8_tensor e5m2"),
    "rows": ("fp8_rows", "fp8_rows"),
    "rows x tensor": ("fp8_rows", "fp8_tensor"),
    "block 1d x 1d": ("fp8_block_1d", "fp8_block_1d"),
    "block 1d x 2d": ("fp8_block_1d", "fp8_block_2d"),
    "block 2d x 1d": ("fp8_block_2d", "fp8_block_1d"),
    "block e5m2": ("fp8_block_1d e5m2", "fp8_block_2d"),
    "mxfp8": ("mxfp8", "mxfp8"),
    "mxfp8 e5m2": ("mxfp8 e5m2", "mxfp8"),
    "mxfp4": ("mxfp4", "mxfp4"),
    "nvfp4": ("nvfp4", "nvfp4"),
    "nvfp4 rows": ("nvfp4 rows", "nvfp4"),
    "nvfp4 256": ("nvfp4 256", "nvfp4"),
}
"""What `operand` calls the left and the right side."""


def operand(kind: str, rows: int, k: int, seed: int = 0, transposed: bool = False) -> Operand:
    """An operand (rows, k) of a format: "<format>[ <element, 'rows' or '256'>]".

    Args:
        kind: Of `PAIRS`.
        rows: Of the operand.
        k: Its columns.
        seed: Of the random numbers.
        transposed: The data and their scales are views whose columns are contiguous.
    """
    name, _, variant = kind.partition(" ")
    generator = torch.Generator().manual_seed(seed)
    element = "e5m2" if variant == "e5m2" else "e4m3"
    data = _codes(rows, k, "e2m1" if name in PACKED else element, generator)
    scale = _scale(name, rows, k, generator)
    amax = None
    if name == "nvfp4":
        amax = torch.rand((rows,) if variant == "rows" else (), generator=generator) + 0.5
    if transposed:
        data, scale = data.t().contiguous().t(), scale.t().contiguous().t()
    columns = k if name in PACKED else None
    return Operand(name, data, scale, amax, element, 256 if variant == "256" else 448, columns)


def _codes(rows: int, k: int, element: str, generator: torch.Generator) -> Tensor:
    """Of 0, +-1 and +-2."""
    one, two = ONE_AND_TWO[element]
    sign = 0x8 if element == "e2m1" else 0x80
    table = torch.tensor([0, one, two, sign | one, sign | two], dtype=torch.uint8)
    codes = table[torch.randint(0, 5, (rows, k), generator=generator)]
    if element != "e2m1":
        return codes
    codes = torch.nn.functional.pad(codes, (0, k % 2))
    return codes[:, ::2] | codes[:, 1::2] << 4


def _scale(name: str, rows: int, k: int, generator: torch.Generator) -> Tensor:
    """1, 2 or 4 for blocks."""
    if name == "fp8_tensor":
        return torch.rand((), generator=generator) + 0.5
    if name == "fp8_rows":
        return torch.rand((rows, 1), generator=generator) + 0.5
    width = {"fp8_block_1d": 128, "fp8_block_2d": 128, "nvfp4": 16}.get(name, 32)
    height = 128 if name == "fp8_block_2d" else 1
    shape = ceil_div(rows, height), ceil_div(k, width)
    power = torch.randint(0, 3, shape, generator=generator)
    if name.startswith("fp8"):
        return 2.0**power
    return ((0x38 + 8 * power) if name == "nvfp4" else 127 + power).to(torch.uint8)


def on(device: torch.device, operand: Operand) -> Operand:
    """The operand on a device, its views still views."""
    moved = {
        name: tensor.to(device)
        for name in ("data", "scale", "amax")
        if (tensor := getattr(operand, name)) is not None
    }
    return replace(operand, **moved)
