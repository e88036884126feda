"""Known answers of products of quantized operands."""

import torch

from qrole_kernels.gemm import Operand, gemm
from qrole_kernels.reference.elements import decode_e2m1, decode_fp8, unpack_nibbles
from tests.kernels import golden
from tests.kernels.bitexact import assert_bits_equal

F32 = torch.float32


def _cases(suffix):
    return golden.cases("gemm", only=[n for n in golden.INDEX["gemm"] if n.endswith(suffix)])


@_cases(("_bf16", "_f32"))
def test_nvfp4(case):
    rows = case.name.startswith("nvfp4_rowscaled")
    amax = {s: case[f"{s}_amax"] if rows and s == "x" else case[f"{s}_amax"].view(()) for s in "xw"}
    left, right = (
        Operand("nvfp4", case[f"{s}_data"], case[f"{s}_scale_inv"], amax[s]) for s in "xw"
    )
    y, exact = gemm(left, right, F32), case["y_exact_f64"]
    error = ((y - exact).abs() / exact.abs()).max()
    assert error <= max(2e-7, float(case.info["max_rel_err"]))
    assert_bits_equal(_te_order(left, right), case["y_te_py_f32"], "in the order of TE's reference")
    torch.testing.assert_close(y, case["y_te_py_f32"], rtol=3e-7, atol=0.0)
    for s in "xw":
        relative = (left if s == "x" else right, case[s])
        assert _decoded_error(*relative) < 0.12


def _te_order(left, right):
    """Blocks of 16 along K are summed exactly and added up in fp32; alpha comes last."""
    total = torch.zeros(left.shape[0], right.shape[0])
    for i in range(left.shape[1] // 16):
        k = slice(16 * i, 16 * i + 16)
        a, b = (decode_e2m1(unpack_nibbles(o.data))[:, k] for o in (left, right))
        scales = (decode_fp8(o.scale, "e4m3")[:, i] for o in (left, right))
        total = total + (a @ b.t()) * torch.outer(*scales)
    alpha = left.amax.view(-1, 1) * right.amax.view(1, -1) / (36.0 * 448 * 448)
    return total * alpha


def _decoded_error(operand, x):
    values = decode_e2m1(unpack_nibbles(operand.data))
    scales = decode_fp8(operand.scale, "e4m3").repeat_interleave(16, 1)
    decoded = values * scales * operand.amax.view(-1, 1) / 2688
    return (decoded - x).norm() / x.norm()


@_cases("hopper_accumulate")
def test_fp8_beside_hoppers_accumulators(case):
    one = torch.ones(())
    left, right = (Operand("fp8_tensor", case[f"{s}_e4m3"], one) for s in "ab")
    y, exact = gemm(left, right, F32), case["acc_exact_f64"]
    magnitude = _absolute_product(case["a_e4m3"], case["b_e4m3"])
    deviation = {
        "ours": y,
        "fast": case["acc_fast_hopper"],
        "split": case["acc_split_hopper"],
    }
    worst = {name: ((acc - exact).abs() / magnitude).max() for name, acc in deviation.items()}
    assert worst["ours"] < 5e-8
    # What fp32 accumulation leaves out: Hopper's tensor cores keep 13 fraction bits.
    assert 1e-5 < worst["split"] < worst["fast"] < 3e-4


def _absolute_product(a, b):
    return decode_fp8(a, "e4m3").double().abs() @ decode_fp8(b, "e4m3").double().abs().t()


@_cases("blackwell_accumulate")
def test_block_scaled_beside_blackwells_accumulators(case):
    if case.name.startswith("mxfp8"):
        left, right = (Operand("mxfp8", case[f"{s}_data"], case[f"{s}_scale"]) for s in "ab")
    else:
        # An amax of 2688 on both sides makes the factor of the product one.
        amax = torch.tensor(2688.0)
        left, right = (Operand("nvfp4", case[f"{s}_data"], case[f"{s}_scale"], amax) for s in "ab")
    y, exact, model = gemm(left, right, F32), case["acc_exact_f64"], case["acc_blackwell"]
    bound = 6e-8 * exact.abs().max()
    assert (y - exact).abs().max() <= bound
    assert (model - exact).abs().max() <= bound
