"""From torch functions that multiply by a covered weight to products `x @ w.T`, and attention.

Every function here takes the intercepted call's own arguments and returns its result, or
NotImplemented where no operand is a covered weight in a position that it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from qrole.execute.gathers import Picked
from qrole.execute.layers import Match

if TYPE_CHECKING:
    from qrole.execute.run import Execution

__all__ = ["lowering_of"]


def _linear(
    run: Execution, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> Any:
    match = run.table.find(weight)
    if match is None or weight.dim() != 2:
        return NotImplemented
    return run.multiply(match, x, weight, bias)


def _matmul(run: Execution, left: torch.Tensor, right: torch.Tensor) -> Any:
    match = run.table.find(right)
    if match is not None:
        return _times(run, match, left, right)
    if run.table.find(left) is None or min(left.dim(), right.dim()) < 2:
        return NotImplemented
    weight = left.mT
    match = run.table.find(weight)
    if match is None:
        return NotImplemented
    flipped = _times(run, match, right.mT, weight)
    return flipped if flipped is NotImplemented else flipped.mT


def _rmatmul(run: Execution, right: torch.Tensor, left: torch.Tensor) -> Any:
    return _matmul(run, left, right)


def _times(run: Execution, match: Match, x: torch.Tensor, weight: torch.Tensor) -> Any:
    """Computes x @ weight: weight (K, N), or (E, K, N) with x (E, M, K)."""
    if weight.dim() == 2:
        return run.multiply(match, x, weight.t(), None)
    if weight.dim() != 3 or x.dim() != 3 or x.shape[0] != weight.shape[0] or not x.shape[0]:
        return NotImplemented
    if match.picked is not None:
        return _times_picked(run, match, x, match.picked)
    return torch.stack(
        [run.multiply(_expert(match, i), x[i], weight[i].t(), None) for i in range(weight.shape[0])]
    )


def _times_picked(run: Execution, match: Match, x_SMK: torch.Tensor, picked: Picked) -> Any:
    """Computes x[i] @ matrices[experts[i]] for every i, an expert's rows together."""
    experts = torch.tensor(picked.experts, device=x_SMK.device)
    order = torch.argsort(experts, stable=True)
    outputs = []
    for expert in sorted(set(picked.experts)):
        rows = torch.nonzero(experts == expert).flatten()
        weight = picked.matrices[expert].t()
        outputs.append(run.multiply(_expert(match, expert), x_SMK[rows], weight, None))
    return torch.cat(outputs)[torch.argsort(order)]


def _expert(match: Match, index: int) -> Match:
    return replace(match, copy=match.copy + index)


def _addmm(
    run: Execution,
    added: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Any:
    match = run.table.find(right)
    if match is not None and right.dim() == 2 and added.dim() == 1 and alpha == 1 and beta == 1:
        return run.multiply(match, left, right.t(), added)
    product = _matmul(run, left, right)
    return product if product is NotImplemented else beta * added + alpha * product


def _grouped_mm(
    run: Execution,
    x_SK: torch.Tensor,
    weight_EKN: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    **options: Any,
) -> Any:
    """Rows of x sorted by expert; `offs` holds the end of each expert's rows."""
    match = run.table.find(weight_EKN)
    if match is None or match.picked or offs is None or weight_EKN.dim() != 3 or x_SK.dim() != 2:
        return NotImplemented
    outputs, start = [], 0
    for expert, end in enumerate(offs.tolist()):
        if end > start:
            added = bias[expert] if bias is not None else None
            rows, weight = x_SK[start:end], weight_EKN[expert].t()
            outputs.append(run.multiply(_expert(match, expert), rows, weight, added))
            start = end
    rest = x_SK.shape[0] - start
    if rest or not outputs:
        outputs.append(x_SK.new_zeros(rest, weight_EKN.shape[2]))
    return torch.cat(outputs)


def _attention(run: Execution, *args: Any, **options: Any) -> Any:
    return run.attention.in_one_call(*args, **options)


def _einsum(run: Execution, equation: Any, *operands: Any) -> Any:
    if not isinstance(equation, str) or "." in equation:
        return NotImplemented
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    inputs, _, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != 2 or "->" not in equation:
        return NotImplemented
    match = run.table.find(operands[1])
    if match is None:
        match, terms, operands = run.table.find(operands[0]), terms[::-1], operands[::-1]
    if match is None or any(len(set(term)) != len(term) for term in terms):
        return NotImplemented
    return _contract(run, match, operands[0], terms[0], operands[1], terms[1], output)


def _contract(
    run: Execution,
    match: Match,
    x: torch.Tensor,
    x_term: str,
    weight: torch.Tensor,
    w_term: str,
    output: str,
) -> Any:
    """A two-operand contraction as one product per index of the batch dimensions."""
    shared = [c for c in w_term if c in x_term]
    batch = [c for c in shared if c in output]
    inner = [c for c in shared if c not in output]
    rows = [c for c in x_term if c not in shared]
    columns = [c for c in w_term if c not in shared]
    if len(batch) > 1 or not inner or not columns or set(batch + rows + columns) != set(output):
        return NotImplemented
    sizes = dict(zip(x_term, x.shape, strict=True)) | dict(zip(w_term, weight.shape, strict=True))
    x_parts = x.permute([x_term.index(c) for c in [*batch, *rows, *inner]])
    w_parts = weight.permute([w_term.index(c) for c in [*batch, *columns, *inner]])
    order = [*batch, *rows, *columns]
    if match.picked is not None:
        if not batch or len(columns) > 1 or len(inner) > 1:
            return NotImplemented
        seen = run.table.find(w_parts.mT)
        x_SMK = x_parts.flatten(1, -2) if rows else x_parts.unsqueeze(1)
        found = NotImplemented if seen is None else _times(run, seen, x_SMK, w_parts.mT)
        return found if found is NotImplemented else _arranged(found, order, sizes, output)
    pairs = list(zip(x_parts, w_parts, strict=True)) if batch else [(x_parts, w_parts)]
    results = []
    for i, (x_part, w_part) in enumerate(pairs):
        w_NK = w_part.flatten(0, len(columns) - 1).flatten(1)
        results.append(run.multiply(_expert(match, i), x_part.flatten(len(rows)), w_NK, None))
    found = torch.stack(results) if batch else results[0]
    return _arranged(found, order, sizes, output)


def _arranged(
    found: torch.Tensor, order: list[str], sizes: dict[str, int], output: str
) -> torch.Tensor:
    """A result whose elements lie in the order of some dimensions, as the equation's output."""
    return found.reshape([sizes[c] for c in order]).permute([order.index(c) for c in output])


Lowering = Callable[..., Any]

_LOWERINGS: dict[Any, Lowering] = {
    F.linear: _linear,
    torch.matmul: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
    torch.Tensor.__rmatmul__: _rmatmul,
    torch.mm: _matmul,
    torch.Tensor.mm: _matmul,
    torch.bmm: _matmul,
    torch.Tensor.bmm: _matmul,
    torch.addmm: _addmm,
    torch.Tensor.addmm: _addmm,
    torch.baddbmm: _addmm,
    torch.Tensor.baddbmm: _addmm,
    torch.einsum: _einsum,
    F.scaled_dot_product_attention: _attention,
}
_GROUPED = ("_grouped_mm", "grouped_mm", "grouped_mm_fallback")


def lowering_of(function: Any) -> Lowering | None:
    """The lowering of a torch function; None for one that is no matrix product."""
    found = _LOWERINGS.get(function)
    if found is None and getattr(function, "__name__", "").removesuffix(".default") in _GROUPED:
        return _grouped_mm
    return found
