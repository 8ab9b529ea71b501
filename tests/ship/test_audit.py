# SPDX-License-Identifier: Apache-2.0
"""The platform tag of a wheel, and what lets libraries load on older systems."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import textwrap
from pathlib import Path

import pytest
from helpers import REAL_CXX

from opforge.build.plan import INCLUDE_DIR
from opforge.errors import BuildError
from opforge.ship import audit

MACHINE = platform.machine()


def library(folder: Path, name: str, source: str, *more: str) -> Path:
    """A shared library made of C++ code."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.cpp").write_text(textwrap.dedent(source))
    path = folder / f"{name}.so"
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{INCLUDE_DIR}"]
    command = [REAL_CXX, *flags, str(folder / f"{name}.cpp"), "-o", str(path), *more]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return path


def using(symbol: str, version: str) -> str:
    """A source that needs a version of a symbol."""
    return f"""
        extern "C" void used();
        __asm__(".symver used,{symbol}@{version}");
        void* kept() __attribute__((visibility("default")));
        void* kept() {{ return reinterpret_cast<void*>(&used); }}
    """


@pytest.mark.parametrize(
    ("symbol", "version", "tag"),
    [
        ("memcpy", "GLIBC_2.14", "manylinux_2_17"),
        ("expf", "GLIBC_2.27", "manylinux_2_27"),
        ("exp", "GLIBC_2.29", "manylinux_2_29"),
        ("_ZSt28__throw_bad_array_new_lengthv", "GLIBCXX_3.4.29", "manylinux_2_34"),
        ("_ZdlPvm", "CXXABI_1.3.9", "manylinux_2_24"),
    ],
)
@pytest.mark.skipif(MACHINE != "x86_64", reason="versions of symbols differ by architecture")
def test_the_newest_symbol_decides(tmp_path: Path, symbol: str, version: str, tag: str) -> None:
    plain = library(tmp_path, "plain", "")
    newer = library(tmp_path, "newer", using(symbol, version), "-Wl,--no-as-needed", "-lm")
    verdict = audit.judge([plain, newer])
    assert verdict.platform == f"{tag}_{MACHINE}"
    assert verdict.is_portable
    assert verdict.is_as_wide_as_torch == (int(tag.split("_")[2]) <= 28)
    if tag != "manylinux_2_17":
        assert verdict.why == f"newer.so needs {symbol} ({version})"


def test_a_library_that_nobody_else_has_makes_it_no_manylinux_wheel(tmp_path: Path) -> None:
    link = ["-Wl,--no-as-needed", f"-L{tmp_path}"]
    for name in ("libmine.so", "libcublas.so.13"):
        library(tmp_path, "made", "", f"-Wl,-soname,{name}").rename(tmp_path / name)
    user = library(tmp_path, "user", "", *link, "-l:libmine.so", "-l:libcublas.so.13")
    verdict = audit.judge([user])
    assert verdict.platform == f"linux_{MACHINE}"
    assert not verdict.is_portable
    assert verdict.why == (
        "user.so needs libmine.so, which is neither part of Linux nor comes with torch"
    )
    assert audit.judge([user, tmp_path / "libmine.so"]).is_portable  # it is in the wheel


def test_a_file_that_is_no_library_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "odd.so").write_text("not one")
    with pytest.raises(BuildError, match=r"odd\.so is not a library that can be read"):
        audit.judge([tmp_path / "odd.so"])


def test_names_of_functions_are_readable() -> None:
    assert audit.readable("x.so needs _ZdlPvm (V)") == (
        "x.so needs operator delete(void*, unsigned long) (V)"
    )


# What libraries take from newer runtimes; streams as in the error texts of torch's headers.
NEWER = """
    #include <dlfcn.h>

    #include <cmath>
    #include <memory>
    #include <sstream>
    #include <vector>

    #ifdef OPFORGE_FIRST_GLIBC  // a compiler that has neither is used for the comparison
    extern "C" [[noreturn]] void __cxa_call_terminate(void*);
    namespace std { void ios_base_library_init(); }
    #endif

    extern "C" __attribute__((visibility("default"))) double use(double x, long n) {
      const auto shared = std::make_shared<double>(x);
      const std::shared_ptr<double> other = shared;
      double sum = *other + exp(x) + exp2(x) + log(x) + log2(x) + pow(x, x) + hypot(x, x);
      std::stringstream a;
      std::ostringstream b;
      a << sum;
      b << n;
      sum += double(a.str().size() + std::move(b).str().size());
      Dl_info info;
      if (!dladdr(reinterpret_cast<void*>(&use), &info)) return -1;
      void* const self = dlopen(info.dli_fname, RTLD_NOW);
      if (self == nullptr || dlerror() != nullptr) return -2;
      if (dlsym(self, "use") != reinterpret_cast<void*>(&use)) return -3;
    #ifdef OPFORGE_FIRST_GLIBC
      std::ios_base_library_init();
      if (n == 0) __cxa_call_terminate(nullptr);
    #endif
      try {
        return sum + std::vector<double>(size_t(n)).size();
      } catch (const std::bad_alloc&) {
        return -4;
      } catch (const std::length_error&) {
        return -5;
      }
    }
"""


OLDER = "#include <opforge/host/older_systems.h>\n" + textwrap.dedent(NEWER)


def test_libraries_get_along_with_older_runtimes(tmp_path: Path) -> None:
    assert not audit.judge([library(tmp_path, "newer", NEWER)]).is_as_wide_as_torch
    made = library(tmp_path, "older", OLDER)
    assert audit.judge([made]).is_as_wide_as_torch, audit.judge([made])
    use = ctypes.CDLL(str(made)).use
    use.restype, use.argtypes = ctypes.c_double, [ctypes.c_double, ctypes.c_long]
    # 2 + e² + 4 + log 2 + 1 + 4 + √8; six digits of it and a point; one digit; one element
    assert use(2.0, 1) == pytest.approx(21.910626 + 7 + 1 + 1, abs=0.01)
    assert use(2.0, -1) == -5


def test_a_static_runtime_may_bring_along_the_same_functions(tmp_path: Path) -> None:
    made = library(tmp_path, "older", OLDER, "-static-libstdc++")
    use = ctypes.CDLL(str(made)).use
    use.restype, use.argtypes = ctypes.c_double, [ctypes.c_double, ctypes.c_long]
    assert use(2.0, -1) == -5
