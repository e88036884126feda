"""QR3xx: operands that can't meet in a GEMM, or whose product is not what it should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from qrole.auditing.registry import Hit, Severity, check
from qrole.auditing.subject import GemmPair, Layer, PlanSubject, is_hybrid, source_of
from qrole.plans import Decision
from qrole.quantizers.base import OperandFormat
from qrole.roles import Gemm

_FP8 = ("fp8_tensor", "fp8_block", "mxfp8")


@check("QR301", Severity.ERROR)
def fprop_formats(subject: PlanSubject) -> Iterator[Hit]:
    """The forward GEMM meets two formats that can't be multiplied.

    fprop: y = x w^T reads the row-wise data of the input and of the weight. A GEMM kernel takes two
    operands of one scaling mode: per tensor, blocks of 128, MXFP8, MXFP4, or NVFP4.
    TransformerEngine does not check it when it builds the quantizers; the kernel fails in the first
    forward pass.

    Give `input` and `weight` the same family of formats in the row-wise direction.
    """
    yield from _mismatches(subject, Gemm.FPROP, "give input and weight one format row-wise")


@check("QR302", Severity.ERROR)
def dgrad_formats(subject: PlanSubject) -> Iterator[Hit]:
    """The input-gradient GEMM meets two formats that can't be multiplied.

    dgrad: dx = dy w reads the row-wise data of the gradient and the column-wise data of the weight.
    The kernel fails in the first backward pass.

    Give `grad_output` the format of the weight's column-wise data, or build the weight's quantizer
    as a HybridQuantizer whose column-wise side has the format of the gradient.
    """
    yield from _mismatches(
        subject, Gemm.DGRAD, "match the weight's column-wise side with grad_output's row-wise one"
    )


@check("QR303", Severity.ERROR)
def wgrad_formats(subject: PlanSubject) -> Iterator[Hit]:
    """The weight-gradient GEMM meets two formats that can't be multiplied.

    wgrad: dw = dy^T x reads the column-wise data of the gradient and of the input. The kernel fails
    in the first backward pass.

    Give `grad_output` and the column-wise side of `input` the same family of formats.
    """
    yield from _mismatches(
        subject, Gemm.WGRAD, "match the column-wise sides of input and grad_output"
    )


def _mismatches(subject: PlanSubject, gemm: Gemm, to_do: str) -> Iterator[Hit]:
    def differ(pair: GemmPair) -> bool:
        kinds = {(f.family, f.reference) for f in _both(pair)}
        high = any(f.family == "high_precision" for f in _both(pair))
        return pair.gemm is gemm and len(kinds) > 1 and not high

    yield from _pairs(subject, differ, lambda pair: f"{gemm}: {pair.text}", to_do)


def _pairs(
    subject: PlanSubject,
    wrong: Callable[[GemmPair], bool],
    message: Callable[[GemmPair], str],
    to_do: str,
) -> Iterator[Hit]:
    for pair in subject.pairs:
        if wrong(pair):
            operand = pair.names[0].partition(".")[0]
            yield layer_hit(pair.layer, message(pair), to_do, pair.layer.operands[operand])


def layer_hit(layer: Layer, message: str, to_do: str, decision: Decision | None = None) -> Hit:
    """A hit on a layer, at the source line that decided where that is known."""
    return Hit(layer.path, message, to_do, layer.module, *source_of(decision))


@check("QR304", Severity.ERROR)
def transform_on_one_operand(subject: PlanSubject) -> Iterator[Hit]:
    """Only one operand of wgrad is Hadamard-transformed, or the two have different signs.

    The random Hadamard transform mixes groups of 16 tokens and cancels in dw = dy^T x, because the
    matrix is orthogonal: but only when both operands went through the same one. With one operand
    transformed, or with different sign masks, dw is wrong by the transform. Nothing raises, and the
    loss falls for a while.

    Set `with_rht` and `with_random_sign_mask` equally for `input` and `grad_output`.
    """

    def wrong(pair: GemmPair) -> bool:
        one, two = pair.first, pair.second
        if pair.gemm is not Gemm.WGRAD:
            return False
        return one.rht != two.rht or one.random_sign_mask != two.random_sign_mask

    yield from _pairs(
        subject,
        wrong,
        lambda pair: f"wgrad: {_transform(pair, 0)}, {_transform(pair, 1)}",
        "set with_rht and with_random_sign_mask equally for input and grad_output",
    )


def _transform(pair: GemmPair, which: int) -> str:
    fmt = (pair.first, pair.second)[which]
    if not fmt.rht:
        return f"{pair.names[which]} is not transformed"
    signs = "random signs" if fmt.random_sign_mask else "no signs"
    return f"{pair.names[which]} is transformed with {signs}"


@check("QR305", Severity.ERROR)
def square_blocks_meet(subject: PlanSubject) -> Iterator[Hit]:
    """Both operands have FP8 scales per 128x128 block.

    There is a kernel for blocks of 1x128 with blocks of 128x128 and for two operands of 1x128, and
    none for two of 128x128.

    Use `block_scaling_dim=2` for weights only.
    """

    def wrong(pair: GemmPair) -> bool:
        return all(f.family == "fp8_block" and f.block == (128, 128) for f in _both(pair))

    yield from _pairs(
        subject,
        wrong,
        lambda pair: f"{pair.gemm}: {pair.names[0]} and {pair.names[1]} have 128x128 blocks",
        "use block_scaling_dim=2 for weights only",
    )


def _both(pair: GemmPair) -> tuple[OperandFormat, OperandFormat]:
    return (pair.first, pair.second)


@check("QR306", Severity.ERROR)
def half_quantized(subject: PlanSubject) -> Iterator[Hit]:
    """One operand of a GEMM is quantized and the other is not.

    A quantized tensor can't be multiplied with one in high precision: TransformerEngine's GEMM
    fails when it selects the types. IdentityQuantizer on one operand needs IdentityQuantizer, in
    the direction that this GEMM reads, on the other.

    Quantize both operands or neither. For a plan that is only exported and never trained with,
    audit with `--inference`, which looks at fprop alone.
    """

    def wrong(pair: GemmPair) -> bool:
        return len({f.family == "high_precision" for f in _both(pair)}) == 2

    yield from _pairs(
        subject,
        wrong,
        lambda pair: f"{pair.gemm}: {pair.text}",
        "quantize both operands or neither; --inference looks at fprop alone",
    )


@check("QR307", Severity.ERROR)
def output_not_producible(subject: PlanSubject) -> Iterator[Hit]:
    """A GEMM is to write its result in a format that it can't produce.

    A module that was asked for a quantized output (`fp8_output`, `fp8_grad`) gives the slot's
    quantizer to the GEMM. IdentityQuantizer and HybridQuantizer raise there; an FP8 recipe needs an
    FP8 quantizer with one scale per tensor.

    Set the boundary role to the reader's role and give it a native FP8 quantizer, or don't ask the
    module for a quantized output.
    """
    for decision in subject.usable:
        fmt = decision.rowwise
        if decision.slot.operand not in ("output", "grad_input") or fmt is None:
            continue
        if fmt.family in ("high_precision", "custom") or is_hybrid(decision):
            slot = decision.slot
            yield Hit(
                slot.module or ".",
                f"its {slot.operand} slot gets {decision.label}, which no GEMM writes",
                "give it a native FP8 quantizer, or don't ask for a quantized output",
                slot.module,
            )


@check("QR308", Severity.ERROR)
def experts_differ(subject: PlanSubject) -> Iterator[Hit]:
    """Experts of one group have different formats.

    A grouped GEMM runs all experts in one kernel, chosen by the first expert's quantizer.
    TransformerEngine refuses a mix of families, of quantized and not quantized, or of options.

    Return equal quantizers for all experts of a layer.
    """
    for decision in subject.usable:
        answers = subject.answers(decision)
        if len(answers.kinds) < 2:
            continue
        formats = zip(
            answers.formats(decision.slot, "rowwise"),
            answers.formats(decision.slot, "columnwise"),
            strict=True,
        )
        labels = list(
            dict.fromkeys(f"{row.label} / {col.label}" for row, col in formats if row and col)
        )
        if len(labels) > 1:
            slot = decision.slot
            path = f"{slot.module}.{slot.group}" if slot.group else slot.module
            yield Hit(
                path or ".",
                f"its {len(decision.answers)} experts have {slot.operand} in {', '.join(labels)}",
                "return equal quantizers for all experts of a layer",
                slot.module,
            )


@check("QR309", Severity.ERROR)
def both_e5m2(subject: PlanSubject) -> Iterator[Hit]:
    """Both operands of a GEMM are E5M2.

    FP8 tensor cores multiply E4M3 with E4M3 and E4M3 with E5M2; the library has no kernel for E5M2
    with E5M2. Every recipe of TransformerEngine rejects a format that is E5M2 in both passes.

    Use E4M3 for inputs and weights.
    """

    def wrong(pair: GemmPair) -> bool:
        return all(f.family in _FP8 and f.element == "e5m2" for f in _both(pair))

    yield from _pairs(
        subject,
        wrong,
        lambda pair: f"{pair.gemm}: {pair.names[0]} and {pair.names[1]} are both E5M2",
        "use E4M3 for inputs and weights",
    )
