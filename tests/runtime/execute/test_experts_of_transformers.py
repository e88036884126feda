"""MoE models of transformers, whichever way they multiply by their experts' weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from qrole.execute import executing, layers_of
from tests.runtime.execute.conftest import plan_of

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "num_experts_per_tok": 2,
}
DEEPSEEK = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 8},
    "Qwen3Moe": {"num_experts": 8, "moe_intermediate_size": 32, "head_dim": 16},
    "GptOss": {"num_local_experts": 8, "head_dim": 16},
    "DeepseekV3": DEEPSEEK,
    "Llama4": {"num_local_experts": 4, "num_experts_per_tok": 1, "head_dim": 16},
}


def _model(family: str, experts: str) -> nn.Module:
    config_class = "Llama4TextConfig" if family == "Llama4" else f"{family}Config"
    config = getattr(transformers, config_class)(**SIZES | FAMILIES[family])
    torch.manual_seed(0)
    cls = getattr(transformers, f"{family}ForCausalLM")
    options = {} if family == "Llama4" else {"experts_implementation": experts}
    model: nn.Module = cls._from_config(config, **options).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 3 or not p.any():  # Some are left uninitialized.
                p.normal_(0, 0.1)
    return model


def _step(family: str, experts: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and all gradients, every layer having run; rows are those that were routed."""
    model = _model(family, experts)
    plan = plan_of(model, "mxfp8")
    with executing(model, plan) as run:
        logits = model(input_ids=torch.arange(24)[None]).logits
        logits.square().mean().backward()
    assert run.never_ran() == []
    top_k = 4 if family == "Llama4" else 2  # Llama 4 gives every expert all tokens, many of them 0.
    for layer in layers_of(plan):
        if layer.copies > 1:
            assert sum(run.rows[(layer, e)] for e in range(layer.copies)) == 24 * top_k
    grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return logits.detach(), torch.cat(grads)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_implementation_computes_the_same(family: str) -> None:
    """The loop, the gathered and the grouped products are one computation."""
    logits, grads = _step(family, "eager")
    for experts in ("batched_mm", "grouped_mm") if family != "Llama4" else ():
        found = _step(family, experts)
        torch.testing.assert_close(found[0], logits, rtol=0, atol=1e-6)
        torch.testing.assert_close(found[1], grads, rtol=0, atol=1e-6)
