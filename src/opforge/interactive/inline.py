# SPDX-License-Identifier: Apache-2.0
"""``opforge.inline``: an op without a folder, for scripts and notebooks.

It writes the op folder itself, into the cache, under a name made of its content. Everything else
then finds an op folder like any other. A record that comes again is the same op; one that has
changed is a new op in a namespace of its own, so that both exist side by side.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from opforge import discover
from opforge.build import cache, origins
from opforge.build.generated import signature_header
from opforge.errors import RecordError
from opforge.interactive import elementwise as formulas
from opforge.interactive import program
from opforge.interactive.strings import Caller, Place
from opforge.op import Build, Op
from opforge.registration.schema import parse
from opforge.terminal.words import did_you_mean

_FILES = {"cuda": "cuda.cu", "cpu": "cpu.cpp"}
_PREAMBLE = "#include <opforge/host.h>\n"
_FIELDS = {f.name for f in fields(Op) if f.init} - {"schema", "reference", "namespace"}

_lock = threading.Lock()
# By content; where that is not all, also by the values of the record, which are kept alive.
_known: dict[tuple[object, ...], tuple[Op, dict[str, str], dict[str, Any]]] = {}


def inline(
    schema: str,
    reference: Callable[..., Any] | None = None,
    *,
    elementwise: str | Mapping[str, str] = "",
    cuda: str = "",
    cpu: str = "",
    **record: Any,
) -> Callable[..., Any]:
    """Make an op from a schema, a function and strings of C++, and return it.

    ``softcap = opforge.inline("softcap(Tensor x, float cap) -> Tensor y",
    lambda x, cap: cap * torch.tanh(x / cap), elementwise="y = cap * tanh(x / cap)")``

    Without ``reference``, it is a decorator of the reference. docs/inline.md has the details.

    Args:
        schema: names every argument and return.
        reference: the math in plain PyTorch. Without kernels, it is what runs.
        elementwise: an expression of one element in C++, for GPU and CPU. It assigns the output,
            and sees tensors and numbers by their names. Where the backward is a
            :class:`opforge.Backward`, a dict has one for each schema's name.
        cuda: the whole source of the CUDA kernels and their host code, with an ``OPFORGE_IMPL``.
        cpu: the same for the CPU.
        record: other fields of :class:`opforge.Op`, such as ``backward`` and ``cases``.
    """
    caller = Caller.of(sys._getframe(1))
    texts = {"elementwise": elementwise, "cuda": cuda, "cpu": cpu}
    request = Request(schema, texts, record)
    if reference is not None:
        return request.define(reference, caller)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(function):
            raise RecordError(
                f"opforge.inline({schema!r}) has no reference; pass reference=<a function in "
                "plain PyTorch>, or put it above that function as a decorator"
            )
        return request.define(function, caller)

    return decorate


@dataclass
class Request:
    """What an op is made of, apart from its reference. Raises for what cannot be an op."""

    schema: str
    texts: Mapping[str, Any]
    record: Mapping[str, Any]
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = parse(self.schema).name
        if self.name in discover.builtin_names():
            raise RecordError(
                f"opforge.inline: {self.name} is the name of a built-in op; choose another name"
            )
        for unknown in set(self.record) - _FIELDS:
            known = ["elementwise", "cuda", "cpu", *sorted(_FIELDS)]
            raise RecordError(
                f"opforge.inline({self.name}): there is no field {unknown!r}; the fields are "
                f"{', '.join(known)}{did_you_mean(unknown, known)}"
            )
        for argument, text in self.texts.items():
            if not isinstance(text, str) and (
                argument != "elementwise" or not isinstance(text, Mapping)
            ):
                raise RecordError(
                    f"opforge.inline({self.name}): {argument} must be a string of C++, got {text!r}"
                )
        if self.texts.get("elementwise") and (self.texts.get("cuda") or self.texts.get("cpu")):
            raise RecordError(
                f"opforge.inline({self.name}): elementwise makes the kernels for GPU and CPU; give "
                "either elementwise, or cuda and cpu"
            )

    def define(self, reference: Callable[..., Any], place: Place) -> Op:
        """Make the op, or find it if it was made before. ``place`` is where the strings are."""
        made = Op(schema=self.schema, reference=reference, **self._record())
        made.__doc__ = reference.__doc__
        sources, written = self._sources(made, place)
        compiled = _digest(signature_header(made), repr(made.build), *_pairs(sources))[:8]
        with _lock:
            op = self._find(made, sources, compiled)
        assert op.folder is not None
        origins.keep(op.folder, written)
        return op

    def _record(self) -> dict[str, Any]:
        derived: dict[str, Any] = {}
        if self.texts.get("elementwise"):
            derived = {"pointwise": True, "validate": formulas.validate}
            if not {"dtypes", "own_dtypes"} & set(self.record):
                derived["build"] = Build(by_dtype=["cuda"])  # a first call compiles its own alone
        return {**derived, **self.record}

    def _sources(self, op: Op, place: Place) -> tuple[dict[str, str], list[origins.Origin]]:
        if given := self.texts.get("elementwise"):
            each = _formulas(op, given)
            sources, places = formulas.sources(list(zip(op.kernels, each, strict=True)))
            return sources, [
                place.origin(text, formulas.HEADER, line, columns=False)
                for text, lines in zip(each, places, strict=True)
                for line in lines
            ]
        sources, found = {}, []
        for argument, file in _FILES.items():
            if text := self.texts.get(argument):
                _check_source(op, argument, text)
                sources[file] = _PREAMBLE + text + "\n"
                found.append(place.origin(text, file, 2))
        return sources, found

    def _find(self, made: Op, sources: dict[str, str], compiled: str) -> Op:
        arguments = {"schema": self.schema, "reference": made.reference, **self._record()}
        unwritable: tuple[object, ...] = ()
        try:
            text = program.write(arguments)
        except program.Unwritable as reason:
            text = program.refusal(self.name, str(reason))
            unwritable = tuple(id(value) for value in arguments.values())
        key = (_digest(text, *_pairs(sources)), compiled, *unwritable)
        if key in _known:
            op, files, _ = _known[key]
            assert op.folder is not None
            _write(op.folder, files)  # it may have been pruned
            return op
        # Named after what is compiled: a new reference alone compiles nothing again.
        made.namespace = f"opforge_inline_{compiled}"
        if discover.is_taken(made):
            made.namespace += f"_{_digest(*map(str, key))[:8]}"
        files = {"op.py": _with_namespace(text, made.namespace), **sources}
        folder = cache.inline_root() / f"{self.name}-{_digest(*_pairs(files))[:16]}"
        _write(folder, files)
        discover.adopt(made, folder)
        _known[key] = made, files, arguments
        return made


def _formulas(op: Op, given: str | Mapping[str, str]) -> list[str]:
    """The formula of each schema, in order."""
    names = [schema.name for schema in op.kernels]
    texts = {op.name: given} if isinstance(given, str) else dict(given)
    if set(texts) != set(names):
        forms = ", ".join(f'"{n}": "…"' for n in names)
        raise RecordError(
            f"opforge.inline({op.name}): elementwise has formulas for {', '.join(texts)}, but the "
            f"record's schemas are {' and '.join(names)}; give elementwise={{{forms}}}"
        )
    return [texts[name] for name in names]


def _check_source(op: Op, argument: str, text: str) -> None:
    for schema in op.kernels:
        if not re.search(rf"\bOPFORGE_IMPL\(\s*{schema.name}\s*,", text):
            raise RecordError(
                f"opforge.inline({op.name}): {argument} has no OPFORGE_IMPL({schema.name}, "
                "<function>); it is a whole source. For an expression of one element, give "
                "elementwise= instead"
            )


def _with_namespace(text: str, namespace: str) -> str:
    return text.replace("\nop = Op(\n", f"\nop = Op(\n    namespace={namespace!r},\n")


def _pairs(files: Mapping[str, str]) -> list[str]:
    return [part for name in sorted(files) for part in (name, files[name])]


def _digest(*parts: str) -> str:
    state = hashlib.sha256()
    for part in parts:
        state.update(f"{len(part)}\0{part}".encode())
    return state.hexdigest()


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Write a folder in one step, unless it is there. Its time tells when it was last used."""
    with contextlib.suppress(OSError):
        if all((folder / name).read_text() == text for name, text in files.items()):
            os.utime(folder)
            return
    draft = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    try:
        for name, text in files.items():
            (draft / name).write_text(text)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process has just written it
            os.replace(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
