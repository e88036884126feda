"""A mixture of experts whose experts' weights are fused 3-D parameters, as transformers holds them.

Shapes: B batch, T tokens, N = B * T, D model width, X experts, I expert width.
"""

import torch
import torch.nn.functional as F
from torch import nn

_WIDTH, _EXPERTS, _TOP, _HIDDEN, _LAYERS, _VOCAB = 64, 8, 2, 96, 2, 256


class Router(nn.Module):
    """Scores each token against every expert and keeps the best ones."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(_EXPERTS, _WIDTH) * 0.1)

    def forward(self, x_ND: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        best = F.linear(x_ND, self.weight).softmax(-1).topk(_TOP, dim=-1)
        return best.values / best.values.sum(-1, keepdim=True), best.indices


class Experts(nn.Module):
    """All experts' SwiGLU weights: (X, 2 I, D) and (X, D, I)."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts, self.hidden_dim = _EXPERTS, _WIDTH
        self.gate_up_proj = nn.Parameter(torch.randn(_EXPERTS, 2 * _HIDDEN, _WIDTH) * 0.05)
        self.down_proj = nn.Parameter(torch.randn(_EXPERTS, _WIDTH, _HIDDEN) * 0.05)

    def forward(
        self, x_ND: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor
    ) -> torch.Tensor:
        y_ND = torch.zeros_like(x_ND)
        for expert in range(_EXPERTS):
            token, rank = torch.where(chosen == expert)
            if token.numel() == 0:
                continue
            gate, up = F.linear(x_ND[token], self.gate_up_proj[expert]).chunk(2, -1)
            out = F.linear(F.silu(gate) * up, self.down_proj[expert])
            y_ND = y_ND.index_add(0, token, out * weights[token, rank, None])
        return y_ND


class Block(nn.Module):
    """Router and experts around a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(_WIDTH)
        self.gate = Router()
        self.experts = Experts()

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        x_ND = self.norm(x_BTD).flatten(0, 1)
        return x_BTD + self.experts(x_ND, *self.gate(x_ND)).view_as(x_BTD)


class TinyMoE(nn.Module):
    """Token ids (B, T) to logits (B, T, V)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(_VOCAB, _WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(_LAYERS))
        self.lm_head = nn.Linear(_WIDTH, _VOCAB, bias=False)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        x_BTD = self.embed_tokens(tokens_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        return self.lm_head(x_BTD)


def build() -> nn.Module:
    """The model, seeded, in eval mode."""
    torch.manual_seed(0)
    return TinyMoE().eval()


def example_inputs() -> tuple[torch.Tensor]:
    """Token ids of shape (2, 32)."""
    return (torch.randint(0, _VOCAB, (2, 32), generator=torch.Generator().manual_seed(1)),)


def loss(logits_BTV: torch.Tensor, batch: tuple[torch.Tensor]) -> torch.Tensor:
    """Next-token cross-entropy."""
    return F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), batch[0][:, 1:].flatten())
