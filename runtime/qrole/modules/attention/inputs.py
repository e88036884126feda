"""What attention is given, sorted out: packed tensors, padding, masks and biases."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qrole.errors import ConfigError, OperandError, UnknownNameError
from qrole.modules.attention.layout import Sequences, split_packed
from qrole.modules.attention.masks import (
    MaskRule,
    alibi_bias,
    alibi_slopes,
    attention_mask,
    padding_from_lengths,
)

__all__ = [
    "BIAS_TYPES",
    "Padding",
    "attention_bias",
    "one_of",
    "padding_of",
    "refuse",
    "sequences",
    "the_mask",
    "unpacked",
]

BIAS_TYPES: tuple[str, ...] = ("no_bias", "pre_scale_bias", "post_scale_bias", "alibi")


class Padding(NamedTuple):
    """True at padding, (B, Q) and (B, K)."""

    queries: Tensor
    keys: Tensor


def one_of(what: str, value: str, known: tuple[str, ...]) -> str:
    """The value; raises UnknownNameError where it is none of those known."""
    if value not in known:
        raise UnknownNameError(what, value, known)
    return value


def refuse(**given: object) -> None:
    """Raises ConfigError for a feature of TransformerEngine's attention that is not there."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(
                f"{name}={type(value).__name__} in attention",
                expected="None: qrole has no KV cache and no score modification",
                hint="run generation and flexible attention with TransformerEngine itself",
            )


def unpacked(
    qkv: Tensor | None,
    kv: Tensor | None,
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor | None,
    dim: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values from whichever way they were given in.

    Args:
        qkv: All three in one tensor.
        kv: Keys and values in one tensor.
        q: Queries.
        k: Keys.
        v: Values.
        dim: Along which the packed ones lie, -3 or -2.

    Raises:
        ConfigError: More than one way, or not all of one.
    """
    if qkv is not None and all(x is None for x in (kv, q, k, v)):
        first, second, third = split_packed(qkv, 3, dim)
        return first, second, third
    if qkv is None and q is not None:
        if kv is not None and k is None and v is None:
            second, third = split_packed(kv, 2, dim)
            return q, second, third
        if kv is None and k is not None and v is not None:
            return q, k, v
    raise ConfigError(
        "queries, keys and values in more than one way, or not all of them",
        expected="query_layer, key_layer and value_layer; or query_layer and kv_layer; or "
        "qkv_layer",
        hint="pass one of the three combinations",
    )


def sequences(cumulative: Tensor | None, padded: Tensor | None, longest: int | None) -> Sequences:
    """Where the sequences of a `thd` tensor lie; raises ConfigError without lengths."""
    if cumulative is None:
        raise ConfigError(
            "qkv_format='thd' without cu_seqlens_q and cu_seqlens_kv",
            expected="cu_seqlens_q and cu_seqlens_kv can not be None when qkv_format = thd",
            hint="pass cumulative lengths (B + 1,) of the sequences",
        )
    return Sequences.of(cumulative, padded, longest)


def padding_of(
    mask: Tensor | tuple[Tensor, Tensor] | None,
    cumulative: tuple[Tensor | None, Tensor | None],
    queries: int,
    keys: int,
) -> Padding:
    """Which positions are padding.

    Args:
        mask: True at padding, (B, 1, 1, S); a pair for cross attention.
        cumulative: Lengths (B + 1,) of queries and keys, where there is no mask.
        queries: Query positions.
        keys: Key positions.

    Raises:
        ConfigError: Neither was given.
        OperandError: The mask is not boolean.
    """
    if mask is not None:
        masks = mask if isinstance(mask, tuple) else (mask, mask)
        for one in masks:
            if one.dtype != torch.bool:
                raise OperandError(
                    f"an attention_mask of {one.dtype}",
                    expected="Attention mask must be in boolean type",
                    hint="True marks padding",
                )
        return Padding(*(one.flatten(1) for one in masks))
    lengths_q, lengths_k = (None if c is None else c[1:] - c[:-1] for c in cumulative)
    if lengths_q is None or lengths_k is None:
        raise ConfigError(
            "a padded attention mask type with neither attention_mask nor cu_seqlens",
            expected="attention_mask, or both cu_seqlens_q and cu_seqlens_kv",
            hint="use attn_mask_type='causal' or 'no_mask' for sequences of equal length",
        )
    return Padding(padding_from_lengths(lengths_q, queries), padding_from_lengths(lengths_k, keys))


def attention_bias(
    kind: str,
    bias: Tensor | None,
    slopes: Tensor | None,
    rule: MaskRule,
    q: Tensor,
    k: Tensor,
    *,
    scale: float,
    padding: Padding | None,
) -> Tensor | None:
    """What is added to the scaled scores.

    Args:
        kind: One of `BIAS_TYPES`.
        bias: For the two that have one; broadcasts to (B, H, Q, K).
        slopes: For ALiBi; its own where None.
        rule: Aligns ALiBi's diagonal.
        q: (B, H, Q, D).
        k: (B, G, K, D).
        scale: Of the scores.
        padding: As for the mask.

    Raises:
        ConfigError: A bias that the type has not, or none where it has one.
    """
    one_of("core_attention_bias_type", kind, BIAS_TYPES)
    if (bias is not None) != (kind in ("pre_scale_bias", "post_scale_bias")):
        raise ConfigError(
            f"core_attention_bias_type={kind!r} "
            f"{'with' if bias is not None else 'without'} core_attention_bias",
            expected="a bias for pre_scale_bias and post_scale_bias, and for no other type",
            hint="alibi makes its own bias from alibi_slopes",
        )
    if kind == "alibi":
        slopes = alibi_slopes(q.shape[1]) if slopes is None else slopes
        return alibi_bias(rule, slopes, q.shape[2], k.shape[2], q.device, padding)
    return bias * scale if bias is not None and kind == "pre_scale_bias" else bias


def the_mask(
    rule: MaskRule,
    given: Tensor | tuple[Tensor, Tensor] | None,
    q: Tensor,
    k: Tensor,
    padding: Padding | None,
) -> tuple[Tensor | None, bool]:
    """The mask of a rule; or none, and that it is the plain causal triangle.

    Raises:
        OperandError: `arbitrary` without a boolean mask.
    """
    if rule.plainly_causal:
        return None, True
    arbitrary = None
    if rule.kind == "arbitrary":
        if not isinstance(given, Tensor) or given.dtype != torch.bool:
            raise OperandError(
                f"attn_mask_type='arbitrary' with attention_mask={type(given).__name__}",
                expected="a boolean tensor, True where a position takes no part",
                hint="use attn_mask_type='no_mask' for none",
            )
        arbitrary = given
    shape = (q.shape[2], k.shape[2])
    return attention_mask(rule, *shape, q.device, padding=padding, arbitrary=arbitrary), False
