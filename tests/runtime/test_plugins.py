"""How a factory is named, found and identified."""

from __future__ import annotations

import functools
import sys

import pytest

from qrole.errors import UnknownNameError, UsageError, UserCodeError
from qrole.factories.builtin import mxfp8_factory
from qrole.plugins import Factory, list_factories, load_factory
from qrole.quantizers import MXFP8Quantizer
from qrole.roles import QuantizerRole

_SOURCE = """
from qrole import DType, MXFP8Quantizer

def fn(role):
    '''MXFP8 for all.

    More text.
    '''
    return MXFP8Quantizer(DType.kFloat8E4M3)

class Holder:
    nested = staticmethod(fn)

not_callable = 3
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "userpkg").mkdir()
    (tmp_path / "userpkg" / "__init__.py").write_text("")
    (tmp_path / "userpkg" / "mod.py").write_text(_SOURCE)
    (tmp_path / "userpkg" / "broken.py").write_text("import no_such_package_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [n for n in sys.modules if n.split(".")[0] == "userpkg"]:
        del sys.modules[name]


@pytest.mark.parametrize("spec", ["userpkg.mod:fn", "userpkg.mod.fn", "userpkg.mod:Holder.nested"])
def test_names_of_a_module(package, spec):
    factory = load_factory(spec)
    assert isinstance(factory.function(QuantizerRole("linear", "input")), MXFP8Quantizer)
    assert factory.doc == "MXFP8 for all."
    assert factory.file == str(package / "userpkg" / "mod.py")
    assert len(factory.sha256) == 64


def test_name_of_a_file(package):
    factory = load_factory(f"{package / 'userpkg' / 'mod.py'}:fn")
    assert isinstance(factory.function(None), MXFP8Quantizer)


def test_name_of_an_entry_point():
    assert load_factory("mxfp8").function is mxfp8_factory


def test_third_party_entry_point_is_installed_and_works():
    entry = next(e for e in list_factories() if e.name == "example-mixed")
    assert entry.package == "qrole-example-plugin 1.0.0"
    assert entry.doc.startswith("MXFP8 everywhere")
    quantizer = load_factory("example-mixed").function(QuantizerRole("linear", "weight", "a"))
    assert isinstance(quantizer, MXFP8Quantizer)


def test_builtin_factories_come_through_entry_points():
    names = {entry.name for entry in list_factories() if entry.target.startswith("qrole.")}
    assert {"high_precision", "delayed_scaling", "current_scaling", "mxfp8", "nvfp4"} <= names


def test_unknown_entry_point():
    with pytest.raises(UnknownNameError, match="did you mean 'mxfp8'"):
        load_factory("mxfp88")


def test_module_that_does_not_exist():
    with pytest.raises(UsageError, match="no module 'nowhere_at_all'"):
        load_factory("nowhere_at_all.mod:fn")


def test_import_error_inside_the_users_module_is_not_swallowed(package):
    with pytest.raises(UserCodeError, match="no_such_package_at_all"):
        load_factory("userpkg.broken:fn")


def test_attribute_that_does_not_exist(package):
    with pytest.raises(UnknownNameError, match=r"attribute 'fm' in userpkg\.mod"):
        load_factory("userpkg.mod:fm")


def test_object_that_cannot_be_called(package):
    with pytest.raises(UsageError, match="not_callable is no factory but an object of type int"):
        load_factory("userpkg.mod:not_callable")


def test_identity_of_partials_and_callable_objects():
    def closure(role, kind):
        return kind

    class Answers:
        """Answers."""

        def __call__(self, role):
            return role

    assert Factory.of(functools.partial(closure, kind=1)).qualname.endswith("closure")
    assert Factory.of(Answers()).qualname.endswith("Answers")
    assert Factory.of(Answers()).file == __file__


def test_file_without_a_function_names_those_it_has(package):
    path = package / "userpkg" / "mod.py"
    with pytest.raises(UsageError, match="is a file, and no function in it is named") as caught:
        load_factory(str(path))
    assert caught.value.expected == f"{path}:fn"
    assert caught.value.hint == "name one of fn, Holder"
