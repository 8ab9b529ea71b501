# SPDX-License-Identifier: Apache-2.0
"""``kernel.cuh``: a struct for each kernel, whose functions are the formula for one element."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from opforge.formula.graph import COLUMNS, REDUCTIONS, Value, cone
from opforge.formula.group import Kernel, kind_of
from opforge.formula.source import Source
from opforge.formula.words import RESERVED
from opforge.formula.write.expressions import Language, Writer, quoted

_FUNCTIONS = {
    "maximum": "larger", "minimum": "smaller", "round": "rint", "abs": "fabs",
}  # fmt: skip


def _statement(name: str, text: str, is_mask: bool) -> str:
    return f"const {'auto' if is_mask else 'V'} {name} = {text};"


CPP = Language(
    number=lambda text: f"number<V>({text})",
    function=lambda op: _FUNCTIONS.get(op, op),
    where=lambda mask, a, b: f"{mask} ? {a} : {b}",
    statement=_statement,
    size=lambda value: size_name(value),
    comment="//",
    power=lambda a, b: f"pow({a}, {b})",
    negate_mask=lambda mask: f"(({mask}) == 0)",
)


def size_name(value: Value) -> str:
    """The member that holds a size: how many columns, rows or both there are."""
    if COLUMNS not in value.reduced:
        return "rows"
    return "cols" if value.reduced == {COLUMNS} else "count"


@dataclass
class Struct:
    """A kernel as a struct: its text, and what the host code has to know."""

    kernel: Kernel
    name: str
    text: str = ""
    members: list[str] = field(default_factory=list)
    operations: int = 0  # for an element


def struct(kernel: Kernel, name: str, source: Source, frame: tuple[str, ...]) -> Struct:
    """Write the struct of a kernel."""
    return _StructWriter(kernel, name, source, frame).write()


class _StructWriter:
    def __init__(self, kernel: Kernel, name: str, source: Source, frame: tuple[str, ...]) -> None:
        self._kernel, self._name, self._source, self._frame = kernel, name, source, frame
        self._leaves = kernel.leaves()
        self._values = cone(kernel.targets(), self._leaves)

    def write(self) -> Struct:
        made = Struct(self._kernel, self._name)
        made.members = self._members()
        whole = frozenset(self._frame)
        made.operations = sum(
            v.axes == whole and bool(v.args) and v not in self._leaves for v in self._values
        )
        body = self._rows() if self._kernel.kind == "rows" else self._single()
        lines = [*self._heading(), f"struct {self._name} {{"]
        if made.members:
            lines += [f"  double {', '.join(made.members)};", ""]
        made.text = "\n".join([*lines, *(f"  {line}" if line else "" for line in body), "};", ""])
        return made

    def _heading(self) -> list[str]:
        lines = quoted(self._source, self._values)
        gradients = [
            r.tensor
            for r in (
                *self._kernel.results,
                *self._kernel.of_row,
                *([self._kernel.total] if self._kernel.total else []),
            )
        ]
        if any(t.startswith("grad_") for t in gradients):
            what = " and ".join([", ".join(gradients[:-1]), gradients[-1]][len(gradients) < 2 :])
            lines = [f"{what}{', through' if lines else ''}", *(f"  {x}" for x in lines)]
        return [f"// {line}" for line in lines]

    def _members(self) -> list[str]:
        found: list[str] = []
        for value in self._values:
            if value in self._leaves:
                continue
            name = value.name if value.op == "number" else ""
            if value.op == "size":
                name = size_name(value)
            if name and name not in found:
                found.append(name)
        return sorted(found, key=lambda n: n in ("cols", "rows", "count"))

    def _parameters(self) -> list[str]:
        """What functions of an element get: whole tensors, then values per column (and row)."""
        kinds = ["whole", "column"] if self._kernel.kind == "rows" else None
        return [
            tensor
            for kind in (kinds or ("whole", "column", "row", "one", "part"))
            for tensor in self._kernel.given.get(kind, {}).values()  # type: ignore[call-overload]
        ]

    def _function(
        self, head: str, targets: Iterable[Value], names: Mapping[Value, str], form: str, tail: str
    ) -> list[str]:
        """A function that returns some values. ``form`` has {} for them."""
        writer = Writer(CPP, names, {*self._parameters(), *self._members(), *RESERVED})
        made = writer.write(targets)
        taken = self._used(head, writer.lines + made)
        return [
            "template <class V>",
            f"OPFORGE_FORMULA {taken}{tail} {{",
            *(f"  {line}" for line in writer.lines),
            f"  {form.format(', '.join(made))}",
            "}",
        ]

    def _used(self, head: str, lines: list[str]) -> str:
        """The head of a function, without the names of parameters that it does not use."""
        words = set("".join(c if c.isalnum() or c == "_" else " " for c in " ".join(lines)).split())
        parameters = [f"V {p}" if p in words else "V" for p in self._parameters()]
        if "const Row<V>& row" in head and "row" not in words:
            head = head.replace("const Row<V>& row", "const Row<V>&")
        return head.replace("...", ", ".join(parameters))

    def _single(self) -> list[str]:
        """An operator() for kernels without steps."""
        targets = self._kernel.targets()
        one = len(targets) == 1
        kind = "V" if one else f"Values<V, {len(targets)}>"
        form = "return {};" if one else "return {{{}}};"
        return self._function(f"{kind} operator()(...)", targets, self._leaves, form, " const")

    # Kernels over rows.

    def _rows(self) -> list[str]:
        self._find_steps()
        given = {**self._kernel.given.get("row", {}), **self._kernel.given.get("one", {})}
        for value, tensor in given.items():
            self._of_row[value] = f"row.{tensor}"
        taken = set(given.values())
        for value in self._kept:
            self._of_row[value] = f"row.{self._member(value, taken)}"
        members = [*given.values(), *(self._of_row[v].removeprefix("row.") for v in self._kept)]
        lines = [f"static constexpr int kSteps = {len(self._steps)};", ""]
        lines += ["// What is known of a row.", "template <class V>", "struct Row {"]
        lines += [f"  V {', '.join(members)};"] if members else []
        lines += ["};", ""]
        for step, reductions in enumerate(self._steps):
            lines += [*self._step(step, reductions), ""]
        if self._kernel.results:
            lines += self._results()
        if self._kernel.of_row:
            lines += [""] if self._kernel.results else []
            values = [r.value for r in self._kernel.of_row]
            names = self._elementwise_names()
            lines += self._function(
                f"Values<V, {len(values)}> of_row(const Row<V>& row)",
                values,
                names,
                "return {{{}}};",
                " const",
            )
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def _find_steps(self) -> None:
        """Reductions over the row by step, and the values that are kept of a row."""
        self._of_row: dict[Value, str] = {}
        self._step_of: dict[Value, int] = {}  # of numbers per row: after which step they are known
        groups: dict[tuple[int, str], list[Value]] = {}
        after: dict[Value, int] = {}
        for value in self._values:
            if value in self._leaves:
                after[value] = -1
                continue
            before = max((after[a] for a in value.args), default=-1)
            if value.op in REDUCTIONS:
                groups.setdefault((before + 1, value.op), []).append(value)
                before += 1
            after[value] = before
        # Steps that find sums and steps that find the largest alternate as they come.
        order = sorted(groups, key=lambda key: (key[0], key[1]))
        self._steps = [groups[key] for key in order]
        place = {v: i for i, key in enumerate(order) for v in groups[key]}
        for value in self._values:
            if value in self._leaves:
                self._step_of[value] = -1
            else:
                own = place.get(value, -1)
                self._step_of[value] = max([own, *(self._step_of[a] for a in value.args)])
        self._kept = self._find_kept()

    def _find_kept(self) -> list[Value]:
        """Numbers per row that elements, later steps or results read."""
        per_row = {
            v
            for v in self._values
            if v not in self._leaves
            and not v.on_host
            and self._step_of[v] >= 0
            and kind_of(v, self._frame) in ("row", "one")
        }
        kept = {r.value for r in self._kernel.of_row if r.value in per_row}
        for value in self._values:
            for argument in () if value in self._leaves else value.args:
                if argument not in per_row:
                    continue
                later = self._step_of[argument] < self._step_of[value]
                if value not in per_row or later or value.op in REDUCTIONS:
                    kept.add(argument)
        return [v for v in self._values if v in kept]

    def _member(self, value: Value, taken: set[str]) -> str:
        nouns = {"amax": "largest", "sum": "total", "rsqrt": "scale", "sqrt": "root"}
        mean = value.op == "div" and value.args[0].op == "sum" and value.args[1].op == "size"
        name = value.name or ("mean" if mean else nouns.get(value.op, "part"))
        count, choice = 2, name
        while choice in taken:
            choice, count = f"{name}{count}", count + 1
        taken.add(choice)
        return choice

    def _elementwise_names(self) -> dict[Value, str]:
        return {**self._leaves, **self._of_row}

    def _step(self, step: int, reductions: list[Value]) -> list[str]:
        largest = reductions[0].op == "amax"
        kind = f"{'Largest' if largest else 'Sums'}<V, {len(reductions)}>"
        operands = [r.args[0] for r in reductions]
        values = cone(operands, self._elementwise_names())
        lines = [f"// {line}" for line in quoted(self._source, [*reductions, *values])]
        head = f"{kind} term(Step<{step}>, const Row<V>& row, ...)"
        lines += self._function(
            head, operands, self._elementwise_names(), "return {{{}}};", " const"
        )
        found = "largest" if largest else "sum"
        names = self._elementwise_names()
        names = {
            v: n for v, n in names.items() if self._step_of.get(v, -1) < step or v in self._leaves
        }
        names |= {r: f"{found}[{i}]" for i, r in enumerate(reductions)}
        settled: list[str] = []
        for value in (v for v in self._kept if self._step_of[v] == step):
            known = {v: n for v, n in names.items() if v is not value or v in reductions}
            writer = Writer(CPP, known, {*self._members(), *RESERVED})
            text = writer.write([value])[0]
            settled += [*writer.lines, f"{self._of_row[value]} = {text};"]
            names[value] = self._of_row[value]
        head = f"void settle(Step<{step}>, Row<V>& row, const {kind}& {found}) const"
        return [
            *lines,
            "",
            "template <class V>",
            f"OPFORGE_FORMULA {head} {{",
            *(f"  {line}" for line in settled),
            "}",
        ]

    def _results(self) -> list[str]:
        results = [r.value for r in self._kernel.results]
        names = self._elementwise_names()
        lines = [f"// {line}" for line in quoted(self._source, cone(results, names))]
        head = f"Values<V, {len(results)}> result(const Row<V>& row, ...)"
        return [*lines, *self._function(head, results, names, "return {{{}}};", " const")]
