"""Train with a custom recipe on any device: the code is what TransformerEngine runs on a GPU.

Usage: python examples/train_step.py
"""

import torch

import qrole

WIDTH, HEADS, TOKENS, BATCH = 64, 4, 16, 2


def factory(role: qrole.QuantizerRole | None) -> qrole.Quantizer:
    """MXFP8 forward, gradients in E5M2, everything that leaves a module as it is."""
    if role is None or not role.tensor_type:
        return qrole.IdentityQuantizer()
    gradient = role.tensor_type == "grad_output"
    element = qrole.DType.kFloat8E5M2 if gradient else qrole.DType.kFloat8E4M3
    return qrole.MXFP8Quantizer(element)


def train(recipe: qrole.Recipe | None, steps: int = 6) -> list[float]:
    """The losses of a few steps, in high precision where there is no recipe."""
    torch.manual_seed(0)
    layer = qrole.TransformerLayer(WIDTH, 4 * WIDTH, HEADS, name="layer", layer_number=1)
    layer.train()
    optimizer = torch.optim.AdamW(layer.parameters(), lr=3e-3)
    x = torch.randn(TOKENS, BATCH, WIDTH)
    target = x.roll(1, 0)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with qrole.autocast(enabled=recipe is not None, recipe=recipe):
            loss = torch.nn.functional.mse_loss(layer(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Prints both loss curves side by side."""
    exact = train(None)
    quantized = train(qrole.CustomRecipe(qfactory=factory))
    print("step  high precision  quantized")
    for step, (one, two) in enumerate(zip(exact, quantized, strict=True)):
        print(f"{step:4}  {one:14.5f}  {two:9.5f}")


if __name__ == "__main__":
    main()
