"""Attention whose tensors are quantized: QKV, S and O forward, dO, dP and dQKV backward.

Arithmetic is fp32 between the quantizations, as in a fused kernel. Query, key and value share one
quantization where the format has one scale per tensor. Where it has blocks (MXFP8), every product
reads the representation whose blocks run along the dimension that it sums over, and S and dP are
left alone: the kernel keeps them to itself.

=======  =====================  ======================  ==================================
slot     tensor                 quantized               read by
=======  =====================  ======================  ==================================
qkv      query, key, value      before the products     `q k^T`, `s v`, and their gradients
s        attention weights      after dropout           `s v`, gradient of v
o        output                 at the end              the next module
do       gradient of output     at the beginning        gradients of s and v
dp       gradient of logits     after the softmax's     gradients of q and k
dqkv     gradients of q, k, v   at the end              the previous module
=======  =====================  ======================  ==================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from qrole.errors import OperandError
from qrole.modules.attention.core import masked_softmax
from qrole.modules.fake_quantize import fake_quantize
from qrole.quantizers import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    IdentityQuantizer,
    MXFP8Quantizer,
)
from qrole.quantizers.base import Quantizer

__all__ = [
    "BACKWARD_INDEX",
    "FORWARD_INDEX",
    "AttentionQuantizers",
    "QuantizedInputs",
    "attend_quantized",
]

#: Slots that are read, of the nine forward and six backward ones.
FORWARD_INDEX: dict[str, int] = {"qkv": 2, "o": 3, "s": 8}
BACKWARD_INDEX: dict[str, int] = {"dqkv": 0, "do": 3, "dp": 5}

_ALLOWED = (Float8Quantizer, Float8CurrentScalingQuantizer, MXFP8Quantizer)
_TE_NAMES = {"qkv": "QKV", "o": "O", "s": "S", "dqkv": "dQKV", "do": "dO", "dp": "dP"}


@dataclass(frozen=True)
class AttentionQuantizers:
    """The quantizers of one attention; None leaves a tensor alone, as MXFP8 does S and dP."""

    qkv: Quantizer | None
    o: Quantizer | None
    s: Quantizer | None
    dqkv: Quantizer | None
    do: Quantizer | None
    dp: Quantizer | None

    @classmethod
    def of(
        cls, quantizers: Mapping[str, Sequence[Any]], *, partial: bool = False
    ) -> AttentionQuantizers:
        """From the slots `scaling_fwd` and `scaling_bwd`; otherwise as `from_slots`."""
        forward, backward = quantizers["scaling_fwd"], quantizers["scaling_bwd"]
        found = {name: forward[i] for name, i in FORWARD_INDEX.items()}
        found |= {name: backward[i] for name, i in BACKWARD_INDEX.items()}
        return cls.from_slots(found, partial=partial)

    @classmethod
    def from_slots(cls, given: Mapping[str, Any], *, partial: bool = False) -> AttentionQuantizers:
        """From the six slots that are read.

        Args:
            given: Quantizers by the names of the fields.
            partial: Tensors may stay in high precision, which TransformerEngine refuses.

        Raises:
            OperandError: One is of a format that FP8 attention cannot use.
        """
        found = dict(given)
        if partial:
            found = {n: None if isinstance(q, IdentityQuantizer) else q for n, q in found.items()}
        deciding = [found["qkv"]] if found["qkv"] is not None else list(found.values())
        if any(isinstance(quantizer, MXFP8Quantizer) for quantizer in deciding):
            found["s"] = found["dp"] = None
        for field in fields(cls):
            _check_format(field.name, found[field.name])
        return cls(**found)

    @property
    def blocked(self) -> bool:
        """Row-wise and column-wise data differ (MXFP8)."""
        quantizers = (self.qkv, self.o, self.dqkv, self.do)
        deciding = (self.qkv,) if self.qkv is not None else quantizers
        return any(isinstance(quantizer, MXFP8Quantizer) for quantizer in deciding)

    @property
    def quantize(self) -> bool:
        """Whether any of them does."""
        return any(getattr(self, field.name) is not None for field in fields(self))


def _check_format(name: str, quantizer: object) -> None:
    if quantizer is None or isinstance(quantizer, _ALLOWED):
        return
    raise OperandError(
        "FP8 attention requires FP8-compatible quantizers for all DPA tensor slots, but "
        f"{_TE_NAMES[name]} quantizer is {type(quantizer).__name__}",
        expected="Float8Quantizer (delayed scaling), Float8CurrentScalingQuantizer or "
        "MXFP8Quantizer",
        hint="return one of them for every role of module_type 'dpa' and for the boundary roles of "
        "attention, or switch fp8_dpa off",
    )


class _Pair(NamedTuple):
    """One tensor as its row-wise and its column-wise data stand for it, in fp32."""

    row: Tensor
    col: Tensor


def _pair(x: Tensor, quantizer: Quantizer) -> _Pair:
    quantizer.set_usage(rowwise=True, columnwise=True)
    quantized = quantizer(x.contiguous())
    return _Pair(
        quantized.dequantize(torch.float32, "rowwise"),
        quantized.dequantize(torch.float32, "columnwise"),
    )


def _together(tensors: Sequence[Tensor], quantizer: Quantizer) -> list[_Pair]:
    """Each tensor quantized; all of them at once where the format has one scale per tensor."""
    if isinstance(quantizer, MXFP8Quantizer):
        return [_pair(x, quantizer) for x in tensors]
    width = math.gcd(*(x.shape[-1] for x in tensors))
    rows = torch.cat([x.reshape(-1, width) for x in tensors])
    quantizer.set_usage(rowwise=True, columnwise=False)
    values = quantizer(rows).dequantize(torch.float32, "rowwise")
    parts = torch.split(values, [x.numel() // width for x in tensors])
    return [
        _Pair(part.view(x.shape), part.view(x.shape))
        for part, x in zip(parts, tensors, strict=True)
    ]


class _QuantizeQKV(torch.autograd.Function):
    """(q, k, v) to their row-wise and column-wise values; gradients quantized together.

    The gradient of a tensor's forward values is the tensor's: `q.row`, `k.row`, `v.col`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        quantizer: Quantizer | None,
        grad_quantizer: Quantizer | None,
    ) -> tuple[Tensor, ...]:
        ctx.quantizer, ctx.dtype = grad_quantizer, q.dtype
        if quantizer is None:
            qp, kp, vp = (_Pair(x.float(), x.float()) for x in (q, k, v))
        else:
            qp, kp, vp = _together((q, k, v), quantizer)
        rest = (qp.col.detach(), kp.col.detach(), vp.row.detach())
        ctx.mark_non_differentiable(*rest)
        return (qp.row, kp.row, vp.col, *rest)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        given = [grad.to(ctx.dtype) for grad in grads[:3]]
        if ctx.quantizer is not None:
            given = [pair.row.to(ctx.dtype) for pair in _together(given, ctx.quantizer)]
        return (*given, None, None)


class _Product(torch.autograd.Function):
    """`a @ b` whose gradients read other representations of `a` and `b` than the product does."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, a_saved: Tensor, b_saved: Tensor, grad: Quantizer | None
    ) -> Tensor:
        ctx.save_for_backward(a_saved, b_saved)
        ctx.quantizer = grad
        return torch.matmul(a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        pair = _Pair(grad, grad) if ctx.quantizer is None else _pair(grad, ctx.quantizer)
        return torch.matmul(pair.row, b.mT), torch.matmul(a.mT, pair.col), None, None, None


@dataclass(frozen=True)
class QuantizedInputs:
    """Queries, keys and values in fp32 as the two products and their gradients read them.

    Attributes:
        q_row: (..., Q, D), differentiable, as are `k_row` and `v_col`.
        k_row: (..., K, D).
        v_col: (..., K, Dv).
        q_col: For the gradient of the keys.
        k_col: For the gradient of the queries.
        v_row: For the gradient of the weights.
        quantizers: Of the six slots.
    """

    q_row: Tensor
    k_row: Tensor
    v_col: Tensor
    q_col: Tensor
    k_col: Tensor
    v_row: Tensor
    quantizers: AttentionQuantizers

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        quantizers: AttentionQuantizers,
        *,
        quantize_qkv: bool = True,
        quantize_dqkv: bool = True,
    ) -> QuantizedInputs:
        """Quantizes the three, and their gradients on the way back; keys are repeated for groups.

        Args:
            q: (..., Q, D), (B, H, Q, D) where there are groups.
            k: (..., K, D); fewer heads in dimension 1 than queries have are groups.
            v: (..., K, Dv), likewise.
            quantizers: Of the six slots.
            quantize_qkv: False where the three are quantized already.
            quantize_dqkv: False where the caller quantizes their gradients.
        """
        rows = _QuantizeQKV.apply(  # type: ignore[no-untyped-call]
            q,
            k,
            v,
            quantizers.qkv if quantize_qkv else None,
            quantizers.dqkv if quantize_dqkv else None,
        )
        q_row, k_row, v_col, q_col, k_col, v_row = (_for_all_heads(x, q) for x in rows)
        return cls(q_row, k_row, v_col, q_col, k_col, v_row, quantizers)

    def logits(self) -> Tensor:
        """`q k^T`, (..., Q, K), neither scaled nor masked."""
        made: Tensor = _Product.apply(self.q_row, self.k_row.mT, self.q_col, self.k_col.mT, None)  # type: ignore[no-untyped-call]
        return made

    def context(self, weights: Tensor) -> Tensor:
        """`s v` in fp32, (..., Q, Dv), of attention weights in fp32, (..., Q, K)."""
        weights = fake_quantize(weights, self.quantizers.s)
        grad = self.quantizers.do if self.quantizers.blocked else None
        made: Tensor = _Product.apply(weights, self.v_col, weights, self.v_row, grad)  # type: ignore[no-untyped-call]
        return made


def _for_all_heads(x: Tensor, q: Tensor) -> Tensor:
    groups = q.shape[1] // x.shape[1] if q.dim() == 4 else 1
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)


def attend_quantized(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    quantizers: AttentionQuantizers,
    *,
    scale: float,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    sink: Tensor | None = None,
    quantize_qkv: bool = True,
    quantize_dqkv: bool = True,
) -> Tensor:
    """As `core.attend`, quantized up to but not including O, and dO where it has no blocks.

    Args:
        q: (B, H, Q, D).
        k: (B, G, K, D) with G dividing H.
        v: (B, G, K, Dv).
        quantizers: Of the six slots.
        scale: Of the scores.
        mask: True where a position takes no part.
        bias: Added to the scaled scores.
        dropout: Probability of dropping an attention weight.
        sink: Logit per head that joins every row's softmax.
        quantize_qkv: False where q, k and v are quantized already.
        quantize_dqkv: False where the caller quantizes their gradients.

    Returns:
        (B, H, Q, Dv) in q's dtype.
    """
    inputs = QuantizedInputs.of(
        q, k, v, quantizers, quantize_qkv=quantize_qkv, quantize_dqkv=quantize_dqkv
    )
    logits = inputs.logits() * scale
    logits = logits if bias is None else logits + bias
    logits = fake_quantize(logits, None, quantizers.dp)
    weights = F.dropout(masked_softmax(logits, mask, sink), dropout)
    return inputs.context(weights).to(q.dtype)
