"""build_engine.py on a small tree of its own: what is compiled with what, and what is compiled
again.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.distributed import ROOT

sys.path.insert(0, str(ROOT))
import build_engine as engine  # noqa: E402

del sys.path[0]

CXX = os.environ.get("CXX", "g++").split()

FILES = {
    "csrc/base/one.h": "inline int one() { return 1; }\n",
    "csrc/base/core.cc": '#include "base/one.h"\nextern "C" int core() { return one(); }\n',
    "csrc/base/alone.cc": 'extern "C" int alone() { return 2; }\n',
    # Reaches torch and pybind11 by a header of the project alone.
    "csrc/backend/work.h": "#include <ATen/tensor.h>\n",
    "csrc/backend/work.cc": '#include "backend/work.h"\nextern "C" int work() { return tensor; }\n',
    "csrc/base/precompiled.h": "",
    "csrc/backend/precompiled.h": "#include <ATen/tensor.h>\n",
    "csrc/bindings/a.cc": "#include <pybind11/bind.h>\nstatic int a() { return bound; }\n",
    "csrc/bindings/b.cc": '#include <pybind11/bind.h>\nextern "C" int b() { return a(); }\n',
    "csrc/bindings/both.cc": '#include "backend/work.h"\n#include <pybind11/bind.h>\n'
    'extern "C" int both() { return tensor + bound; }\n',
    "tests/machinery/mock.cc": '#include "base/one.h"\nextern "C" int mock() { return one(); }\n',
    "torch/ATen/tensor.h": "#pragma once\nstatic const int tensor = 10;\n",
    "torch/pybind11/bind.h": "#pragma once\nstatic const int bound = 5;\n",
}
ALL = sorted(name for name in FILES if name.startswith("csrc/") and name.endswith(".cc"))
MACHINERY = ["csrc/base/core.cc", "tests/machinery/mock.cc"]


class Tree:
    def __init__(self, root: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.root, self.capfd = root, capfd
        self.torch = root / "torch"
        self.sources = list(ALL)
        for name, text in FILES.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def build(self, tag: str = "torch1", *flags: str) -> set[str]:
        """Names of what was made, without folders but core's."""
        base = ["-fPIC", "-O0", *flags]
        headers = [*base, f"-I{self.torch}"]
        tools = engine.Tools(
            CXX, {"core": base, "python": headers, "torch": headers}, [*CXX, "-shared"]
        )
        modules = [engine.Module("_C", self.sources, []), engine.Module("_m", MACHINERY, [])]
        self.capfd.readouterr()
        self.built = engine.build(self.root / "build", tag, tools, modules)
        self.said = self.capfd.readouterr().out
        made = [line.split()[-1] for line in self.said.splitlines() if line.startswith("[")]
        return {"core/" * ("/core/" in one) + Path(one).name for one in made}

    def call(self, function: str, module: str = "_C") -> int:
        """In a copy: the loader takes a file of a known name for the one that it has."""
        copy = shutil.copy(self.built[module], self.root / f"{len(os.listdir(self.root))}.so")
        return int(getattr(ctypes.CDLL(copy), function)())


@pytest.fixture
def tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Tree:
    if shutil.which(CXX[0]) is None:
        pytest.skip(f"there is no C++ compiler {CXX[0]!r}; CXX= takes another")
    monkeypatch.setattr(engine, "ROOT", tmp_path)
    monkeypatch.setenv("CCACHE_DISABLE", "1")
    monkeypatch.setenv("CGX_UNITS", "0")  # but for the tests of units
    return Tree(tmp_path, capfd)


EVERYTHING = {
    *("core/core.o", "core/alone.o", "core/mock.o", "work.o", "_C_python.o", "_C_bindings.o"),
    *("core/precompiled.h.gch", "precompiled.h.gch", "_C.so", "_m.so"),
}


def test_each_source_is_compiled_once_and_then_no_more(tree: Tree) -> None:
    assert tree.build() == EVERYTHING
    assert tree.build() == set()
    for function, value in {"core": 1, "alone": 2, "work": 10, "b": 5, "both": 15}.items():
        assert tree.call(function) == value
    assert tree.call("mock", "_m") == 1


def test_units_are_sources_of_a_folder_in_even_parts(tree: Tree) -> None:
    names = [f"csrc/a/{number:02}.cc" for number in range(9)]
    for name in [*names, "csrc/b/x.cc", engine.LEVELS]:
        tree.write(name, "")
    assert engine.units_of(names) == [names[:4], names[4:]]
    assert engine.units_of([*names[:8], "csrc/b/x.cc"]) == [names[:8], ["csrc/b/x.cc"]]
    assert engine.units_of(names[::-1], together=False) == [[name] for name in names]
    loops = ["csrc/a/loops.cc", "csrc/a/more_loops.cc"]
    for loop in loops:
        tree.write(loop, f'#include "{engine.LEVELS.removeprefix("csrc/")}"\n')
    found = engine.units_of([*names[:2], *loops])
    assert sorted(found) == sorted([names[:2], *([loop] for loop in loops)])
    assert engine.units_of([]) == []


def test_a_unit_is_compiled_once(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CGX_UNITS")
    # The module of the tests has one source of that folder only.
    assert tree.build() == EVERYTHING - {"core/alone.o"} | {"core/alone_and_1_more.o"}
    assert tree.build() == set()
    for function, value in {"core": 1, "alone": 2, "work": 10, "b": 5, "both": 15}.items():
        assert tree.call(function) == value
    tree.write("csrc/base/alone.cc", 'extern "C" int alone() { return 3; }\n')
    assert tree.build() == {"core/alone_and_1_more.o", "_C.so"}
    assert (tree.call("alone"), tree.call("core")) == (3, 1)
    tree.sources.remove("csrc/base/alone.cc")
    assert tree.build() == {"_C.so"}  # with what the other module has


def test_the_wish_for_units_is_checked(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CGX_UNITS", "yes")
    with pytest.raises(SystemExit, match="CGX_UNITS is 'yes', allowed: 0, 1"):
        tree.build()


def test_another_torch_shares_the_core(tree: Tree) -> None:
    tree.build("torch1")
    assert tree.build("torch2") == {one for one in EVERYTHING if not one.startswith("core/")}
    assert tree.build("torch1") == set()


def test_a_copy_goes_on_with_the_objects(
    tree: Tree, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.build()
    tree.root = Path(shutil.copytree(tree.root, tmp_path_factory.mktemp("copy") / "a tree"))
    monkeypatch.setattr(engine, "ROOT", tree.root)
    assert tree.build() == set()
    tree.write("csrc/base/alone.cc", 'extern "C" int alone() { return 3; }\n')
    assert tree.build() == {"core/alone.o", "_C.so"}
    assert tree.call("alone") == 3


def test_a_changed_header_compiles_what_includes_it(tree: Tree) -> None:
    tree.build()
    tree.write("csrc/base/one.h", "inline int one() { return 3; }\n")
    assert tree.build() == {"core/core.o", "core/mock.o", "_C.so", "_m.so"}
    assert tree.call("core") == tree.call("mock", "_m") == 3


def test_a_changed_torch_is_precompiled_anew(tree: Tree) -> None:
    tree.build()
    tree.write("torch/ATen/tensor.h", "#pragma once\nstatic const int tensor = 20;\n")
    assert tree.build() == {"precompiled.h.gch", "work.o", "_C_bindings.o", "_C.so"}
    assert (tree.call("work"), tree.call("both")) == (20, 25)


def test_torchs_headers_are_read_once(tree: Tree) -> None:
    tree.write("torch/ATen/tensor.h", '#pragma message "read"\n' + FILES["torch/ATen/tensor.h"])
    tree.build()
    assert len(re.findall(r"(?:note|warning): .*read", tree.said)) == 1, tree.said


def test_a_source_that_goes_or_comes_links_anew(tree: Tree) -> None:
    tree.build()
    tree.sources.remove("csrc/base/alone.cc")
    assert tree.build() == {"_C.so"}
    with pytest.raises(AttributeError):
        tree.call("alone")
    tree.sources.append("csrc/base/alone.cc")
    assert tree.build() == {"_C.so"}
    assert tree.call("alone") == 2


def test_sources_that_are_compiled_as_one_may_go_too(tree: Tree) -> None:
    tree.build()
    tree.sources.remove("csrc/bindings/b.cc")
    assert tree.build() == {"_C_python.o", "_C.so"}
    with pytest.raises(AttributeError):
        tree.call("b")


def test_another_flag_compiles_all(tree: Tree) -> None:
    tree.build()
    assert tree.build("torch1", "-DOTHER") == EVERYTHING


def test_what_the_compiler_says_ends_the_build(tree: Tree) -> None:
    tree.write("csrc/base/alone.cc", "this is no C++\n")
    with pytest.raises(SystemExit, match=r"the build failed \(ninja -f .*, status 1\)"):
        tree.build()
    assert "alone.cc:1" in "".join(tree.capfd.readouterr())


def test_without_ninja_the_build_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engine.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="pip install ninja"):
        engine.find_ninja()
    (tmp_path / "ninja").touch()
    assert engine.find_ninja() == str(tmp_path / "ninja")


def test_ccache_is_used_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Once: some systems have a g++ on the PATH that is ccache."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert engine._cache(["g++"]) == ""
    ccache = tmp_path / "ccache"
    ccache.touch()
    ccache.chmod(0o755)
    assert engine._cache(["g++"]) == f"{ccache} "
    assert engine._cache(["ccache", "g++"]) == ""
    (tmp_path / "g++").symlink_to(ccache)
    assert engine._cache(["g++"]) == ""


@pytest.mark.parametrize("wanted", ["0", "-1", "two"])
def test_max_jobs_is_checked(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    monkeypatch.setenv("MAX_JOBS", wanted)
    with pytest.raises(SystemExit, match=f"MAX_JOBS is '{wanted}', allowed: a number from 1 on"):
        engine.jobs()


def test_kinds_of_the_projects_own_sources() -> None:
    kinds = {
        "csrc/reduce/engine.cc": "core",
        "csrc/backend/work/task_queue.cc": "core",
        "csrc/backend/forward.cc": "torch",
        "csrc/backend/adapters/exceptions.cc": "python",
        "csrc/bindings/group.cc": "bindings",
        "tests/machinery/stress.cc": "core",
        "tests/machinery/module.cc": "python",
    }
    assert {source: engine.kind_of(source) for source in kinds} == kinds
