# SPDX-License-Identifier: Apache-2.0
"""`opforge build --cpp`: programs without Python call the ops."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from helpers import PATIENCE, foreign_torch_symbols, python, write_op
from typer.testing import CliRunner

import opforge
from opforge import cli
from opforge.errors import OpforgeError
from opforge.ship import audit

needs_cmake = pytest.mark.skipif(not shutil.which("cmake"), reason="needs cmake")

# Its kernels are in a library per dtype, which the program has to find by itself. (One will do.)
BY_DTYPE = """\
    import torch
    from opforge import Build, Op

    op = Op(
        schema="cpp_twice(Tensor x, int[]? unused) -> Tensor y",
        reference=lambda x, unused: 2 * x,
        dtypes=(torch.float64,),
        build=Build(by_dtype=["cpu"]),
    )
"""
BY_DTYPE_CPP = """\
#include <opforge/host.h>

namespace opforge {

Tensor twice(const Tensor& x, const std::optional<std::vector<int64_t>>&) {
  const Tensor y = empty(sizes(x), x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    for (int64_t i = 0; i < x.numel(); ++i) mutable_data<T>(y)[i] = 2 * data<T>(x)[i];
  });
  return y;
}

OPFORGE_IMPL(cpp_twice, twice)

}  // namespace opforge
"""


def build(*words: object) -> str:
    """Run `opforge build` in this process; raises what it raises."""
    done = CliRunner().invoke(cli.app, ["build", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for C++ programs with two ops, moved from where it was written."""
    place = tmp_path_factory.mktemp("cpp")
    twice = write_op(place / "twice", op_py=BY_DTYPE, cpp=BY_DTYPE_CPP)
    assert "for C++:" in build("relu", twice, "--cpp", "--cpu", "--out", place / "first")
    return (place / "first").rename(place / "moved")


def test_its_libraries_load_wherever_torch_does(shipped: Path) -> None:
    verdict = audit.judge(shipped.rglob("*.so"))
    assert verdict.is_as_wide_as_torch, verdict.why


@pytest.fixture(scope="module")
def program(shipped: Path) -> Path:
    """The example, built as its first lines say."""
    return made(shipped / "example")


def made(source: Path) -> Path:
    binary = source / "build"
    prefix = torch.utils.cmake_prefix_path
    run("cmake", "-S", source, "-B", binary, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", binary)
    return binary / "example"


def run(*command: object) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def called(program: Path, what: object, *arguments: object) -> tuple[torch.Tensor, ...]:
    """The results of an op or a compiled model in the example program."""
    given, found = program.parent / "in.pt", program.parent / "out.pt"
    torch.save(list(arguments), given)
    run(program, what, given, found)
    return torch.load(found)


@needs_cmake
def test_a_program_without_python_calls_the_ops(program: Path) -> None:
    lines = run(program).splitlines()
    assert lines == [
        "opforge::relu(Tensor x) -> Tensor y",
        "opforge::relu_backward(Tensor grad_y, Tensor y) -> Tensor grad_x",
        "opforge_user::cpp_twice(Tensor x, int[]? unused) -> Tensor y",
    ]
    x = torch.randn(5, 7)
    assert torch.equal(called(program, "opforge::relu", x)[0], opforge.relu(x))
    (y,) = called(program, "opforge_user::cpp_twice", x.double(), None)
    assert torch.equal(y, 2 * x.double())


@needs_cmake
def test_errors_of_the_example(program: Path, tmp_path: Path) -> None:
    torch.save([torch.ones(3)], tmp_path / "in.pt")

    def error(what: str, given: str) -> str:
        command = [program, what, tmp_path / given, tmp_path / "out.pt"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 1
        return done.stderr

    assert "Could not find schema for opforge::nothing" in error("opforge::nothing", "in.pt")
    assert "cannot read" in error("opforge::relu", "nothing.pt")


def test_the_library_uses_the_stable_abi_alone(shipped: Path) -> None:
    assert foreign_torch_symbols(shipped / "lib" / "libopforge_ops.so") == set()


def test_in_python_the_library_keeps_definitions_that_are_there(shipped: Path) -> None:
    code = """
        import sys, torch, opforge
        opforge.relu
        torch.ops.load_library(sys.argv[1])
        x = torch.tensor([-1.0, 2.0], requires_grad=True)
        opforge.relu(x).sum().backward()
        assert x.grad.tolist() == [0, 1]
        assert torch.ops.opforge_user.cpp_twice(x.detach().double(), None).tolist() == [-2, 4]
        opforge.register_all()
    """
    python(code, shipped / "lib" / "libopforge_ops.so")


def test_python_after_the_library_says_what_to_do(shipped: Path) -> None:
    code = """
        import sys, torch
        torch.ops.load_library(sys.argv[1])
        assert torch.ops.opforge.relu(torch.tensor([-1.0, 2.0])).tolist() == [0, 2]
        import opforge
        try:
            opforge.relu
        except opforge.errors.OpforgeError as error:
            print(error)
    """
    said = python(code, shipped / "lib" / "libopforge_ops.so").stdout
    assert said.startswith("torch has an op opforge::relu already, from a library for C++ programs")
    assert "load that library after the op" in said


@needs_cmake
def test_a_library_that_is_missing_is_named(program: Path, shipped: Path) -> None:
    library = shipped / "lib" / "relu-cpu.so"
    library.rename(library.with_suffix(".away"))
    done = subprocess.run([program], capture_output=True, text=True, timeout=PATIENCE)
    library.with_suffix(".away").rename(library)
    assert f"opforge: {library} cannot be loaded: " in done.stderr
    assert "opforge::relu(Tensor x) -> Tensor y" in done.stdout


CALLS = """
#include <opforge_ops.h>
#include <torch/torch.h>
#include <iostream>

int main() {
  const at::Tensor x = torch::tensor({-1.0, 2.0}), weight = torch::tensor({1.0, 3.0});
  const auto [y, h, rstd] = opforge::rms_norm(x, weight, {}, {}, 1e-6, 0.0, 0, 0, 0.0, true);
  std::cout << (y - torch::rms_norm(x, {2}, weight, 1e-6)).abs().max().item<double>() << '\\n';
  std::cout << opforge::reduce_sum(opforge::relu(x), at::IntArrayRef{0}, true) << '\\n';
}
"""


@pytest.mark.nightly
@needs_cmake
def test_a_program_calls_the_functions_of_the_header(tmp_path: Path) -> None:
    folder = tmp_path / "ops"
    build("relu", "rms_norm", "reduce_sum", "--cpp", "--cpu", "--out", folder)
    (folder / "example" / "main.cpp").write_text(CALLS)
    difference, *total = run(made(folder / "example")).splitlines()
    assert float(difference) < 1e-6
    assert total[0].strip() == "2"


@pytest.mark.nightly
@needs_cmake
def test_a_model_of_aotinductor_gives_what_python_gives(tmp_path: Path) -> None:
    code = """
        import sys, torch, opforge

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(64, 64)
                self.norm = opforge.nn.RMSNorm(64)

            def forward(self, x):
                return opforge.relu(self.norm(self.linear(x)))

        torch.manual_seed(0)
        model, x = Model().eval(), torch.randn(8, 64)
        with torch.no_grad():
            exported = torch.export.export(model, (x,))
            torch.export.save(exported, sys.argv[2])
            torch._inductor.aoti_compile_and_package(exported, package_path=sys.argv[1])
            torch.save((x, model(x)), sys.argv[3])
    """
    package, model = tmp_path / "package.pt2", tmp_path / "model.pt2"
    python(code, package, model, tmp_path / "data.pt")
    x, y = torch.load(tmp_path / "data.pt")
    build("relu", "rms_norm", "--cpp", "--cpu", "--out", tmp_path / "ops")
    program = made(tmp_path / "ops" / "example")
    assert torch.equal(called(program, package, x)[0], y)
    code = """
        import sys, torch, opforge
        package, model, data = sys.argv[1:]
        x, y = torch.load(data)
        for load in (torch._inductor.aoti_load_package, torch.export.load):
            try:
                load(package if "aoti" in load.__name__ else model)
            except RuntimeError:
                pass
            else:
                raise AssertionError("register_all is not needed any more")
        opforge.register_all()
        assert torch.equal(torch._inductor.aoti_load_package(package)(x), y)
        assert torch.equal(torch.export.load(model).module()(x), y)
    """
    python(code, package, model, tmp_path / "data.pt")


def test_export_load_finds_ops_that_are_registered(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return opforge.relu(x)

    exported = torch.export.export(Model(), (torch.ones(3),))
    torch.export.save(exported, tmp_path / "model.pt2")
    code = """
        import sys, torch, opforge
        opforge.register_all()
        print(torch.export.load(sys.argv[1]).module()(torch.tensor([-1.0, 0.0, 2.0])).tolist())
        for name in opforge.discover.builtin_names():
            assert getattr(torch.ops.opforge, name).default
    """
    assert python(code, tmp_path / "model.pt2").stdout == "[0.0, 0.0, 2.0]\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["linear_cross_entropy"], "linear_cross_entropy is composed of other ops in Python"),
        (["FORMULA"], "formula has no source for cpu or cuda, .*add a kernel .cpu.cpp"),
        (["relu", "FULL"], "is not empty; choose another place .*--force"),
        (["relu", "FILE"], "is no folder; choose another place with --out"),
    ],
)
def test_nothing_is_written_where_it_cannot_work(
    words: list[str], said: str, tmp_path: Path
) -> None:
    formula = write_op(tmp_path / "formula", name="formula", cpp=None)
    out = tmp_path / "out"
    if "FULL" in words:
        out.mkdir()
        (out / "mine.txt").write_text("mine")
    if "FILE" in words:
        out.write_text("mine")
    ops = [str(formula) if w == "FORMULA" else w for w in words if w not in ("FULL", "FILE")]
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OpforgeError, match=said):
        build(*ops, "--cpp", "--cpu", "--out", out)
    assert sorted(tmp_path.rglob("*")) == before


def test_force_replaces_files_and_leaves_others(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "opforge_ops.h").write_text("old")
    build("relu", "--cpp", "--cpu", "--out", tmp_path, "--force")
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert "opforge::relu" in (tmp_path / "include" / "opforge_ops.h").read_text()


def test_without_a_compiler_nothing_is_written(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    with pytest.raises(OpforgeError, match="no-compiler"):
        build("relu", "--cpp", "--cpu", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
