"""Every kernel compiled ahead of time, and what its machine code must and must not contain."""

import importlib
import multiprocessing
import pkgutil
import re
from concurrent.futures import ProcessPoolExecutor

import pytest

from qrole_kernels import cuda
from qrole_kernels.cuda.aot import compile_named
from qrole_kernels.cuda.catalog import CALLS, calls_for, gemm_calls
from qrole_kernels.cuda.launch import record

ARCHS = [
    pytest.param(80, id="sm_80", marks=pytest.mark.slow),
    pytest.param(89, id="sm_89", marks=pytest.mark.slow),
    pytest.param(90, id="sm_90"),
    pytest.param(100, id="sm_100"),
    pytest.param(120, id="sm_120", marks=pytest.mark.slow),
]
PROCESSES = 2
SHARED_LIMIT = {80: 166912, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
"""Bytes of shared memory that one program may have."""

# Without a vector of 16 bytes to load: one scale for 256 threads, rows of a 128x4 tile.
NARROW = {"fp8_scale_kernel", "swizzle_scales_kernel", "unswizzle_scales_kernel"}
FP8_CONVERT = r"F2FP\.SATFINITE\.E[45]M[32]"
FP4_CONVERT = r"F2FP\.SATFINITE\.E2M1"
FP8_UNPACK = r"F2FP\.F16\.E[45]M[32]\.UNPACK"
FP4_UNPACK = r"F2FP\.F16\.E2M1\.UNPACK"
TENSOR_CORE = {
    80: {"nvfp4": "HMMA"},
    89: {"fp8": "QMMA", "nvfp4": "HMMA"},
    90: {"fp8": "QGMMA", "nvfp4": "HGMMA"},
    100: {"fp8": "UTCQMMA", "mxfp8": "UTCQMMA", "mxfp4": "UTCOMMA", "nvfp4": r"UTCOMMA\.4X"},
    120: {
        "fp8": "QMMA",
        "mxfp8": r"QMMA\.SF",
        "mxfp4": r"OMMA\.SF",
        "nvfp4": r"OMMA\.SF.*UE4M3\.4X",
    },
}
SCALED_PTX = {
    (100, "mxfp8"): r"tcgen05\.mma\S*mxf8f6f4",
    (100, "mxfp4"): r"tcgen05\.mma\S*mxf4",
    (100, "nvfp4"): r"tcgen05\.mma\S*mxf4nvf4\S*block",
    (120, "mxfp8"): r"mma\.sync\S*block_scale",
    (120, "mxfp4"): r"mma\.sync\S*block_scale",
    (120, "nvfp4"): r"mma\.sync\S*block_scale",
}


@pytest.fixture(scope="session")
def compiler():
    """Two processes that compile; the interpreter is off in them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
            # A process starts, and reads its environment, when work arrives.
            pool.map(abs, range(PROCESSES))
            yield pool


@pytest.fixture(scope="session")
def compiled(compiler):
    """All kernels of an architecture by the name of the call, compiled when first asked for."""
    cache = {}

    def codes_for(arch):
        if arch not in cache:
            calls = calls_for(arch)
            futures = {name: compiler.submit(compile_named, name, arch) for name in calls}
            cache[arch] = {name: future.result() for name, future in futures.items()}
        return cache[arch]

    return codes_for


@pytest.fixture(params=ARCHS)
def arch(request):
    return request.param


@pytest.fixture
def codes(compiled, arch):
    return compiled(arch)


def _each(codes, names):
    for name in names:
        for code in codes[name]:
            yield f"{name}: {code.kernel}", code


def _launches(name, arch):
    with record(arch) as recording:
        calls_for(arch)[name]()
    return recording.launches


def test_every_kernel_is_in_the_catalog():
    launched = {
        launch.kernel.__name__ for name in calls_for(100) for launch in _launches(name, 100)
    }
    modules = [
        importlib.import_module(f"{cuda.__name__}.{info.name}")
        for info in pkgutil.iter_modules(cuda.__path__)
    ]
    defined = {name for module in modules for name in vars(module) if name.endswith("_kernel")}
    assert defined == launched


def test_registers_suffice(codes):
    for what, code in _each(codes, codes):
        spills = code.count(r"LDL|STL")
        assert (code.stack, code.local, spills) == (0, 0, 0), what


def test_shared_memory_suffices(codes, arch):
    for what, code in _each(codes, codes):
        assert code.shared <= SHARED_LIMIT[arch], what


def test_matrices_are_loaded_16_bytes_at_a_time(codes, arch):
    for name in CALLS:
        for launch, code in zip(_launches(name, arch), codes[name], strict=True):
            if code.kernel in NARROW:
                continue
            assert code.count(r"LDG\.E\.128") >= _vectors_of_16_bytes(launch), name


def _vectors_of_16_bytes(launch):
    """Per thread, for its part of the tile of the first argument, a matrix."""
    matrix = next(iter(launch.arguments.values()))
    constants = launch.constants
    elements = constants["TILE_ROWS"] * constants["TILE_COLS"] * constants.get("TILES", 1)
    return elements * matrix.element_size() // (16 * 32 * launch.num_warps)


def test_operands_are_copied_to_shared_memory_asynchronously(codes, arch):
    """16 bytes at a time where rows are long and stay rows on their way to the tensor cores.

    Transposed ones, which only the tensor cores of 10.0 take as they are, are loaded as wide; rows
    of NVFP4 that becomes bf16 are shorter.
    """
    for what, code in _each(codes, gemm_calls(arch)):
        if " t " in what and arch != 100:
            assert code.count(r"LDG\.E\.128") > 0, what
            continue
        width = "" if "nvfp4" in what and arch < 100 else r"\.BYPASS\.128"
        assert code.count(r"LDGSTS\.E" + width) > 0, what


def test_divisions_are_ieee_and_subnormals_are_kept(codes):
    for what, code in _each(codes, codes):
        assert code.count_ptx(r"div\.(full|approx)|rcp\.approx|\.ftz") == 0, what


def test_products_and_sums_are_not_contracted(codes):
    for what, code in _each(codes, CALLS):
        assert code.count_ptx(r"\b(fma|mad)\.\S*f32") == 0, what
        assert _fused(code) <= _fused_of_divisions(code), what


def _fused(code):
    return code.count("FFMA")


def _fused_of_divisions(code):
    """Five for each IEEE division, and twelve in what its rare cases call."""
    divisions = code.count(r"CALL\.REL")
    assert (divisions > 0) == (code.count_ptx(r"div\.rn\.f32|rcp\.rn\.f32") > 0)
    return 5 * divisions + 12 if divisions else 0


@pytest.mark.parametrize("name", ["hadamard", "nvfp4 4over6 16x16"])
def test_contraction_would_be_noticed(compiler, name):
    """By the test above, in kernels that add products."""
    (code,) = compiler.submit(compile_named, name, 90, fp_fusion=True).result()
    assert _fused(code) > _fused_of_divisions(code)


def test_fp8_is_converted_by_hardware(codes, arch):
    if arch < 89:
        assert not any(code.count(r".*E[45]M[32]") for _, code in _each(codes, codes))
        return
    for name in ("fp8 given scale", "fp8 current", "fp8 rows", "fp8 1x128", "fp8 128x128"):
        assert codes[name][-1].count(FP8_CONVERT) >= 16, name
    for name in ("mxfp8 1x32", "mxfp8 32x1", "mxfp8 32x32"):
        assert codes[name][-1].count(FP8_CONVERT + r"\.F32") >= 16, name
    assert codes["fp8 given scale e5m2"][-1].count(r"F2FP\.SATFINITE\.E5M2") == 16
    for name in ("decode fp8", "decode fp8 e5m2", "decode mxfp8 1x32"):
        assert codes[name][0].count(FP8_UNPACK) == 16, name


def test_fp4_is_converted_by_hardware_where_it_can(codes, arch):
    for name in ("mxfp4", "nvfp4", "nvfp4 t", "nvfp4 16x16", "nvfp4 4over6"):
        (launch,), (code,) = _launches(name, arch), codes[name]
        per_thread = launch.constants["TILE_ROWS"] * launch.constants["TILE_COLS"] // 128
        candidates = 2 if "4over6" in name else 1
        expected = per_thread // 2 * candidates if arch >= 100 else 0
        assert code.count(FP4_CONVERT) == expected, name
    for name in ("decode nvfp4", "decode mxfp4"):
        assert codes[name][0].count(FP4_UNPACK) == (16 if arch >= 100 else 0), name
    assert codes["nvfp4 stochastic"][0].count(FP4_CONVERT) == 0


def test_products_use_tensor_cores(codes, arch):
    for what, code in _each(codes, gemm_calls(arch)):
        family = re.search(r"fp8(?=_)|mxfp8|mxfp4|nvfp4", what)[0]
        assert code.count(TENSOR_CORE[arch][family]) > 0, what
        if (arch, family) in SCALED_PTX:
            assert code.count_ptx(SCALED_PTX[arch, family]) > 0, what


def test_partial_products_are_added_in_fp32(codes, arch):
    """Where accumulators are not fp32 in full, beside the bias: 64 places of a tile per thread."""
    for what, code in _each(codes, gemm_calls(arch)):
        if "fp8_tensor x" in what:
            sums = code.count(r"FADD$") + 2 * code.count(r"FADD2$")
            assert sums == (64 if arch == 100 else 128), what
        if "fp8_block" in what:
            assert code.count_ptx(r"fma\.rn\.f32") > 0, what
