"""What a custom model is made of: all files that are imported from its folder, not its own alone."""

import sys

import pytest

from dpcompare.system.user_modules import changed_modules, module_digests, source_sha256


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that modules are imported from and then forgotten."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder, **files):
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)


def test_a_helper_is_part_of_the_model(folder):
    write(folder, net_of_folder="import helper_of_folder", helper_of_folder="", unused="")
    before = module_digests("net_of_folder:net")
    assert sorted(before) == ["helper_of_folder.py", "net_of_folder.py"]
    assert before["net_of_folder.py"] == source_sha256("net_of_folder:net")
    assert changed_modules("net_of_folder:net", before) == []
    write(folder, helper_of_folder="x = 1")
    assert changed_modules("net_of_folder:net", before) == ["helper_of_folder.py"]
    (folder / "helper_of_folder.py").unlink()
    assert changed_modules("net_of_folder:net", before) == ["helper_of_folder.py"]


def test_a_package_is_taken_as_a_whole(folder):
    write(folder, pkg_of_folder__nets__deep="from pkg_of_folder import layers", pkg_of_folder__layers="", other="")
    for package in ("pkg_of_folder", "pkg_of_folder/nets"):
        (folder / package / "__init__.py").touch()
    found = module_digests("pkg_of_folder.nets.deep:net")
    assert sorted(found) == ["__init__.py", "layers.py", "nets/__init__.py", "nets/deep.py"]
    assert sorted(module_digests("pkg_of_folder.nets:net")) == sorted(found)


def test_what_is_installed_below_the_folder_is_left_out(folder, monkeypatch):
    installed = folder / "env" / "lib" / "site-packages"
    write(installed, installed_package="")
    monkeypatch.syspath_prepend(installed)
    write(folder, net_of_folder="import installed_package")
    assert list(module_digests("net_of_folder:net")) == ["net_of_folder.py"]
    assert module_digests("installed_package:net") == {}


def test_an_object_of_a_process_has_no_files():
    assert module_digests("dpcompare.objects:model_net") == {}
