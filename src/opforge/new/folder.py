# SPDX-License-Identifier: Apache-2.0
"""Renders the templates of a kind, and writes them as a folder: all of it, or nothing."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path, PurePath

import jinja2

from opforge.errors import NewError
from opforge.new.marks import marks_in
from opforge.new.request import Request
from opforge.new.texts import Texts
from opforge.new.wrap import wrapped

_TEMPLATES = Path(__file__).parent / "templates"
_WORD = re.compile(r"(?<![\w.:])[a-z_][a-z0-9_]*\b(?!=(?!=))")
_CODE = (".py", ".cuh", ".cu", ".cpp")


def render(request: Request) -> dict[str, str]:
    """File name -> text of the folder of an op."""
    _refuse_reserved(request)
    op = Texts(request)
    templates = environment()
    files = {}
    for template in sorted((_TEMPLATES / request.kind.name).glob("*.jinja")):
        name = template.name.removesuffix(".jinja")
        text = templates.get_template(f"{request.kind.name}/{template.name}").render(op=op)
        files[name] = wrapped(name, text) if name.endswith(_CODE) else text
    about = files.pop("about.md")
    test = templates.get_template("common/test.py.jinja").render(op=op)
    files[f"test_{request.name}.py"] = test
    marks = sorted(
        (m for file, text in files.items() for m in marks_in(file, text)), key=lambda m: m.number
    )
    readme = templates.get_template("common/README.md.jinja")
    files["README.md"] = readme.render(op=op, marks=marks, about=about)
    return files


def write(request: Request, into: Path, force: bool = False) -> list[Path]:
    """Write the folder of an op, and return its files. Raises NewError as ``write_files`` does."""
    return write_files(into / request.name, render(request), force)


def write_files(target: Path, files: dict[str, str], force: bool = False) -> list[Path]:
    """Write texts, by their paths in a folder, and return the files.

    Raises NewError for a folder that is not empty. With ``force``, files of the same names are
    replaced, and all others stay.
    """
    _check_target(target, files, force)
    into = target.parent
    try:
        into.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=into))
    except OSError as error:
        raise NewError(f"{target} cannot be written: {error.strerror}") from None
    try:
        for name, text in files.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_text(text, encoding="utf-8")
        draft.chmod(0o777 & ~_umask())
        if target.is_dir() and any(target.iterdir()):
            for name in files:
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(draft / name, target / name)
        else:
            os.replace(draft, target)  # an empty folder is replaced as well
    except OSError as error:
        raise NewError(f"{target} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return [target / name for name in files]


def _check_target(target: Path, files: dict[str, str], force: bool) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise NewError(f"{target} is there and is no folder; move it, or give another --into")
    if not target.is_dir() or not any(target.iterdir()):
        return
    if not force:
        there = [name for name in files if os.path.lexists(target / name)]
        does = f"replace {', '.join(there)} in it" if there else "write beside what is in it"
        raise NewError(
            f"{target} is not empty; nothing was written. Give another name or --into, or let "
            f"--force {does}"
        )
    for name in files:
        file = target / name
        if file.is_dir() or file.is_symlink():
            raise NewError(f"{file} is no plain file, and is not replaced; move it")
        for above in (target / parent for parent in PurePath(name).parents):
            if above != target and (above.is_symlink() or above.is_file()):
                raise NewError(f"{above} is no folder of its own; move it")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def environment() -> jinja2.Environment:
    """What renders the templates."""
    # Not {{ and {%: C++ has these.
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        variable_start_string="[[",
        variable_end_string="]]",
        block_start_string="<%",
        block_end_string="%>",
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )


def _refuse_reserved(request: Request) -> None:
    """Raise NewError for a name that the code of the templates uses otherwise."""
    used = {"total"}
    for template in (_TEMPLATES / request.kind.name).glob("*.jinja"):
        if template.name.removesuffix(".jinja").endswith(_CODE):
            used |= _words_of(template.read_text(encoding="utf-8"))
    used -= {"eps"}  # the templates mean the argument
    names = [("op", request.name)]
    names += [("argument", a.name) for a in request.schema.args]
    names += [("output", r.name) for r in request.schema.returns]
    for what, name in names:
        if name in used or (what != "op" and name == request.name):
            raise NewError(
                f"the code of the kind {request.kind.name} uses the name {name!r} itself; give the "
                f"{what} another, as in {name}_value"
            )


def _words_of(text: str) -> set[str]:
    """The identifiers in those functions and structs of a template that also have an argument's.

    Members of others, comments, strings and the template's own words are left out.
    """
    text = re.sub(r'<%.*?%>|""".*?"""|//.*$|#.*$', "", text, flags=re.MULTILINE)
    text = re.sub(r'"[^"\n]*"|\[\[op\.[nN]ame\]\]', "", text)
    found: set[str] = set()
    for block in re.split(r"\n(?=\S)(?![})])", text):
        words = re.sub(r"\[\[.*?\]\]", "", block)
        if words != block:
            found |= set(_WORD.findall(words))
    return found
