"""A model of TransformerEngine's modules: a layer, experts behind a router, fusible ops."""

import torch
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import CustomRecipe
from transformer_engine.pytorch.custom_recipes.quantizer_factories import nvfp4_factory

HIDDEN, EXPERTS = 64, 2


class Model(torch.nn.Module):
    def __init__(self, device="cuda"):
        super().__init__()
        self.layer = te.TransformerLayer(
            HIDDEN,
            2 * HIDDEN,
            4,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            name="layer0",
            device=device,
        )
        self.router = torch.nn.Linear(HIDDEN, EXPERTS)
        self.experts = te.GroupedLinear(
            EXPERTS, HIDDEN, HIDDEN, bias=False, name="experts", device=device
        )
        self.head = te.ops.Sequential(
            te.ops.Linear(HIDDEN, HIDDEN, device=device),
            te.ops.GELU(),
            te.ops.Linear(HIDDEN, 32, device=device),
        )

    def forward(self, x):
        with te.autocast(enabled=True, recipe=CustomRecipe(qfactory=nvfp4_factory)):
            x = self.layer(x)
            tokens = x.reshape(-1, HIDDEN)
            order = self.router(tokens).argmax(1).argsort(stable=True)
            half = tokens.shape[0] // EXPERTS
            tokens = self.experts(tokens[order], [half] * EXPERTS)
            return self.head(tokens)


def build():
    torch.manual_seed(0)
    return Model()


def example_inputs():
    return (torch.randn(16, 2, HIDDEN),)
