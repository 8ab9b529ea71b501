# SPDX-License-Identifier: Apache-2.0
"""``compile_kernels``, whose source goes into the files that `opforge export` writes.

It imports nothing of opforge, as those files must run without it.
"""

from __future__ import annotations


def compile_kernels(
    name: str, files: dict[str, str], builds: dict[str, dict[str, list[str]]]
) -> None:
    """Compile kernels for the GPU that is there, or for the CPU, and load them into torch.

    ``name`` changes with the content of the files, so what was compiled before is used again.
    """
    import os
    from pathlib import Path

    import torch
    from torch.utils import cpp_extension

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in builds:
        raise RuntimeError(f"{name} has kernels for {' and '.join(builds)} only, not for {device}")
    build = builds[device]
    hidden = "-fvisibility=hidden"
    host = ["-O2", "-DNDEBUG", hidden, *build["common"]]
    kernels = ["-O3", "-DNDEBUG", f"-Xcompiler={hidden}", *build["common"], *build["flags"]]
    vectors = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    if device == "cpu":
        host += build["flags"] + (["-march=x86-64-v3"] if vectors else [])
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()
    folder = Path(root, f"{name}_{device}{'_avx2' if vectors else ''}")
    for file, text in files.items():
        place = folder / file
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists() or place.read_text() != text:  # else ninja would compile it again
            place.write_text(text)
    cpp_extension.load(
        name=f"{name}_{device}",
        sources=[str(folder / source) for source in build["sources"]],
        extra_cflags=host,
        extra_cuda_cflags=kernels,
        extra_ldflags=build["libraries"],
        extra_include_paths=[str(folder)],
        build_directory=str(folder),
        with_cuda=device == "cuda",
        is_python_module=False,
    )
