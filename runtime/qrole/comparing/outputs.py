"""What a model returned, and the scalar that its backward pass starts from."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from qrole.errors import UsageError
from qrole.user_code import running_user_code

__all__ = [
    "Batch",
    "Objective",
    "OutputView",
    "call_model",
    "output_of",
    "running_forward",
]

Batch = tuple[Any, ...] | dict[str, Any]

_TENSOR_KEYS = ("logits", "last_hidden_state", "image_embeds", "pooler_output", "sample")
_READS_SCORES = frozenset({"cross_entropy", "log_softmax", "softmax"})
_KEEPS_SCORES = frozenset(
    {
        "__getitem__",
        "contiguous",
        "flatten",
        "float",
        "movedim",
        "narrow",
        "permute",
        "reshape",
        "squeeze",
        "to",
        "transpose",
        "unflatten",
        "unsqueeze",
        "view",
    }
)
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_NO_TARGET = -100


@dataclass(frozen=True)
class OutputView:
    """The tensor of a model's output that is compared.

    Attributes:
        tensor: The tensor.
        name: Where it was found: a key, an index, or `output`.
        loss: The loss that the model itself returned, or None.
    """

    tensor: torch.Tensor
    name: str
    loss: torch.Tensor | None = None


def call_model(model: Any, batch: Batch) -> Any:
    """One forward pass."""
    return model(**batch) if isinstance(batch, dict) else model(*batch)


def running_forward(model: Any) -> AbstractContextManager[None]:
    """Maps what the model's own code raises to UserCodeError, with the line in its file."""
    try:
        file = inspect.getsourcefile(type(model))
    except (OSError, TypeError):
        file = None
    return running_user_code(
        f"the forward pass of {type(model).__name__}",
        file,
        expected=f"inputs for forward({', '.join(inspect.signature(model.forward).parameters)})",
        hint="give inputs that it takes, or correct the line that the traceback names",
    )


def output_of(raw: Any) -> OutputView:
    """Finds the tensor to compare in whatever a model returned.

    Raises:
        UsageError: There is no floating-point tensor in it.
    """
    if isinstance(raw, torch.Tensor):
        return OutputView(raw, "output")
    items: Mapping[str, Any] = {}
    if isinstance(raw, Mapping):
        items = raw
    elif isinstance(raw, (tuple, list)):
        items = {str(i): value for i, value in enumerate(raw)}
    elif hasattr(raw, "__dict__"):
        items = vars(raw)
    loss = items.get("loss")
    for key in (*_TENSOR_KEYS, *(k for k in items if k not in ("loss", *_TENSOR_KEYS))):
        value = items.get(key)
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return OutputView(value, key, loss if isinstance(loss, torch.Tensor) else None)
    raise UsageError(
        f"the model returned a {type(raw).__name__} without a floating-point tensor",
        expected="a tensor, or a tuple, dict or dataclass that holds one",
        hint="return the tensor to compare first",
    )


class Objective:
    """Gives the scalar to differentiate, and learns whether the output is logits.

    In order of preference: the model file's `loss(outputs, batch)`; the loss that the model
    returned because the batch has labels; next-token cross-entropy for causal language models; a
    fixed random projection of the output, so that every output element has a gradient.

    Attributes:
        kind: Which of these was used: `loss function`, `model`, `next token`, `projection`.
        logits: The output is scores over classes.
    """

    def __init__(self, loss: Callable[[Any, Any], Any] | None, model: Any, seed: int) -> None:
        self._loss = loss
        self._causal = type(model).__name__.endswith(_CAUSAL)
        self._seed = seed
        self._projections: dict[tuple[int, ...], torch.Tensor] = {}
        self.kind = ""
        self.logits = False

    def __call__(self, raw: Any, output: OutputView, batch: Batch) -> torch.Tensor:
        """The scalar of one batch, differentiable."""
        self.logits = self.logits or output.name == "logits"
        if self._loss is not None:
            return self._of_user(raw, output, batch)
        if output.loss is not None:
            self.kind = "model"
            return output.loss
        tokens = _token_ids(batch)
        if self._causal and tokens is not None and output.tensor.shape[:2] == tokens.shape:
            self.kind, self.logits = "next token", True
            return _next_token(output.tensor, tokens, batch)
        self.kind = "projection"
        return self._project(output.tensor)

    def _of_user(self, raw: Any, output: OutputView, batch: Batch) -> torch.Tensor:
        assert self._loss is not None
        self.kind = "loss function"
        watcher = _CrossEntropyWatcher(output.tensor)
        file = getattr(getattr(self._loss, "__code__", None), "co_filename", None)
        with running_user_code("loss()", file), watcher:
            value = self._loss(raw, batch)
        self.logits = self.logits or watcher.seen
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            raise UsageError(
                f"loss() returned {type(value).__name__}",
                expected="a tensor with one element",
                hint="reduce the loss, for example with .mean()",
            )
        return torch.reshape(value, ())

    def _project(self, output: torch.Tensor) -> torch.Tensor:
        shape = tuple(output.shape)
        if shape not in self._projections:
            digest = hashlib.sha256(f"{self._seed}/{shape}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
            drawn = torch.randn(shape, generator=generator)
            self._projections[shape] = drawn.to(output.device)
        direction = self._projections[shape]
        projected: torch.Tensor = torch.sum(output.float() * direction)
        return projected / math.sqrt(direction.numel())


class _CrossEntropyWatcher(TorchFunctionMode):
    """Sees whether a tensor, sliced and reshaped as may be, is used as class scores."""

    def __init__(self, output: torch.Tensor) -> None:
        super().__init__()
        self._descended = [output]
        self.seen = False

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        first = args[0] if args else (kwargs or {}).get("input")
        if any(first is tensor for tensor in self._descended):
            name = getattr(function, "__name__", "")
            self.seen = self.seen or name in _READS_SCORES
            if name in _KEEPS_SCORES and isinstance(result, torch.Tensor):
                self._descended.append(result)
        return result


def _token_ids(batch: Batch) -> torch.Tensor | None:
    if not isinstance(batch, dict):
        return None
    tokens = batch.get("decoder_input_ids", batch.get("input_ids"))
    return tokens if isinstance(tokens, torch.Tensor) else None


def _next_token(logits: torch.Tensor, tokens: torch.Tensor, batch: Batch) -> torch.Tensor:
    # The last position has no target; to leave it out of the logits would copy all others.
    targets = F.pad(tokens[:, 1:], (0, 1), value=_NO_TARGET)
    assert isinstance(batch, dict)
    mask = batch.get("attention_mask")
    if isinstance(mask, torch.Tensor) and mask.shape == tokens.shape:
        targets[:, :-1].masked_fill_(mask[:, 1:] == 0, _NO_TARGET)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=_NO_TARGET)
