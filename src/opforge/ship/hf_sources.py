# SPDX-License-Identifier: Apache-2.0
"""The Python files that exported ops need: their own, and those of opforge that these import.

Every export has its own copy under its own name, so imports become relative. Then opforge may be
missing, or be there in another version, and several exports may be loaded at once.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import opforge
from opforge.errors import BuildError
from opforge.op import Op

COPY = "_opforge"  # what opforge is called in an export
LAYERS = "layers.py"  # a file of an op folder: the layers that kernelize swaps in
_PACKAGE = Path(opforge.__file__).parent
_RUNTIME = Path(__file__).parent / "hf_runtime"
# What an export has in place of opforge's own file. These are also what all else is reached from.
_INSTEAD = {
    "__init__.py": _RUNTIME / "__init__.py",
    "build/load.py": _RUNTIME / "load.py",
    "layer.py": _RUNTIME / "layer.py",
}
_ANYWHERE = {*sys.stdlib_module_names, "torch"}


def python_files(ops: Sequence[Op]) -> dict[str, str]:
    """The files by their path in the copy of opforge. Every op is in ``ops/<its name>/``."""
    folders = {op.name: op.folder for op in ops if op.folder is not None}
    queue = [*_INSTEAD, *(f"ops/{name}/op.py" for name in folders)]
    queue += [f"ops/{n}/{LAYERS}" for n, folder in folders.items() if (folder / LAYERS).is_file()]
    found: dict[str, str] = {}
    while queue:
        place = queue.pop()
        file = _source(place, folders)
        if place in found or not file.is_file():
            continue
        module = _Module(place, file)
        found[place] = module.relative()
        queue += module.imported()
    return found


def _source(place: str, folders: dict[str, Path]) -> Path:
    """The file that is copied to a place."""
    parts = place.split("/")
    if parts[0] == "ops" and parts[1] in folders:
        return folders[parts[1]].joinpath(*parts[2:])
    return _INSTEAD.get(place, _PACKAGE / place)


class _Module:
    """A file that is copied: what it imports, and its text with relative imports."""

    def __init__(self, place: str, file: Path) -> None:
        self.file = file
        self.package = place.split("/")[:-1]
        self.text = file.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text, str(file))

    def imported(self) -> Iterator[str]:
        """The places of what it imports, and of the packages these are in.

        What a function imports from opforge is not needed to run an op: it builds, or makes cases.
        """
        at_once = set(_executed(self.tree))
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and (node.level or node in at_once):
                yield from self._places(node)
            elif isinstance(node, ast.Import) and node in at_once:
                for alias in node.names:
                    yield from self._places(ast.ImportFrom(alias.name, [], 0))

    def _places(self, node: ast.ImportFrom) -> Iterator[str]:
        base = (node.module or "").split(".") if node.module else []
        if node.level:
            base = [*self.package[: len(self.package) + 1 - node.level], *base]
        elif base[0] != "opforge":
            self._check_is_anywhere(base[0])
            return
        else:
            base = base[1:]
        for parts in (base, *([*base, alias.name] for alias in node.names)):
            for count in range(1, len(parts) + 1):
                path = "/".join(parts[:count])
                yield from (f"{path}.py", f"{path}/__init__.py")

    def _check_is_anywhere(self, package: str) -> None:
        if package not in _ANYWHERE:
            raise BuildError(
                f"{self.file} imports {package}, which may be missing where the kernel is loaded: "
                "only torch and Python's own modules are there; import it in the function that "
                "needs it"
            )

    def relative(self) -> str:
        """Its text, with relative imports in place of those from opforge."""
        lines = [line.encode() for line in self.text.splitlines(keepends=True)]
        nodes = [n for n in ast.walk(self.tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
        for node in sorted(nodes, key=lambda n: n.lineno, reverse=True):
            if new := self._rewritten(node):
                first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
                head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
                lines[first : last + 1] = [head + new.encode() + tail]
        return b"".join(lines).decode()

    def _rewritten(self, node: ast.Import | ast.ImportFrom) -> str:
        """The import as the copy of opforge needs it; empty if it stays as it is."""
        level = len(self.package) + 1  # of the copy's own package
        if isinstance(node, ast.ImportFrom):
            package, _, rest = (node.module or "").partition(".")
            if node.level or package != "opforge":
                return ""
            return ast.unparse(ast.ImportFrom(rest or None, node.names, level))
        if not any(alias.name.partition(".")[0] == "opforge" for alias in node.names):
            return ""
        if len(node.names) > 1 or ("." in node.names[0].name and not node.names[0].asname):
            raise BuildError(
                f"{self.file}:{node.lineno}: `{ast.unparse(node)}` cannot be exported; write "
                "`import opforge`, or `from opforge.x import y`"
            )
        package, _, name = node.names[0].name.rpartition(".")
        bound = node.names[0].asname or name
        if not package:
            return ast.unparse(ast.ImportFrom(None, [ast.alias(COPY, bound)], level + 1))
        module = package.partition(".")[2] or None
        return ast.unparse(ast.ImportFrom(module, [ast.alias(name, bound)], level))


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a module is imported, except what it only tries to import."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(child, ast.Try) and child.handlers:
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        yield child
        yield from _executed(child)


def calls_of_other_ops(op: Op, known: Sequence[str]) -> list[str]:
    """The ops among ``known`` that an op's Python calls as ``opforge.<op>``."""
    assert op.folder is not None
    tree = ast.parse((op.folder / "op.py").read_text(encoding="utf-8"))
    called = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "opforge"
    }
    return sorted(called & set(known) - {op.name})


def layer_names(op: Op) -> list[str]:
    """The classes in the op's own ``layers.py``."""
    assert op.folder is not None
    file = op.folder / LAYERS
    body = ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else []
    return [n.name for n in body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")]
