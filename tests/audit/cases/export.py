"""Mistakes of models that are to be served."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from qrole import IdentityQuantizer, MXFP4Quantizer, MXFP8Quantizer, NVFP4Quantizer, QuantizerRole
from qrole.auditing import Engine
from qrole.dtypes import DType
from qrole.factories.builtin import mxfp8_factory, nvfp4_factory
from qrole.quantizers import Quantizer
from tests.audit.building import case, decoder, fused_experts, planned, tree

E4M3 = DType.kFloat8E4M3


def except_for(*names: str, other: Callable[[], Quantizer] = IdentityQuantizer) -> Any:
    """MXFP8, but for layers whose names end like this."""

    def factory(role: QuantizerRole) -> Any:
        return other() if role.name.endswith(names) else MXFP8Quantizer(E4M3)

    return factory


def with_head() -> nn.Module:
    return tree(fc=(256, 256), lm_head=(512, 256))


def with_router() -> nn.Module:
    return tree(mlp__gate=(64, 256), mlp__experts__0__up_proj=(256, 256))


def with_gate() -> nn.Module:
    """A gated MLP whose `gate` is no router."""
    return tree(mlp__gate=(256, 256), mlp__up=(256, 256))


def with_embedding() -> nn.Module:
    return tree(wpe=(256, 256), fc=(256, 256))


def tied_head() -> nn.Module:
    root = tree(fc=(256, 256), lm_head=(512, 256))
    embedding = nn.Embedding(512, 256, device="meta", dtype=torch.bfloat16)
    embedding.weight = root.lm_head.weight
    root.add_module("embed_tokens", embedding)
    return root


def diffusion_attention() -> nn.Module:
    return tree(**{f"attn__to_{name}": (256, 256) for name in "qkv"}, attn__to_out=(256, 256))


def down_in(other: Callable[[], Quantizer]) -> Any:
    return except_for("experts.down_proj", other=other)


def row_scaled(role: QuantizerRole) -> Any:
    return NVFP4Quantizer(row_scaled_nvfp4=True)


CASES = [
    case(
        "the output head like any other layer",
        "QR501",
        planned(with_head, mxfp8_factory),
        planned(with_head, except_for("lm_head")),
    ),
    case(
        "the router like the rest of its block",
        "QR502",
        planned(with_router, mxfp8_factory),
        planned(with_router, except_for("mlp.gate")),
        also="QR107",
    ),
    case(
        "a router taken for the gate of an MLP",
        "QR107 QR502",
        planned(with_router, mxfp8_factory),
        planned(with_gate, mxfp8_factory),
    ),
    case(
        "a position embedding that is a linear layer",
        "QR503",
        planned(with_embedding, mxfp8_factory),
        planned(with_embedding, except_for("wpe")),
    ),
    case(
        "a tied head is quantized",
        "QR501 QR504",
        planned(tied_head, mxfp8_factory),
        planned(tied_head, except_for("lm_head")),
    ),
    case(
        "q in another format than k and v",
        "QR505",
        planned(decoder, except_for("q_proj")),
        planned(decoder, except_for("q_proj", "k_proj", "v_proj")),
    ),
    case(
        "gate kept, up quantized",
        "QR505",
        planned(decoder, except_for("gate_proj")),
        planned(decoder, except_for("gate_proj", "up_proj")),
    ),
    case(
        "to_q in another format than to_k and to_v",
        "QR505",
        planned(diffusion_attention, except_for("to_q")),
        planned(diffusion_attention, except_for("to_out")),
    ),
    case(
        "down projections of experts kept",
        "QR506",
        planned(fused_experts, down_in(IdentityQuantizer)),
        planned(fused_experts, except_for("o_proj")),
    ),
    case(
        "MXFP4 for SGLang",
        "QR509",
        planned(
            decoder,
            except_for("down_proj", other=MXFP4Quantizer),
            engines=(Engine.SGLANG,),
            inference=True,
        ),
        planned(
            decoder,
            except_for("down_proj", other=MXFP4Quantizer),
            engines=(Engine.VLLM,),
            inference=True,
        ),
    ),
    case(
        "NVFP4 experts for transformers",
        "QR509",
        planned(
            fused_experts,
            lambda role: NVFP4Quantizer(),
            engines=(Engine.TRANSFORMERS,),
            inference=True,
        ),
        planned(
            fused_experts,
            lambda role: NVFP4Quantizer(),
            engines=(Engine.VLLM, Engine.SGLANG),
            inference=True,
        ),
    ),
    case(
        "a training format that no checkpoint holds",
        "QR510",
        planned(decoder, row_scaled, inference=True),
        planned(decoder, nvfp4_factory, inference=True),
    ),
]
