# SPDX-License-Identifier: Apache-2.0
"""A folder in the layout of Hugging Face's ``kernels`` package.

    <folder>/build/CARD.md                                    the page of the kernel
    <folder>/build/torch-stable-abi210-cpu-x86_64-linux/      a variant; another one per CUDA
        metadata.json  __init__.py  layers.py
        lib/        the libraries
        _opforge/   the part of opforge that runs (hf_sources.py)

torch's names of ops have to be unique, because a process may load several versions of a kernel, or
several variants. So the kernels are compiled for a namespace that is made of everything that goes
into a variant. It is also the ``id`` in metadata.json, and the name of the Python module.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import hashlib
import json
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import opforge
from opforge import discover
from opforge.build import cache, compile, toolchain
from opforge.build.plan import ABI, Plan, plan_all
from opforge.build.targets import CPU, CUDA, has_sources
from opforge.errors import BuildError
from opforge.op import Op
from opforge.ship.exportable import must_have_kernels
from opforge.ship.folder import to_folder
from opforge.ship.hf_sources import COPY, calls_of_other_ops, layer_names, python_files
from opforge.ship.target_folder import draft_of, must_take
from opforge.terminal.words import camel

LOADER = "0.16.0"  # the first version of `kernels` that knows variants for the stable ABI
_NAME = re.compile(r"[a-z][-a-z0-9]*[a-z0-9]\Z")
# Imports variants as `kernels` does, as if opforge were not installed.
_TRIAL = """
import importlib.util, json, sys
sys.modules["opforge"] = None
for variant in sys.argv[1:]:
    name = json.load(open(variant + "/metadata.json"))["id"]
    spec = importlib.util.spec_from_file_location(name, variant + "/__init__.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
"""


@dataclass(frozen=True)
class _Variant:
    """One build of the kernel: what a machine with this backend loads."""

    kernel: str
    backend: str  # "cpu" or "cuda"
    label: str  # in its folder's name: "cpu" or "cu130"
    ops: list[Op]  # records in the namespace of the variant
    targets: list[str]
    arch: str | None

    @property
    def folder(self) -> str:
        abi, system = "".join(map(str, ABI)), platform.system().lower()
        return f"torch-stable-abi{abi}-{self.label}-{platform.machine()}-{system}"

    @property
    def plans(self) -> list[Plan]:
        pairs = [(op, t) for op in self.ops for t in self.targets if has_sources(op, t)]
        return [plan for op, target in pairs for plan in plan_all(op, target, self.arch)]

    def renamed(self, namespace: str) -> _Variant:
        """The same with its ops in a namespace."""
        ops = [copy.copy(op) for op in self.ops]
        for op in ops:
            op.namespace = namespace
        return _Variant(self.kernel, self.backend, self.label, ops, self.targets, self.arch)

    def unique(self, files: dict[str, str]) -> _Variant:
        """The same in a namespace of its own."""
        draft = f"_{self.kernel.replace('-', '_')}_{self.backend}"
        state = hashlib.sha256(json.dumps(files, sort_keys=True).encode())
        for plan in self.renamed(draft).plans:
            state.update(plan.key.encode())
        return self.renamed(f"{draft}_{state.hexdigest()[:12]}")


def export(
    ops: Sequence[Op],
    targets: Sequence[str],
    arch: str | None = None,
    output: Path | None = None,
    force: bool = False,
) -> Path:
    """Compile ops and write them as one kernel, named like the folder; returns the folder."""
    folder = output or Path("dist") / _default_name(ops)
    kernel = _name_of(folder)
    every = [*_called(ops), *ops]
    _check_ops(every, targets)
    must_take(folder, force)
    files = _variant_files(ops, every)
    drafts = [
        _Variant(kernel, backend, label, every, own, arch)
        for backend, label, own in _backends(every, targets)
    ]
    variants = [draft.unique(files) for draft in drafts]
    planned = [(variant, plan) for variant in variants for plan in variant.plans]
    built = compile.build([plan for _, plan in planned])
    with draft_of(folder, whole="build") as draft:
        place = draft / "build"
        for variant in variants:
            pairs = zip(planned, built, strict=True)
            own = [library for (of, _), library in pairs if of is variant]
            _write_variant(place / variant.folder, variant, own, files)
        _try_importing([place / variant.folder for variant in variants])
        (place / "CARD.md").write_text(_card(kernel, ops), encoding="utf-8")
    return folder


def _default_name(ops: Sequence[Op]) -> str:
    if len(ops) > 1:
        raise BuildError("several ops make one kernel; name it with --out, as in --out dist/norms")
    return ops[0].name.strip("_").replace("_", "-")


def _name_of(folder: Path) -> str:
    """The name of the kernel, which has to be that of its repository."""
    name = folder.absolute().name.lower().replace("_", "-")
    if not _NAME.match(name):
        raise BuildError(
            f"{folder.absolute().name!r} cannot be the name of a kernel, which has at least two "
            "letters, digits or dashes and starts with a letter; choose another folder with --out"
        )
    return name


def _check_ops(ops: Sequence[Op], targets: Sequence[str]) -> None:
    names = [op.name for op in ops]
    for op in ops:
        must_have_kernels(op, targets)
        if names.count(op.name) > 1:
            raise BuildError(f"two of the ops are called {op.name}; export them one by one")


def _called(ops: Sequence[Op]) -> list[Op]:
    """The built-in ops that these call, except those among them."""
    names = {n for op in ops for n in calls_of_other_ops(op, discover.builtin_names())}
    return [op for op in map(discover.find, sorted(names)) if op not in ops]


def _backends(ops: Sequence[Op], targets: Sequence[str]) -> list[tuple[str, str, list[str]]]:
    """For each variant: its backend, its label, and the targets whose libraries it holds.

    Where torch has CUDA, tensors on the CPU are served by the CUDA variant as well.
    """
    own = [target for target in targets if any(has_sources(op, target) for op in ops)]
    found = [(CPU.device, "cpu", [CPU.name])] if CPU.name in own else []
    if CUDA.name in own:
        major, minor = toolchain.find_cuda().nvcc.version.split(".")[:2]
        found.append((CUDA.device, f"cu{major}{minor}", own))
    return found


def _variant_files(ops: Sequence[Op], every: Sequence[Op]) -> dict[str, str]:
    """The text files of a variant except its metadata, by path."""
    files = {f"{COPY}/{place}": text for place, text in python_files(every).items()}
    if licence := _licence():
        files[f"{COPY}/LICENSE"] = licence
    return files | {"__init__.py": _init_file(ops, every), "layers.py": _layers_file(ops)}


def _licence() -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.distribution("opforge").files or []:
            if file.parent.name == "licenses":
                return file.read_text(encoding="utf-8")
    return ""


def _init_file(ops: Sequence[Op], every: Sequence[Op]) -> str:
    names = sorted(op.name for op in ops)
    lines = [f'"""{", ".join(names)}: made with opforge {opforge.__version__}."""', ""]
    lines += [f"from .{COPY}.build import load as _load", ""]
    lines += [f'_load.record("{op.name}")' for op in every if op not in ops]
    lines += [f'{name} = _load.function("{name}")' for name in names]
    lines += ["", "from . import layers  # noqa: E402", ""]
    return "\n".join([*lines, f"__all__ = {['layers', *names]!r}", ""])


def _layers_file(ops: Sequence[Op]) -> str:
    lines = ['"""The layers that kernelize puts in place of a model\'s own."""', ""]
    own = {op: layer_names(op) for op in ops}
    imports = [
        f"from .{COPY}.ops.{op.name}.layers import {', '.join(n)}" for op, n in own.items() if n
    ]
    made = [op for op, names in own.items() if not names]
    if made:
        imports += [
            f"from .{COPY}.build import load as _load",
            f"from .{COPY}.layer import layer as _layer",
        ]
    lines += [*sorted(imports), ""]
    lines += [
        f'{camel(op.name)} = _layer("{camel(op.name)}", _load.function("{op.name}"))' for op in made
    ]
    return "\n".join([*lines, f"__all__ = {sorted(_all_layers(ops))!r}", ""])


def _all_layers(ops: Sequence[Op]) -> list[str]:
    return [name for op in ops for name in (layer_names(op) or [camel(op.name)])]


def _write_variant(
    folder: Path, variant: _Variant, libraries: list[cache.Library], files: dict[str, str]
) -> None:
    to_folder(libraries, folder / "lib")
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    archs = [a for library in libraries for a in library.manifest["archs"]]
    backend = {"type": variant.backend}
    facts = {
        "name": variant.kernel,
        "id": variant.ops[0].namespace,
        "version": 1,
        "license": _licence_of(variant.ops),
        "kernels-minver": LOADER,
        "python-depends": [],
        "backend": backend | ({"archs": list(dict.fromkeys(archs))} if archs else {}),
        "digest": {"algorithm": "sha256", "files": _digests(folder)},
    }
    (folder / "metadata.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _try_importing(variants: Sequence[Path]) -> None:
    """Import them in a child process; raise for what would only fail on another machine."""
    command = [sys.executable, "-B", "-c", _TRIAL, *map(str, variants)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise BuildError(f"the kernel was built but cannot be imported without opforge: {last}")


def _licence_of(ops: Sequence[Op]) -> str:
    builtin = all(op.folder and op.folder.parent == discover.BUILTIN_FOLDER for op in ops)
    return "apache-2.0" if builtin else "other"  # its author may choose another one


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): base64.b64encode(
            hashlib.sha256(path.read_bytes()).digest()
        ).decode()
        for path in files
    }


def _card(kernel: str, ops: Sequence[Op]) -> str:
    functions = "\n".join(f"- `{name}`" for name in sorted(op.name for op in ops))
    layers = "\n".join(f"- `{name}`" for name in sorted(_all_layers(ops)))
    return f"""---
library_name: kernels
license: {_licence_of(ops)}
---
# {kernel}

Made with opforge {opforge.__version__}, for torch {ABI[0]}.{ABI[1]} and newer.
Forward and backward, with and without `torch.compile`.

```python
from kernels import get_kernel

kernel = get_kernel("<owner>/{kernel}", version=1)
```

Functions:

{functions}

Layers, for `kernelize`:

{layers}
"""
