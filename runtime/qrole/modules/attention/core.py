"""Attention in high precision on (B, H, S, D) tensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["attend", "largest_logits", "masked_softmax"]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    causal: bool = False,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    sink: Tensor | None = None,
) -> Tensor:
    """`softmax(scale * q k^T + bias) v`, by torch's own kernels where they can.

    Args:
        q: (B, H, Q, D).
        k: (B, G, K, D) with G dividing H.
        v: (B, G, K, Dv).
        scale: Of the scores.
        mask: True where a position takes no part; broadcasts to (B, H, Q, K).
        causal: The causal triangle aligned top left, instead of a mask.
        bias: Added to the scaled scores; broadcasts to (B, H, Q, K).
        dropout: Probability of dropping an attention weight.
        sink: Logit per head that joins every row's softmax, (H,); None for none.

    Returns:
        (B, H, Q, Dv). Rows whose every position is masked are zero.
    """
    if sink is not None:
        return _attend_with_sink(q, k, v, scale, mask, causal, bias, dropout, sink)
    allowed = None if mask is None else ~mask
    if bias is not None:
        allowed = (
            bias.to(q.dtype) if mask is None else bias.to(q.dtype).masked_fill(mask, -torch.inf)
        )
        if causal:
            allowed = allowed.masked_fill(_triangle(q, k), -torch.inf)
    out = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=allowed,
        dropout_p=dropout,
        is_causal=causal and bias is None,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out if mask is None else out.masked_fill(mask.all(dim=-1, keepdim=True), 0.0)


def _attend_with_sink(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask: Tensor | None,
    causal: bool,
    bias: Tensor | None,
    dropout: float,
    sink: Tensor,
) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    logits = torch.matmul(q, k.mT).float() * scale
    if bias is not None:
        logits = logits + bias
    mask = _triangle(q, k) if causal else mask
    weights = F.dropout(masked_softmax(logits, mask, sink), dropout)
    return torch.matmul(weights.to(v.dtype), v)


def _triangle(q: Tensor, k: Tensor) -> Tensor:
    shape = (q.shape[-2], k.shape[-2])
    return torch.ones(shape, dtype=torch.bool, device=q.device).triu(diagonal=1)


def masked_softmax(logits: Tensor, mask: Tensor | None, sink: Tensor | None = None) -> Tensor:
    """Softmax over keys in fp32; zero at masked positions and in rows that are all masked.

    Args:
        logits: (B, H, Q, K), fp32.
        mask: True where a position takes no part; broadcasts to the logits.
        sink: Logit per head that joins every row's softmax, (H,).
    """
    if mask is not None:
        logits = logits.masked_fill(mask, torch.finfo(logits.dtype).min)
    if sink is None:
        weights = torch.softmax(logits, dim=-1)
    else:
        column = sink.float().view(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
        weights = torch.softmax(torch.cat([logits, column], dim=-1), dim=-1)[..., :-1]
    return weights if mask is None else weights.masked_fill(mask, 0.0)


@torch.no_grad()
def largest_logits(
    q: Tensor,
    k: Tensor,
    scale: float,
    mask: Tensor | None,
    causal: bool,
    bias: Tensor | None,
) -> Tensor:
    """The largest unmasked logit of each head, (H,); arguments as for `attend`."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    logits = torch.matmul(q, k.mT).float() * scale
    logits = logits if bias is None else logits + bias
    mask = _triangle(q, k) if causal else mask
    if mask is not None:
        logits = logits.masked_fill(mask, -torch.inf)
    return logits.amax(dim=(0, 2, 3))
