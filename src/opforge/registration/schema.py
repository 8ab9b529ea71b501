# SPDX-License-Identifier: Apache-2.0
"""Parses schema strings, and translates them into the C++ signatures of kernels."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from typing import Any

import torch

from opforge.errors import RecordError
from opforge.terminal.words import did_you_mean

NAME = re.compile(r"[a-z_][a-z0-9_]*\Z")
# Names also become C++ identifiers.
_CPP_KEYWORDS = re.compile(
    r"(alignas|alignof|and|and_eq|asm|auto|bitand|bitor|bool|break|case|catch|char|char16_t"
    r"|char32_t|char8_t|class|co_await|co_return|co_yield|compl|concept|const|const_cast"
    r"|consteval|constexpr|constinit|continue|decltype|default|delete|do|double|dynamic_cast|else"
    r"|enum|explicit|export|extern|false|float|for|friend|goto|if|inline|int|long|mutable"
    r"|namespace|new|noexcept|not|not_eq|nullptr|operator|or|or_eq|private|protected|public"
    r"|register|reinterpret_cast|requires|return|short|signed|sizeof|static|static_assert"
    r"|static_cast|struct|switch|template|this|thread_local|throw|true|try|typedef|typeid"
    r"|typename|union|unsigned|using|virtual|void|volatile|wchar_t|while|xor|xor_eq)\Z"
)

# Types that the stable ABI can pass -> the C++ types that kernels receive.
_CPP = {
    "Tensor": "torch::stable::Tensor",
    "Tensor?": "std::optional<torch::stable::Tensor>",
    "int": "int64_t",
    "float": "double",
    "bool": "bool",
    "int?": "std::optional<int64_t>",
    "float?": "std::optional<double>",
    "bool?": "std::optional<bool>",
    "int[]": "std::vector<int64_t>",
    "int[]?": "std::optional<std::vector<int64_t>>",
}


@dataclass(frozen=True)
class Arg:
    """One argument or return of a schema."""

    name: str
    type: str  # "Tensor", "Tensor?", "int[]", ...

    @property
    def is_tensor(self) -> bool:
        """Whether this is a ``Tensor`` or ``Tensor?``."""
        return self.type in ("Tensor", "Tensor?")


@dataclass(frozen=True)
class Schema:
    """A parsed schema such as ``relu(Tensor x) -> Tensor y``."""

    text: str
    name: str
    args: tuple[Arg, ...]
    returns: tuple[Arg, ...]

    @property
    def tensor_slots(self) -> tuple[int, ...]:
        """Positions of the tensor arguments."""
        return tuple(i for i, a in enumerate(self.args) if a.is_tensor)

    def under(self, name: str) -> str:
        """The schema's text with another name, such as that of an overload."""
        return name + self.text[self.text.index("(") :]

    def in_order(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position. Raises TypeError for wrong keywords, as Python does."""
        names = [a.name for a in self.args]
        for name in named:
            if name not in names:
                meant = did_you_mean(name, names)
                raise TypeError(
                    f"opforge.{self.name}() got an unexpected keyword argument {name!r}; "
                    f"it takes {', '.join(names)}{meant}"
                )
            if name in names[: len(args)]:
                raise TypeError(f"opforge.{self.name}() got multiple values for argument {name!r}")
        if len(args) > len(names):
            return args  # too many: the call reports that
        rest = names[len(args) :]
        if missing := [repr(n) for n in rest if n not in named]:
            many = "arguments" if len(missing) > 1 else "argument"
            raise TypeError(
                f"opforge.{self.name}() missing {len(missing)} required {many}: "
                f"{', '.join(missing)}"
            )
        return (*args, *(named[n] for n in rest))

    @property
    def cpp_signature(self) -> str:
        """The C++ function type of a kernel for this schema."""
        returns = [_CPP[r.type] for r in self.returns]
        result = returns[0] if len(returns) == 1 else f"std::tuple<{', '.join(returns)}>"
        return f"{result}({', '.join(_CPP[a.type] for a in self.args)})"


def check_name(name: str, what: str = "op name") -> str:
    """Raise unless the name is a lower-case identifier. It becomes part of paths and C++ code."""
    if not NAME.match(name):
        raise RecordError(
            f"{what} {name!r} is not valid: it must be a lower-case identifier "
            "(letters, digits and _, not starting with a digit)"
        )
    if keyword.iskeyword(name) or _CPP_KEYWORDS.match(name):
        raise RecordError(f"{what} {name!r} is not valid: it is a keyword of Python or C++")
    return name


def parse(text: str) -> Schema:
    """Parse a schema string. Every argument and return must have a name."""
    check_name(text.partition("(")[0].lstrip())
    try:
        parsed = torch._C.parse_schema(text)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise RecordError(f"schema {text!r} cannot be parsed: {reason}") from None
    name = parsed.name
    args = tuple(_arg(a, text) for a in parsed.arguments)
    returns = tuple(_arg(r, text) for r in parsed.returns)
    if not returns:
        raise RecordError(f"schema {text!r} returns nothing; an op must return at least one tensor")
    return Schema(text.strip(), name, args, returns)


def _arg(argument: torch.Argument, text: str) -> Arg:
    if not argument.name:
        raise RecordError(
            f"schema {text!r}: every argument and return needs a name, "
            "as in 'relu(Tensor x) -> Tensor y'"
        )
    if argument.has_default_value():
        raise RecordError(
            f"schema {text!r}: {argument.name} has a default; torch leaves defaults out of some "
            "calls, so give them in the public function instead"
        )
    if argument.alias_info is not None:
        raise RecordError(
            f"schema {text!r}: {argument.name} is marked as aliased or mutated; "
            "ops are functional, return a new tensor instead"
        )
    type_name = _type_name(str(argument.type))
    if type_name not in _CPP:
        raise RecordError(
            f"schema {text!r}: {argument.name} has type {type_name}, which the stable ABI cannot "
            f"pass. Use one of {', '.join(_CPP)} (a number is float or int, never Scalar)"
        )
    return Arg(argument.name, type_name)


def _type_name(jit_type: str) -> str:
    """Translate torch's ``Optional[List[int]]`` to ``int[]?``, as schemas write it."""
    if match := re.fullmatch(r"Optional\[(.*)\]", jit_type):
        return _type_name(match[1]) + "?"
    if match := re.fullmatch(r"List\[(.*)\]", jit_type):
        return _type_name(match[1]) + "[]"
    return {"number": "Scalar", "SymInt": "int"}.get(jit_type, jit_type)
