"""Cutting matrices: whole blocks, everything once, any number of threads, transposed input."""

import ctypes
import os
import threading
import time

import pytest
import torch

from qrole_kernels import cpu, reference
from qrole_kernels.cpu import pieces, threads
from qrole_kernels.cpu.builder import Kernel
from qrole_kernels.cpu.jit import KernelFamily
from qrole_kernels.cpu.pieces import Matrix, Piece, for_each_piece
from qrole_kernels.cpu.simd import I64, PTR, maximum
from qrole_kernels.errors import ArgumentError
from tests.kernels.bitexact import assert_bits_equal
from tests.kernels.cpu.matrices import DTYPES, KINDS


def collect(matrix: Matrix, *blocks: int | None) -> list[Piece]:
    found: list[Piece] = []
    for_each_piece(found.append, matrix, *blocks, threads=1)
    return found


@pytest.mark.parametrize("cols", [1, 100, 128, 5000])
@pytest.mark.parametrize("gap", [0, 3])
@pytest.mark.parametrize("blocks", [(1, 32), (16, 16), (128, 128), (1, None)])
def test_pieces_cover_the_matrix_once_in_whole_blocks(monkeypatch, cols, gap, blocks):
    monkeypatch.setattr(pieces, "PIECE", 1000)
    rows, (block_rows, block_cols) = 300, blocks
    matrix = Matrix(10_000, 2, rows, cols, cols + gap)
    seen = [0] * rows * cols
    for piece in collect(matrix, *blocks):
        assert piece.first_row % block_rows == 0
        assert piece.first_element % (block_cols or 1) == 0
        first = piece.first_element + piece.first_row * cols
        for i in range(piece.rows * piece.cols):
            seen[first + i] += 1
        row, col = divmod(first, cols)
        assert piece.address == 10_000 + 2 * (row * (cols + gap) + col)
    assert seen == [1] * rows * cols


def test_empty_matrices():
    assert collect(Matrix(0, 2, 0, 5, 5)) == []
    assert collect(Matrix(0, 2, 5, 0, 0)) == []
    (rows_are_blocks,) = collect(Matrix(0, 2, 5, 0, 0), 1, None)
    assert (rows_are_blocks.rows, rows_are_blocks.cols) == (5, 0)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_and_portions_change_nothing(monkeypatch, threads):
    monkeypatch.setattr(pieces, "PIECE", 4096)
    x = KINDS[1](torch.Generator().manual_seed(1), (300, 500)).bfloat16()
    source = x.data_ptr(), "bf16", *x.shape, x.stride(0)
    wanted = reference.quantize_nvfp4(x, reference.amax(x), 16)
    data, scale = (torch.zeros_like(t) for t in wanted)
    amax = cpu.host_amax(*source, threads=threads)
    out = data.data_ptr(), scale.data_ptr()
    cpu.host_quantize_nvfp4(*source, amax, 16, 448, *out, threads=threads)
    assert_bits_equal(data, wanted[0], "data")
    assert_bits_equal(scale, wanted[1], "scale")


def test_errors_in_threads_reach_the_caller():
    def fail(index: int) -> None:
        raise ValueError(index)

    with pytest.raises(ValueError, match="3"):
        threads.run(fail, [3, 3, 3], 2)


def wait_for_flag(k: Kernel) -> None:
    """Says that it runs, then looks for the flag until it is set, though not forever."""
    started, flag, seen = (k.pointer(name) for name in ("started", "flag", "seen"))
    started.store(k.constant(I64, 1))
    with k.range(10_000), k.when(seen.load(I64).equals(0)), k.range(1_000_000):
        seen.store(maximum(seen.load(I64), flag.load(I64)))


def test_kernels_run_without_the_gil():
    function = KernelFamily(wait_for_flag, {"started": PTR, "flag": PTR, "seen": PTR})()
    memory = started, flag, seen = [ctypes.c_int64() for _ in range(3)]
    thread = threading.Thread(target=function, args=[ctypes.addressof(word) for word in memory])
    thread.start()
    while not started.value:
        time.sleep(0)
    flag.value = 1
    thread.join()
    assert seen.value == 1


def test_default_threads(monkeypatch):
    monkeypatch.setenv("QROLE_NUM_THREADS", "7")
    assert threads.default_threads() == 7
    for wrong in ("0", "-1", "two"):
        monkeypatch.setenv("QROLE_NUM_THREADS", wrong)
        with pytest.raises(ArgumentError, match=f"QROLE_NUM_THREADS='{wrong}'.*positive integer"):
            threads.default_threads()
    monkeypatch.delenv("QROLE_NUM_THREADS")
    assert threads.default_threads() == torch.get_num_threads()
    monkeypatch.delitem(threads.sys.modules, "torch")
    assert threads.default_threads() == len(os.sched_getaffinity(0))


def test_pools_survive_a_fork():
    threads.run(lambda _: None, range(4), 2)
    child = os.fork()
    if child == 0:
        done: list[int] = []
        threads.run(done.append, range(4), 2)
        os._exit(0 if sorted(done) == [0, 1, 2, 3] else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("shape", [(1, 40), (40, 1), (33, 70), (300, 100), (64, 256)])
def test_transposed_input(target, shape, dtype):
    m, k = shape
    stored = KINDS[3](torch.Generator().manual_seed(2), (k, m + 5)).to(DTYPES[dtype])
    x = stored[:, 2 : 2 + m].t()
    source = x.data_ptr(), dtype, m, k, x.stride(0)
    wanted = reference.quantize_mxfp8(x, "e4m3", 1, 32)
    data, scale = (torch.zeros_like(t) for t in wanted)
    out = data.data_ptr(), scale.data_ptr()
    cpu.host_quantize_mxfp8(*source, "e4m3", 1, 32, *out, col_stride=x.stride(1))
    assert_bits_equal(data, wanted[0], "data")
    assert_bits_equal(scale, wanted[1], "scale")
    amax = cpu.host_amax(*source, col_stride=x.stride(1))
    assert amax == reference.amax(x)


def test_strips_hold_whole_blocks():
    for block_rows in (1, 16, 32, 128):
        matrix = Matrix(0, 2, 1000, 14336, 1, 1000)
        strips = pieces.strips(matrix, block_rows)
        assert [r for strip in strips for r in strip] == list(range(1000))
        assert all(strip.start % block_rows == 0 for strip in strips)
    assert len(pieces.strips(Matrix(0, 2, 1000, 100, 1, 1000), 1)[0]) == pieces.WIDEST


def test_strides_in_both_directions_are_refused():
    with pytest.raises(ArgumentError, match=r"strides \(20, 2\).*Copy the matrix"):
        cpu.host_amax(0, "f32", 5, 5, 20, col_stride=2)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: cpu.host_amax(0, "f64", 1, 1, 1), "dtype='f64'"),
        (lambda: cpu.host_quantize_mxfp8(0, "f32", 1, 1, 1, "e4m3", 16, 1, 0, 0), r"\(16, 1\)"),
        (lambda: cpu.host_quantize_mxfp8(0, "f32", 1, 1, 1, "e3m4", 1, 32, 0, 0), "'e3m4'"),
        (lambda: cpu.host_quantize_nvfp4(0, "f32", 1, 1, 1, 1.0, 8, 448, 0, 0), "block_rows=8"),
        (lambda: cpu.host_quantize_nvfp4(0, "f32", 1, 1, 1, 1.0, 1, 447, 0, 0), "e4m3_max=447"),
        (lambda: cpu.host_quantize_mxfp4(0, "f32", 1, 1, 1, "up", 0, 0), "rule='up'"),
        (lambda: cpu.host_dequantize_fp8(0, 1, 1, 1.0, "e4m3", "u8", 0), "dtype='u8'"),
        (lambda: cpu.host_hadamard16(0, 1, 17, 0, 0), "17 columns"),
    ],
)
def test_arguments_are_checked(call, match):
    with pytest.raises(ArgumentError, match=match):
        call()
