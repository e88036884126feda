"""Mistakes of modules and their roles."""

from __future__ import annotations

from typing import Any

from torch import nn

from qrole import IdentityQuantizer, MXFP8Quantizer, QuantizerRole
from qrole.dtypes import DType
from qrole.factories.builtin import current_scaling_factory, mxfp8_factory
from qrole.modules import GroupedLinear, Linear
from qrole.roles import Direction, Slot
from tests.audit.building import FusedExperts, case, fused_experts, planned, tree


def two(first: str | None, second: str | None) -> nn.Module:
    return nn.ModuleList(
        Linear(256, 256, bias=False, device="meta", name=name) for name in (first, second)
    )


class Op(nn.Module):
    """A fusible operation: its name is an attribute that nobody has to set."""

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self.name = name
        self.weight = nn.Parameter(nn.Linear(256, 256, device="meta").weight)

    def num_quantizers(self, mode: str) -> int:
        return 2 if mode == "forward" else 1

    def get_quantizer_roles(self, mode: str) -> list[QuantizerRole] | None:
        types = ("input", "weight") if mode == "forward" else ("grad_output",)
        return [QuantizerRole("linear", tensor_type, self.name) for tensor_type in types]


class Bare(Op):
    """A module that forgot to say what its slots are."""

    def get_quantizer_roles(self, mode: str) -> list[QuantizerRole] | None:
        return None


class Boundary(Op):
    """An operation that was asked for a quantized output, with or without its reader's role."""

    def __init__(self, output: QuantizerRole | None) -> None:
        super().__init__("op")
        self.output = output

    def quantizer_slots(self, path: str) -> list[Slot]:
        forward = [
            QuantizerRole("linear", "input", "op"),
            QuantizerRole("linear", "weight", "op"),
            self.output,
        ]
        operands = ("input", "weight", "output")
        slots = [
            Slot(
                path,
                Direction.FORWARD,
                i,
                role,
                operand=operand,
                parameters=(f"{path}.weight",) if operand == "weight" else (),
            )
            for i, (role, operand) in enumerate(zip(forward, operands, strict=True))
        ]
        gradient = QuantizerRole("linear", "grad_output", "op")
        return [*slots, Slot(path, Direction.BACKWARD, 0, gradient, operand="grad_output")]


def listed(*modules: nn.Module) -> nn.Module:
    return nn.ModuleList(modules)


def listed_experts() -> nn.Module:
    layers = {f"mlp__experts__{i}__up": (256, 256) for i in range(2)}
    return tree(**layers, o_proj=(256, 256))


def grouped_experts() -> nn.Module:
    experts = GroupedLinear(4, 256, 256, bias=False, device="meta", name="experts")
    return nn.ModuleDict({"experts": experts, "o_proj": tree(fc=(256, 256)).fc})


def experts_in_mxfp8(role: QuantizerRole | None) -> Any:
    if role is not None and role.module_type == "grouped_linear":
        return MXFP8Quantizer(DType.kFloat8E4M3)
    return IdentityQuantizer()


def unknown_layout() -> nn.Module:
    root = fused_experts()
    root.mlp.experts = FusedExperts(("wi", "wo"))
    return root


def read_everything() -> nn.Module:
    return listed(Op("one"))


CASES = [
    case(
        "modules built without a name",
        "QR101",
        planned(lambda: two(None, "named"), mxfp8_factory),
        planned(lambda: two("first", "second"), mxfp8_factory),
    ),
    case(
        "an operation without a name",
        "QR102",
        planned(lambda: listed(Op()), mxfp8_factory),
        planned(lambda: listed(Op("op")), mxfp8_factory),
    ),
    case(
        "two layers of one name",
        "QR103",
        planned(lambda: two("proj", "proj"), mxfp8_factory),
        planned(lambda: two("proj_a", "proj_b"), mxfp8_factory),
    ),
    case(
        "answers for slots that nothing reads",
        "QR104",
        planned(lambda: two("first", "second"), mxfp8_factory),
        planned(read_everything, mxfp8_factory),
    ),
    case(
        "a quantized output whose reader is not named",
        "QR105",
        planned(lambda: listed(Boundary(None)), current_scaling_factory),
        planned(
            lambda: listed(Boundary(QuantizerRole("dpa", "qkv", "attn"))), current_scaling_factory
        ),
    ),
    case(
        "a module without a list of roles",
        "QR106 QR108",
        planned(lambda: listed(Bare()), mxfp8_factory),
        planned(lambda: listed(Op("op")), mxfp8_factory),
    ),
    case(
        "experts that say linear, a factory that asks for grouped_linear",
        "QR107 QR207 QR216",
        planned(listed_experts, experts_in_mxfp8),
        planned(grouped_experts, experts_in_mxfp8),
    ),
    case(
        "experts left out because they are fused in an unknown layout",
        "QR108",
        planned(unknown_layout, mxfp8_factory),
        planned(fused_experts, mxfp8_factory),
    ),
]
