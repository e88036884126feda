"""Known answers of FP8 with one scale per tensor, and of the state of delayed scaling."""

import torch

from qrole_kernels.reference import update_delayed_scaling
from tests.kernels import golden
from tests.kernels.bitexact import assert_bits_equal


@golden.cases(*golden.families("fp8_current"))
def test_current_scaling(case, kernels):
    x, element = case["input"], case.element
    data, scale, scale_inv, amax = kernels.quantize_fp8_current(
        x, element, case.params["pow_2_scale"], case.params["amax_epsilon"]
    )
    assert_bits_equal(data, case["rowwise_data"], "data")
    for name, value in (("scale", scale), ("scale_inv", scale_inv), ("amax", amax)):
        assert_bits_equal(value, case[name].view(()), name)
    dequantized = kernels.dequantize_fp8(data, scale_inv, element, torch.float32)
    assert_bits_equal(dequantized, case["rowwise_dequant"], "dequant")
    if "columnwise_data" in case:
        assert_bits_equal(data.t(), case["columnwise_data"], "transposed data")
    if "te_py.rowwise_data" in case:
        _check_te_python(case)


def _check_te_python(case):
    """The reference differs for inf and NaN, and where a scale overflows: it takes bf16's max."""
    if not case["input"].isfinite().all():
        assert not torch.equal(case["te_py.rowwise_data"], case["rowwise_data"])
        assert not torch.equal(case["te_py.scale_inv"], case["scale_inv"])
        return
    assert_bits_equal(case["te_py.rowwise_data"], case["rowwise_data"], "te_py data")
    assert case["scale"] == torch.finfo(torch.float32).max
    assert case["te_py.scale_inv"] == 1 / torch.tensor(torch.finfo(torch.bfloat16).max)


@golden.cases("fp8_delayed_cast")
def test_cast_with_a_given_scale(case, kernels):
    for step in ("s0", "s1", "s2", "s3"):
        scale = case[f"{step}.scale"].view(())
        data = kernels.quantize_fp8(case["input"], scale, case.element)
        assert_bits_equal(data, case[f"{step}.data"], f"{step}.data")
        assert_bits_equal(1.0 / scale, case[f"{step}.scale_inv"].view(()), f"{step}.scale_inv")


@golden.cases("fp8_delayed_state")
def test_delayed_scaling_state(case):
    info = case.info
    length, margin = int(info["amax_history_len"]), int(info["margin"])
    sequences = {name.split(".")[0] for name in case}
    assert sequences == {"plain", "special", "tiny"}
    for sequence in sorted(sequences):
        for rule in ("single", "bulk"):
            history, scale = torch.zeros(length), torch.ones(())
            for step, amax in enumerate(case[f"{sequence}.amax_sequence"]):
                history = torch.cat((amax[None], history[1:]))
                history, scale = update_delayed_scaling(
                    history, scale, case.element, info["algo"], margin, rule
                )
                expected = {n: case[f"{sequence}.{rule}.{n}"][step] for n in ("history", "scale")}
                where = f"{sequence}.{rule} step {step}"
                assert_bits_equal(history, expected["history"], f"{where} history")
                assert_bits_equal(scale, expected["scale"], f"{where} scale")
        _check_python_fallback(case, sequence)


def _check_python_fallback(case, sequence):
    """TE's fallback divides by way of a reciprocal, and lets NaN win the maximum."""
    single, fallback = (case[f"{sequence}.{name}.scale"] for name in ("single", "te_py"))
    assert_bits_equal(
        case[f"{sequence}.te_py.history"], case[f"{sequence}.single.history"], "te_py history"
    )
    if sequence != "special":
        ulps = (single.view(torch.int32) - fallback.view(torch.int32)).abs()
        assert ulps.max() <= 1
