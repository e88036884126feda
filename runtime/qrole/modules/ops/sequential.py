"""ops.Sequential: `torch.nn.Sequential` that runs neighbouring operations as one pipeline."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from qrole.modules.ops.operation import BasicOperation, FusibleOperation, run_operations

__all__ = ["Sequential"]


class Sequential(nn.Sequential):
    """Runs modules one after the other; operations that follow each other share quantizers."""

    def forward(self, input: Tensor, *extra_inputs: Tensor) -> Any:
        """Runs the modules.

        Args:
            input: Input of the first module.
            extra_inputs: What operations take besides, in their order.

        Returns:
            The last module's output, followed by what operations give besides.
        """
        x, given = input, list(extra_inputs)
        outputs: list[Tensor] = []
        for group in self._groups():
            if isinstance(group, nn.Module):
                x = group(x)
                continue
            count = sum(op.num_extra_inputs for op in group)
            result = run_operations(group, x, given[:count])
            given = given[count:]
            if isinstance(result, tuple):
                x, *more = result
                outputs += more
            else:
                x = result
        return (x, *outputs) if outputs else x

    def _groups(self) -> list[list[BasicOperation] | nn.Module]:
        """Runs of basic operations, and the modules between them."""
        groups: list[list[BasicOperation] | nn.Module] = []
        for module in self:
            if not isinstance(module, FusibleOperation):
                groups.append(module)
            elif groups and isinstance(groups[-1], list):
                groups[-1] += module.basic_operations
            else:
                groups.append(list(module.basic_operations))
        return groups
