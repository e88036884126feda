"""TransformerEngine's constructor keywords that change no value on one device, as a table.

Every class below is one row: the keywords, and why they have no effect here. A module names the
rows that it accepts in its own class (`LinearKeywords`, ...), annotates its constructor with it,
and passes what it was given to `check_keywords`, which refuses every other keyword. So a model
written for TransformerEngine builds unchanged, and a misspelt keyword is still an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from qrole.errors import UnknownNameError

__all__ = [
    "ActivationKeywords",
    "AttentionKeywords",
    "BasicLinearKeywords",
    "BiasKeywords",
    "GroupedLinearKeywords",
    "GroupedOpKeywords",
    "LayerNormLinearKeywords",
    "LayerNormMLPKeywords",
    "LinearKeywords",
    "LinearOpKeywords",
    "MultiheadAttentionKeywords",
    "NormKeywords",
    "TransformerLayerKeywords",
    "check_keywords",
]


class _TensorParallel(TypedDict, total=False):
    """The layer is built whole on one device; a size above 1 or a group is warned of."""

    tp_group: Any
    tp_size: int
    sequence_parallel: bool
    get_rng_state_tracker: Callable[..., Any] | None


class _ParallelMode(TypedDict, total=False):
    """Which dimension tensor parallelism would split; the whole weight has neither split."""

    parallel_mode: str | None
    symmetric_ar_type: str | None


class _RngTracker(TypedDict, total=False):
    """Weights of a whole layer need no generator that differs by rank."""

    rng_tracker_name: str | None


class _Overlap(TypedDict, total=False):
    """Overlap of communication with GEMMs: timing only."""

    ub_overlap_ag: bool
    ub_overlap_rs: bool
    ub_overlap_rs_dgrad: bool
    ub_bulk_dgrad: bool
    ub_bulk_wgrad: bool


class _OverlapName(TypedDict, total=False):
    """Names the buffers of that overlap."""

    ub_name: str | None


class _WeightGradient(TypedDict, total=False):
    """Where and when the weight gradient is stored: here in `.grad`, in the backward pass."""

    fuse_wgrad_accumulation: bool


class _DelayedWeightGradient(TypedDict, total=False):
    """The gradient is there after the backward pass; `backward_dw()` has nothing left to do."""

    delay_wgrad_compute: bool


class _SavedInput(TypedDict, total=False):
    """Trades memory for a second quantization of equal result."""

    save_original_input: bool


class _WarmUp(TypedDict, total=False):
    """Sizes for compiling fused kernels in advance."""

    seq_length: int | None
    micro_batch_size: int | None


class _ParallelBlocks(TypedDict, total=False):
    """Chooses the split of the block's layers under tensor parallelism."""

    set_parallel_mode: bool


class _Recompute(TypedDict, total=False):
    """Recomputes activations in the backward pass: memory only."""

    checkpoint: bool


class _ContextParallel(TypedDict, total=False):
    """Attention sees the whole sequence on one device."""

    cp_group: Any
    cp_global_ranks: Any
    cp_stream: Any
    cp_comm_type: str


class _GroupedStorage(TypedDict, total=False):
    """How TransformerEngine stores the experts' parameters; here one parameter per expert."""

    single_grouped_weight: bool
    single_grouped_bias: bool


class _GroupedKernel(TypedDict, total=False):
    """Chooses the grouped GEMM's kernel."""

    use_grouped_tensor: bool | None


class _OpTensorParallel(TypedDict, total=False):
    """As the modules' tensor parallelism."""

    tensor_parallel_mode: str | None
    tensor_parallel_group: Any
    sequence_parallel: bool


class _OpRng(TypedDict, total=False):
    """As `get_rng_state_tracker`."""

    rng_state_tracker_function: Callable[..., Any] | None


class _OpWeightGradient(TypedDict, total=False):
    """As `fuse_wgrad_accumulation`."""

    accumulate_into_main_grad: bool


class _UserBuffers(TypedDict, total=False):
    """As the modules' overlap."""

    userbuffers_options: dict[str, Any] | None


class LinearKeywords(
    _TensorParallel,
    _ParallelMode,
    _RngTracker,
    _Overlap,
    _OverlapName,
    _WeightGradient,
    _DelayedWeightGradient,
    _SavedInput,
    total=False,
):
    """Accepted by `Linear`."""


class LayerNormLinearKeywords(
    _TensorParallel,
    _ParallelMode,
    _Overlap,
    _OverlapName,
    _WeightGradient,
    _DelayedWeightGradient,
    total=False,
):
    """Accepted by `LayerNormLinear`."""


class LayerNormMLPKeywords(
    _TensorParallel,
    _Overlap,
    _WeightGradient,
    _DelayedWeightGradient,
    _WarmUp,
    _ParallelBlocks,
    _Recompute,
    total=False,
):
    """Accepted by `LayerNormMLP`."""

    symmetric_ar_type: str | None


class GroupedLinearKeywords(
    _TensorParallel,
    _RngTracker,
    _OverlapName,
    _WeightGradient,
    _DelayedWeightGradient,
    _SavedInput,
    _GroupedStorage,
    _GroupedKernel,
    total=False,
):
    """Accepted by `GroupedLinear`."""

    parallel_mode: str | None
    ub_overlap_rs: bool
    ub_overlap_ag: bool


class AttentionKeywords(_TensorParallel, _ContextParallel, total=False):
    """Accepted by `DotProductAttention`."""


class MultiheadAttentionKeywords(
    _TensorParallel, _Overlap, _WeightGradient, _WarmUp, _ParallelBlocks, total=False
):
    """Accepted by `MultiheadAttention`."""


class TransformerLayerKeywords(MultiheadAttentionKeywords, total=False):
    """Accepted by `TransformerLayer`."""

    ub_tp_comm_overlap: bool


class LinearOpKeywords(_OpTensorParallel, _OpRng, _OpWeightGradient, total=False):
    """Accepted by `ops.Linear`."""


class BasicLinearKeywords(LinearOpKeywords, _UserBuffers, total=False):
    """Accepted by `ops.BasicLinear`."""


class GroupedOpKeywords(
    _OpRng, _OpWeightGradient, _DelayedWeightGradient, _GroupedStorage, total=False
):
    """Accepted by `ops.GroupedLinear`."""


class BiasKeywords(TypedDict, total=False):
    """Accepted by `ops.Bias`; the bias is whole, as the layer before it."""

    tensor_parallel: bool
    tensor_parallel_group: Any


class NormKeywords(TypedDict, total=False):
    """Accepted by the norms: multiprocessors that the kernel leaves free."""

    sm_margin: int | dict[str, int]


class ActivationKeywords(TypedDict, total=False):
    """Accepted by the scaled activations of the fused grouped MLP: memory only."""

    activation_recompute_in_mlp: bool


def check_keywords(module: str, accepted: type, given: Mapping[str, object]) -> None:
    """Refuses a keyword outside the table's row and warns of parallelism that is not done.

    Args:
        module: Class name of the module, for the message.
        accepted: One of the classes above.
        given: The keywords that the constructor does not name.

    Raises:
        UnknownNameError: TransformerEngine's module has no such keyword.
    """
    known: frozenset[str] = accepted.__optional_keys__  # type: ignore[attr-defined]
    for name in given:
        if name not in known:
            raise UnknownNameError(f"keyword of {module}", name, known)
    size = given.get("tp_size", 1)
    group = given.get("tp_group") or given.get("tensor_parallel_group") or given.get("cp_group")
    if size != 1 or group is not None:
        warnings.warn(
            f"{module}: the layer is built whole on one device; its shapes are those before "
            "tensor or context parallelism splits them",
            stacklevel=3,
        )
