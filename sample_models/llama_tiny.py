"""A small Llama-like decoder: grouped-query attention, SwiGLU, RMSNorm, rotary, tied head.

Shapes: B batch, T tokens, D model width, H query heads, G key/value heads, E head width.
"""

import torch
import torch.nn.functional as F
from torch import nn

_VOCAB, _WIDTH, _LAYERS, _HEADS, _KV_HEADS, _HIDDEN = 512, 128, 4, 4, 2, 384


class Attention(nn.Module):
    """Causal self-attention with fewer key/value heads than query heads."""

    def __init__(self) -> None:
        super().__init__()
        self.head_width = _WIDTH // _HEADS
        self.q_proj = nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.k_proj = nn.Linear(_WIDTH, _KV_HEADS * self.head_width, bias=False)
        self.v_proj = nn.Linear(_WIDTH, _KV_HEADS * self.head_width, bias=False)
        self.o_proj = nn.Linear(_WIDTH, _WIDTH, bias=False)

    def _heads(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return x_BTD.unflatten(-1, (-1, self.head_width)).transpose(1, 2)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        q_BHTE = _rotate(self._heads(self.q_proj(x_BTD)))
        k_BGTE = _rotate(self._heads(self.k_proj(x_BTD)))
        v_BGTE = self._heads(self.v_proj(x_BTD))
        o_BHTE = F.scaled_dot_product_attention(
            q_BHTE, k_BGTE, v_BGTE, is_causal=True, enable_gqa=True
        )
        return self.o_proj(o_BHTE.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(_WIDTH, _HIDDEN, bias=False)
        self.up_proj = nn.Linear(_WIDTH, _HIDDEN, bias=False)
        self.down_proj = nn.Linear(_HIDDEN, _WIDTH, bias=False)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))


class Block(nn.Module):
    """Pre-norm decoder block."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(_WIDTH)
        self.self_attn = Attention()
        self.post_attention_layernorm = nn.RMSNorm(_WIDTH)
        self.mlp = MLP()

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD))
        return x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))


class TinyLlama(nn.Module):
    """Token ids (B, T) to logits (B, T, V)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(_VOCAB, _WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(_LAYERS))
        self.norm = nn.RMSNorm(_WIDTH)
        self.lm_head = nn.Linear(_WIDTH, _VOCAB, bias=False)
        self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        x_BTD = self.embed_tokens(tokens_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        return self.lm_head(self.norm(x_BTD))


def _rotate(x_BHTE: torch.Tensor) -> torch.Tensor:
    tokens, width = x_BHTE.shape[-2:]
    rate = 10_000.0 ** (-torch.arange(0, width, 2, device=x_BHTE.device) / width)
    angle = torch.arange(tokens, device=x_BHTE.device)[:, None] * rate
    even, odd = x_BHTE[..., 0::2], x_BHTE[..., 1::2]
    cos, sin = angle.cos(), angle.sin()
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
    return turned.flatten(-2).to(x_BHTE.dtype)


def build() -> nn.Module:
    """The model, seeded, in eval mode."""
    torch.manual_seed(0)
    model = TinyLlama()
    nn.init.normal_(model.embed_tokens.weight, std=0.05)
    return model.eval()


def example_inputs() -> tuple[torch.Tensor]:
    """Token ids of shape (2, 64)."""
    generator = torch.Generator().manual_seed(1)
    return (torch.randint(0, _VOCAB, (2, 64), generator=generator),)


def loss(logits_BTV: torch.Tensor, batch: tuple[torch.Tensor]) -> torch.Tensor:
    """Next-token cross-entropy."""
    return F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), batch[0][:, 1:].flatten())
