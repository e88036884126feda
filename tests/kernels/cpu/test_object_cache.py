"""The cache of compiled kernels: reuse, damage, races, versions, and disks that refuse."""

import ctypes
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from qrole_kernels.cpu import object_cache
from qrole_kernels.cpu.builder import Kernel
from qrole_kernels.cpu.jit import KernelFamily, current_target
from qrole_kernels.cpu.simd import I64, PTR

PARAMETERS = {"out": PTR, "count": I64}


def answer(k: Kernel, factor: int) -> None:
    k.pointer("out").store(k["count"] * factor)


def run(family: KernelFamily, factor: int) -> int:
    found = ctypes.c_int64()
    family(factor)(ctypes.addressof(found), 6)
    return found.value


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("QROLE_CACHE_DIR", str(tmp_path))
    return tmp_path


def fresh() -> KernelFamily:
    return KernelFamily(answer, PARAMETERS)


def never_built() -> KernelFamily:
    def refuse(k: Kernel, factor: int) -> None:
        raise AssertionError("compiled again")

    refuse.__name__ = "answer"
    return KernelFamily(refuse, PARAMETERS)


def only_file(folder):
    (file,) = folder.rglob("answer_7.o")
    assert [f for f in folder.rglob("*") if f.is_file()] == [file]
    return file


def test_compiled_once(folder):
    assert run(fresh(), 7) == 42
    only_file(folder)
    assert run(never_built(), 7) == 42


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda code: b"", id="empty"),
        pytest.param(lambda code: code[:20], id="torn-in-the-hash"),
        pytest.param(lambda code: code[:-1], id="torn"),
        pytest.param(lambda code: code[:200] + bytes([code[200] ^ 1]) + code[201:], id="flipped"),
        pytest.param(lambda code: b"\0" * len(code), id="zeros"),
    ],
)
def test_a_damaged_file_is_replaced(folder, damage):
    run(fresh(), 7)
    file = only_file(folder)
    good = file.read_bytes()
    file.write_bytes(damage(good))
    with pytest.raises(AssertionError, match="compiled again"):
        run(never_built(), 7)
    assert run(fresh(), 7) == 42
    assert only_file(folder).read_bytes() == good


@pytest.mark.parametrize("what", ["llvmlite.__version__", "sources", "processor"])
def test_other_versions_have_other_files(folder, monkeypatch, what):
    if what == "sources":
        run(fresh(), 7)
        monkeypatch.setattr(object_cache, "_sources_digest", lambda: b"changed")
    elif what == "processor":
        object_cache.write("answer_7", "another processor", b"not for this one")
    else:
        run(fresh(), 7)
        monkeypatch.setattr(what, "0.0.0")
    with pytest.raises(AssertionError, match="compiled again"):
        run(never_built(), 7)
    assert run(fresh(), 7) == 42
    assert len(list(folder.rglob("answer_7.o"))) == 2


def test_sources_digest_covers_the_kernels_and_the_formats(tmp_path, monkeypatch):
    package = tmp_path / "cpu"
    package.mkdir()
    formats, source = tmp_path / "formats.py", package / "simd.py"
    digests = []
    for texts in (("a", "b"), ("a", "c"), ("d", "c")):
        for file, text in zip((formats, source), texts, strict=True):
            file.write_text(text)
        monkeypatch.setattr(object_cache, "__file__", str(package / "object_cache.py"))
        digests.append(object_cache._sources_digest.__wrapped__())
    assert len(set(digests)) == 3


def test_threads_of_one_process_may_race(folder):
    families = [fresh() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda family: run(family, 7), families)) == [42] * 8
    only_file(folder)


def test_processes_may_race(folder):
    code = (
        "import ctypes\n"
        "from qrole_kernels.cpu import host_amax\n"
        "x = (ctypes.c_float * 100)(*range(100))\n"
        "assert host_amax(ctypes.addressof(x), 'f32', 10, 10, 10) == 99.0\n"
    )
    runs = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [run.wait() for run in runs] == [0] * 4
    assert [file.name for file in folder.rglob("*") if file.is_file()] == ["amax_f32.o"]


def test_works_without_a_place_to_write(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("a file where a folder is wanted")
    monkeypatch.setenv("QROLE_CACHE_DIR", str(blocked))
    assert run(fresh(), 7) == 42


def test_works_without_a_home(monkeypatch):
    monkeypatch.delenv("QROLE_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(object_cache.Path, "home", no_home)
    assert run(fresh(), 7) == 42


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"QROLE_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}, "/a/kernels"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/qrole/kernels"),
        ({"HOME": "/c"}, "/c/.cache/qrole/kernels"),
    ],
)
def test_directory(monkeypatch, environment, expected):
    for name in ("QROLE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(object_cache.directory()) == expected


def test_the_object_names_its_function():
    """One symbol is all that the loader asks for."""
    code = fresh().object_code(current_target(), 7)
    assert code.startswith(b"\x7fELF") or sys.platform != "linux"
    assert b"answer_7\0" in code
