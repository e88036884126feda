"""Attention of modules that know nothing of roles, by the plan's six quantizers.

`F.scaled_dot_product_attention` says in one call all that it does. Attention that is written out,
`softmax(q k^T ...) v`, is followed from its first product to its second. Only there are queries,
keys and values all known: they are quantized, and the steps between the products are taken again
from there. Attention weights that the module hands out beside its result are the first ones.

What cannot be computed so is left as it is, and the run's `readers` say why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from qrole.execute.attention_steps import Product, Steps, operands_of
from qrole.execute.repeated_heads import Repeat, repeated_by
from qrole.execute.storage_notes import StorageNotes
from qrole.modules.attention.fp8 import AttentionQuantizers, QuantizedInputs, attend_quantized
from qrole.modules.fake_quantize import fake_quantize

if TYPE_CHECKING:
    from qrole.execute.layers import Layer
    from qrole.execute.run import Execution

__all__ = ["AttentionRun"]


class AttentionRun:
    """Attention in one run of a model.

    Args:
        run: The run.
    """

    def __init__(self, run: Execution) -> None:
        self._run = run
        self._steps = Steps()
        self._forward = 0
        self._repeats: StorageNotes[Repeat] = StorageNotes()

    def end(self) -> None:
        """Lets go of what only a run that goes on needs."""
        self._steps = Steps()
        self._repeats.clear()

    def in_one_call(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Any:
        """What `F.scaled_dot_product_attention` gives; NotImplemented outside covered attention."""
        layer = self._run.table.running_attention()
        if layer is None or (is_causal and attn_mask is not None):  # torch refuses both at once.
            return NotImplemented
        if not layer.quantized:
            given = (query, key, value, attn_mask, dropout_p, is_causal)
            plain = F.scaled_dot_product_attention(*given, **options)
            self._run.saw_attention(layer, plain)
            return plain
        q, k, v = self._inputs(query, key, value)
        if _unsuited(q, k, v):
            return self._decline(layer, _unsuited(q, k, v), NotImplemented)
        mask, bias = _mask_and_bias(attn_mask)
        if is_causal:
            shape = (q.shape[-2], k.shape[-2])
            mask = torch.ones(shape, dtype=torch.bool, device=q.device).triu(diagonal=1)
        scale = options.get("scale")
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        quantizers = self._run.attention_quantizers(layer)
        with torch.autocast(q.device.type, enabled=False):
            out = attend_quantized(
                q, k, v, quantizers, scale=scale, mask=mask, bias=bias, dropout=dropout_p
            )
            return self._finished(layer, quantizers, out)

    def saw(self, function: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """Follows one function of the model; gives its result, or the quantized one instead."""
        layer = self._followed()
        if layer is None:
            return result
        repeat = repeated_by(function, args, kwargs, result)
        if repeat is not None:
            self._repeats.put(result, repeat)
        operands = operands_of(function, args, kwargs)
        if operands is not None:
            weights = self._steps.weights(operands.left)
            if weights is None:
                self._steps.begin(operands, result)
            elif isinstance(weights, str):
                return self._decline(layer, weights, result)
            else:
                return self._written_out(layer, weights.product, operands, result)
        else:
            reason = self._steps.take(function, args, kwargs, result)
            if reason:
                return self._decline(layer, reason, result)
        return result

    def lose(self, args: Any, kwargs: Any, result: Any) -> None:
        """A product by the weight of a layer, whose result cannot be made again."""
        if self._followed() is not None:
            self._steps.lose(args, kwargs, result)

    def _followed(self) -> Layer | None:
        """The attention that is running; what earlier ones computed is no longer followed."""
        table = self._run.table
        if table.attention_forwards != self._forward:
            self._steps, self._forward = Steps(), table.attention_forwards
        return table.running_attention()

    def _written_out(self, layer: Layer, product: Product, last: Any, plain: torch.Tensor) -> Any:
        """The second product of an attention, computed from the first one on if it is quantized."""
        if not layer.quantized:
            self._run.saw_attention(layer, plain)
            return plain
        q, k, v = self._inputs(product.left, product.right.mT, last.right)
        if _unsuited(q, k, v):
            return self._decline(layer, _unsuited(q, k, v), plain)
        quantizers = self._run.attention_quantizers(layer)
        with torch.autocast(q.device.type, enabled=False):
            inputs = QuantizedInputs.of(q, k, v, quantizers)

            def before_softmax(logits: torch.Tensor) -> torch.Tensor:
                return fake_quantize(logits, None, quantizers.dp)

            weights = self._steps.again(last.left, inputs.logits(), before_softmax)
            out = inputs.context(weights.float()).to(plain.dtype)
            return self._finished(layer, quantizers, out)

    def _inputs(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Tensors as they were before heads were repeated, in the dtype of products."""
        device = tensors[0].device.type
        originals = tuple(self._original(x) for x in tensors)
        if torch.is_autocast_enabled(device):
            return tuple(x.to(torch.get_autocast_dtype(device)) for x in originals)
        return originals

    def _original(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 4 and x.shape[1] > 1 and x.stride(1) == 0:
            return x[:, :1]
        repeat = self._repeats.get(x)
        return repeat.source if repeat is not None and repeat.made(x) else x

    def _finished(
        self, layer: Layer, quantizers: AttentionQuantizers, out: torch.Tensor
    ) -> torch.Tensor:
        grad = None if quantizers.blocked else quantizers.do
        self._run.saw_attention(layer, out)
        return fake_quantize(out, quantizers.o, grad)

    def _decline(self, layer: Layer, reason: str, result: Any) -> Any:
        self._run.readers.setdefault(layer, set()).add(reason)
        return result


def _unsuited(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str:
    """Why three tensors cannot be attended to; `""` where they can."""
    if not q.dim() == k.dim() == v.dim() >= 3:
        return "queries, keys and values of unequal dimensions"
    leading = {x.shape[0] if x.dim() == 4 else x.shape[:-2] for x in (q, k, v)}
    heads = [x.shape[1] if x.dim() == 4 else 1 for x in (q, k, v)]
    if len(leading) > 1 or heads[0] % heads[1] or heads[0] % heads[2]:
        return "queries, keys and values of unequal leading dimensions"
    return ""


def _mask_and_bias(
    given: torch.Tensor | None,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Where positions take no part, and what is added to the logits elsewhere."""
    if given is None or given.dtype == torch.bool:
        return None if given is None else ~given, None
    mask = torch.isneginf(given)
    return mask, given.masked_fill(mask, 0.0)
