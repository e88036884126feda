"""Mistakes in the pairing of operands."""

from __future__ import annotations

from typing import Any

from torch import nn

from qrole import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    HybridQuantizer,
    IdentityQuantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    Quantizer,
    QuantizerRole,
)
from qrole.dtypes import DType
from qrole.factories.builtin import (
    current_scaling_factory,
    float8_block_scaling_factory,
    mxfp8_factory,
    nvfp4_factory,
)
from qrole.roles import Direction, Slot
from tests.audit.building import case, fused_experts, one_layer, planned

E4M3, E5M2 = DType.kFloat8E4M3, DType.kFloat8E5M2


def block(dim: int) -> Quantizer:
    return Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True, block_scaling_dim=dim)


def fp8(element: DType) -> Quantizer:
    return Float8CurrentScalingQuantizer(element, device="cuda")


def rht(signs: bool = True, sr: bool = False) -> Quantizer:
    return NVFP4Quantizer(
        with_rht=True,
        with_post_rht_amax=True,
        with_random_sign_mask=signs,
        stochastic_rounding=sr,
    )


def hybrid(row: Quantizer, col: Quantizer) -> Quantizer:
    return HybridQuantizer(rowwise_quantizer=row, columnwise_quantizer=col)


def by_operand(**makers: Any) -> Any:
    """A factory that answers by tensor type."""
    return lambda role: makers[role.tensor_type]()


class Output(nn.Module):
    """A layer that was asked for a quantized output; its reader is named."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Linear(256, 256, device="meta").weight

    def get_quantizer_roles(self, *, fwd: bool, num_quantizers: int) -> None:
        raise AssertionError("quantizer_slots says all")

    def quantizer_slots(self, path: str) -> list[Slot]:
        def slot(direction: Direction, index: int, operand: str, name: str) -> Slot:
            parameters = (f"{path}.weight",) if operand == "weight" else ()
            role = QuantizerRole("linear", operand, name)
            return Slot(
                path, direction, index, role, operand=operand, shape=None, parameters=parameters
            )

        return [
            slot(Direction.FORWARD, 0, "input", "fc"),
            slot(Direction.FORWARD, 1, "weight", "fc"),
            slot(Direction.FORWARD, 2, "output", "reader"),
            slot(Direction.BACKWARD, 0, "grad_output", "fc"),
        ]


def quantized_output() -> nn.Module:
    return nn.ModuleDict({"fc": Output()})


def identity_outside(role: QuantizerRole | None) -> Any:
    return IdentityQuantizer() if role and role.name == "reader" else fp8(E4M3)


def every_fourth_expert() -> Any:
    """Keeps one expert in four in another format, by counting the calls."""
    calls = iter(range(10_000))

    def factory(role: QuantizerRole | None) -> Any:
        first = next(calls) // 3 % 4 == 0
        return NVFP4Quantizer(with_2d_quantization=True) if first else MXFP8Quantizer(E4M3)

    return factory


def pair(**makers: Any) -> Any:
    return planned(one_layer, by_operand(**makers))


def mx() -> Quantizer:
    return MXFP8Quantizer(E4M3)


CASES = [
    case(
        "an FP8 weight meets an MXFP8 input",
        "QR301 QR302",
        pair(input=mx, weight=lambda: fp8(E4M3), grad_output=mx),
        planned(one_layer, mxfp8_factory),
    ),
    case(
        "the weight's column-wise side is not the gradient's format",
        "QR302",
        pair(
            input=mx,
            weight=lambda: hybrid(mx(), block(2)),
            grad_output=mx,
        ),
        pair(input=mx, weight=lambda: hybrid(mx(), mx()), grad_output=mx),
    ),
    case(
        "an NVFP4 backward pass under MXFP8 inputs",
        "QR303",
        pair(
            input=mx,
            weight=lambda: hybrid(mx(), NVFP4Quantizer()),
            grad_output=lambda: NVFP4Quantizer(stochastic_rounding=True),
        ),
        pair(
            input=lambda: hybrid(mx(), NVFP4Quantizer()),
            weight=lambda: hybrid(mx(), NVFP4Quantizer()),
            grad_output=lambda: NVFP4Quantizer(stochastic_rounding=True),
        ),
    ),
    case(
        "the Hadamard transform on the input only",
        "QR304",
        pair(
            input=rht,
            weight=lambda: NVFP4Quantizer(with_2d_quantization=True),
            grad_output=lambda: NVFP4Quantizer(stochastic_rounding=True),
        ),
        planned(one_layer, nvfp4_factory),
    ),
    case(
        "two Hadamard transforms with different signs",
        "QR304",
        pair(
            input=lambda: rht(signs=False),
            weight=lambda: NVFP4Quantizer(with_2d_quantization=True),
            grad_output=lambda: rht(sr=True),
        ),
        pair(
            input=lambda: rht(signs=False),
            weight=lambda: NVFP4Quantizer(with_2d_quantization=True),
            grad_output=lambda: rht(signs=False, sr=True),
        ),
    ),
    case(
        "square blocks for activations too",
        "QR305",
        pair(input=lambda: block(2), weight=lambda: block(2), grad_output=lambda: block(1)),
        planned(one_layer, float8_block_scaling_factory),
    ),
    case(
        "quantized weights, inputs left alone",
        "QR306",
        pair(input=IdentityQuantizer, weight=mx, grad_output=mx),
        planned(one_layer, mxfp8_factory),
    ),
    case(
        "high precision for an output that a GEMM is to quantize",
        "QR307",
        planned(quantized_output, identity_outside),
        planned(quantized_output, lambda role: fp8(E4M3)),
    ),
    case(
        "one expert in four in another format",
        "QR206 QR302 QR303 QR308 QR312",
        planned(fused_experts, every_fourth_expert()),
        planned(fused_experts, mxfp8_factory),
    ),
    case(
        "E5M2 in both passes",
        "QR309 QR311",
        planned(one_layer, lambda role: fp8(E5M2)),
        planned(one_layer, current_scaling_factory),
    ),
    case(
        "E5M2 for MXFP8 gradients",
        "QR310",
        pair(input=mx, weight=mx, grad_output=lambda: MXFP8Quantizer(E5M2)),
        planned(one_layer, mxfp8_factory),
    ),
    case(
        "E5M2 weights",
        "QR311",
        pair(
            input=lambda: fp8(E4M3),
            weight=lambda: fp8(E5M2),
            grad_output=lambda: fp8(E4M3),
        ),
        planned(one_layer, current_scaling_factory),
    ),
    case(
        "NVFP4 gradients rounded to nearest",
        "QR312",
        planned(one_layer, lambda role: NVFP4Quantizer()),
        pair(
            input=NVFP4Quantizer,
            weight=NVFP4Quantizer,
            grad_output=lambda: NVFP4Quantizer(stochastic_rounding=True),
        ),
    ),
    case(
        "stochastic rounding everywhere",
        "QR313",
        planned(one_layer, lambda role: NVFP4Quantizer(stochastic_rounding=True)),
        planned(one_layer, nvfp4_factory),
    ),
]
