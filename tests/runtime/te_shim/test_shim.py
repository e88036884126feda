"""Installing, undoing, stepping aside."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from qrole import te_shim
from qrole.errors import UserCodeError
from qrole.te_shim.surface import RENAMED, SURFACE
from qrole.user_code import load_file

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def fresh():
    te_shim.uninstall()
    yield
    te_shim.uninstall()


def test_nothing_is_served_before():
    assert importlib.util.find_spec("transformer_engine") is None
    assert not te_shim.is_installed()


def test_the_context_manager_undoes_itself():
    with te_shim.te_shim() as served:
        assert served
        import transformer_engine.pytorch

        assert transformer_engine.pytorch.DType.kFloat8E4M3 == 7
    assert not te_shim.is_installed()
    assert not [name for name in sys.modules if name.startswith("transformer_engine")]
    with pytest.raises(ModuleNotFoundError, match="transformer_engine"):
        import transformer_engine


def test_undone_after_an_exception():
    with pytest.raises(ZeroDivisionError), te_shim.te_shim():
        1 / 0  # noqa: B018
    assert not te_shim.is_installed()


def test_installing_twice_is_once():
    assert te_shim.install()
    assert te_shim.install()
    with te_shim.te_shim():
        pass
    assert te_shim.is_installed(), "the block found it installed and leaves it so"
    te_shim.uninstall()
    assert not te_shim.is_installed()


@pytest.mark.filterwarnings("ignore::qrole.te_shim.OlderNameWarning")
@pytest.mark.parametrize("module", SURFACE)
def test_every_name_of_the_surface_is_there(module):
    with te_shim.te_shim():
        served = importlib.import_module(module)
        for name in SURFACE[module]:
            assert getattr(served, name) is not None
        assert set(SURFACE[module]) <= set(dir(served))
        namespace: dict[str, object] = {}
        exec(f"from {module} import *", namespace)
        assert set(SURFACE[module]) <= set(namespace)


def test_renamed_modules_point_at_modules_that_exist():
    assert set(RENAMED) < set(SURFACE)
    assert set(RENAMED.values()) <= set(SURFACE)


def test_names_that_are_not_there():
    with te_shim.te_shim():
        import transformer_engine.pytorch as te

        assert not hasattr(te, "initialize_ub")
        with pytest.raises(AttributeError, match=r"stand-in for transformer_engine\.pytorch has"):
            te.initialize_ub  # noqa: B018
        with pytest.raises(ImportError, match="cannot import name 'initialize_ub'"):
            from transformer_engine.pytorch import initialize_ub  # noqa: F401
        with pytest.raises(ModuleNotFoundError, match=r"transformer_engine\.jax"):
            import transformer_engine.jax  # noqa: F401


def test_other_public_modules_are_found():
    with te_shim.te_shim():
        import transformer_engine.pytorch as te

        assert te.RotaryPositionEmbedding.__module__.startswith("qrole.modules")
        assert te.ops.GELU.__module__.startswith("qrole.modules.ops")


def _fake_te(folder: Path) -> None:
    package = folder / "transformer_engine"
    package.mkdir()
    (package / "__init__.py").write_text("REAL = True\n")


def test_an_installed_transformer_engine_is_not_shadowed(tmp_path, monkeypatch):
    _fake_te(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert not te_shim.install()
    assert not te_shim.activate()
    assert not te_shim.is_installed()
    import transformer_engine

    assert transformer_engine.REAL
    assert not te_shim.install(), "it is imported now"
    del sys.modules["transformer_engine"]


def test_one_that_appears_later_wins(tmp_path, monkeypatch):
    assert te_shim.install()
    _fake_te(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    import transformer_engine

    assert transformer_engine.REAL
    del sys.modules["transformer_engine"]


def test_user_code_activates_it(tmp_path):
    path = tmp_path / "uses_te.py"
    path.write_text("import transformer_engine.pytorch as te\nROLE = te.QuantizerRole('linear')\n")
    assert load_file(path).ROLE.module_type == "linear"
    assert te_shim.is_installed()


def test_switched_off(tmp_path, monkeypatch):
    monkeypatch.setenv("QROLE_NO_TE_SHIM", "1")
    path = tmp_path / "needs_te.py"
    path.write_text("import transformer_engine.pytorch as te\n")
    with pytest.raises(UserCodeError, match="No module named 'transformer_engine'"):
        load_file(path)
    assert not te_shim.is_installed()


def test_importing_it_imports_no_torch():
    code = (
        "import sys; from qrole import te_shim; te_shim.install(); "
        "import transformer_engine.pytorch as te; te.MXFP8Quantizer(te.DType.kFloat8E4M3); "
        "from transformer_engine.pytorch.custom_recipes.quantizer_factories import nvfp4_factory; "
        "nvfp4_factory(None); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_global_state_manager():
    with te_shim.te_shim():
        from transformer_engine.common.recipe import DelayedScaling, MXFP8BlockScaling
        from transformer_engine.pytorch.quantization import FP8GlobalStateManager, autocast

        recipe = MXFP8BlockScaling()
        assert FP8GlobalStateManager.get_fp8_recipe() == DelayedScaling()
        with autocast(recipe=recipe, calibrating=True):
            assert FP8GlobalStateManager.is_fp8_enabled()
            assert FP8GlobalStateManager.is_fp8_calibration()
            assert FP8GlobalStateManager.get_fp8_recipe() is recipe
            assert FP8GlobalStateManager.get_fp8_group() is None
            assert FP8GlobalStateManager.is_first_fp8_module()
            assert not FP8GlobalStateManager.is_first_fp8_module()
        assert not FP8GlobalStateManager.is_fp8_enabled()
        assert not FP8GlobalStateManager.with_fp8_parameters()
        assert FP8GlobalStateManager.is_nvfp4_available() == (True, "")
        FP8GlobalStateManager.reduce_and_update_fp8_tensors(forward=True)
        FP8GlobalStateManager.reset()
