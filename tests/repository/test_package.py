"""What is shipped, what is public, and what importing it costs."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
import zipfile

import pytest

import qrole


@pytest.fixture(scope="module")
def wheel(root, tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    subprocess.run([*build, "-w", str(out), str(root)], check=True)
    (path,) = out.glob("qrole-*.whl")
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def test_the_wheel_holds_three_packages_and_nothing_else(wheel):
    tops = {name.split("/")[0] for name in wheel if ".dist-info/" not in name}
    assert tops == {"qrole_cli", "qrole", "qrole_kernels"}


def test_the_wheel_is_typed_and_licensed(wheel):
    for package in ("qrole_cli", "qrole", "qrole_kernels"):
        assert f"{package}/py.typed" in wheel
    assert any(name.endswith("licenses/LICENSE") for name in wheel)


def test_source_roots_are_no_packages(root):
    assert not (root / "runtime" / "__init__.py").exists()
    assert not (root / "kernels" / "__init__.py").exists()


def test_every_public_name_resolves():
    for name in qrole.__all__:
        assert getattr(qrole, name) is not None


def test_the_lazy_table_and_the_typed_imports_agree(root):
    tree = ast.parse((root / "runtime/qrole/__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    table = {(module, name) for name, module in qrole._MODULE_OF.items()}
    assert typed == table
    assert set(qrole.__all__) == {name for _, name in table} | {"__version__"}


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        qrole.nonsense  # noqa: B018


def test_version_is_the_distribution_s():
    assert importlib.metadata.version("qrole") == qrole.__version__


_NO_TORCH = {
    "import qrole": "import qrole",
    "--help": "from qrole_cli.main import invoke; assert invoke(['--help']) == 0",
    "inspect --help": "from qrole_cli.main import invoke; assert not invoke(['inspect', '-h'])",
    "--version": "from qrole_cli.main import invoke; assert invoke(['--version']) == 0",
    "factories": "from qrole_cli.main import invoke; assert invoke(['factories']) == 0",
    "explain": "from qrole_cli.main import invoke; assert invoke(['explain', 'QR101']) == 0",
    "headers": "import qrole.checkpoint.headers, qrole.emitters.tensors",
    "built-in factory": "from qrole import load_factory; load_factory('nvfp4').function(None)",
    "cpu kernels": "import qrole_kernels.cpu",
}


@pytest.mark.parametrize("case", list(_NO_TORCH))
def test_torch_is_not_imported(case):
    code = f"import sys\n{_NO_TORCH[case]}\nsys.exit('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
