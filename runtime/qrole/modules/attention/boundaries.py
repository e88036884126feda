"""The tensors that attention and the projections around it hand to each other.

::

    forward    QKV projection --(QKV)--> attention --(O)-->  output projection
    backward   QKV projection <-(dQKV)-- attention <-(dO)--  output projection

Where the recipe has one handed over quantized, the slot that quantizes it bears its reader's role.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qrole.modules.base import QuantizedModule
from qrole.recipes import Recipe
from qrole.roles import QuantizerRole

__all__ = ["Boundaries", "boundaries_of", "name_readers"]


@dataclass(frozen=True)
class Boundaries:
    """Which tensors are handed over quantized.

    Attributes:
        qkv_output: Queries, keys and values.
        proj_grad: The gradient of attention's output.
        dpa_output: Attention's output, and the gradients of queries, keys and values.
    """

    qkv_output: bool = False
    proj_grad: bool = False
    dpa_output: bool = False


def boundaries_of(recipe: Recipe, *, rotary: bool, current: bool, blocked: bool) -> Boundaries:
    """Which tensors a recipe has handed over quantized.

    Args:
        recipe: The recipe.
        rotary: Queries and keys are rotated, in high precision, before attention.
        current: The QKV slot has current scaling, which no GEMM can write.
        blocked: It has MXFP8, whose blocks run along another dimension in attention.
    """
    output = recipe.fp8_mha or (recipe.fp8_dpa and not recipe.custom())
    output = output and not blocked
    return Boundaries(
        qkv_output=recipe.fp8_mha and not rotary and not current and not blocked,
        proj_grad=output and not current,
        dpa_output=output,
    )


def name_readers(
    boundaries: Boundaries,
    projections: Sequence[QuantizedModule],
    attention: QuantizedModule,
    proj: QuantizedModule,
) -> None:
    """Sets the role of every tensor that is handed over quantized, and unsets the others'.

    Args:
        boundaries: Which are.
        projections: Those that make queries, keys and values; the one that makes the queries
            first, which alone dQKV is named after.
        attention: The attention between them.
        proj: The output projection.
    """

    def role(on: bool, module_type: str, tensor_type: str, name: str) -> QuantizerRole | None:
        return QuantizerRole(module_type, tensor_type, name) if on else None

    for projection in projections:
        projection.output_quantizer_role = role(boundaries.qkv_output, "dpa", "qkv", attention.name)
    proj.grad_input_quantizer_role = role(boundaries.proj_grad, "dpa", "do", attention.name)
    attention.output_quantizer_role = role(boundaries.dpa_output, "linear", "input", proj.name)
    attention.grad_input_quantizer_role = role(
        boundaries.dpa_output, "linear", "grad_output", projections[0].name
    )
