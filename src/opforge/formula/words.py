# SPDX-License-Identifier: Apache-2.0
"""Words that the written code uses itself, and that nothing else in it may be called."""

from __future__ import annotations

from opforge.formula.graph import FUNCTIONS

RESERVED = {
    *FUNCTIONS,
    *[
        "fabs",
        "rint",
        "larger",
        "smaller",
        "pow",
        "number",
        "term",
        "settle",
        "result",
        "of_row",
        "operator",
        "row",
        "sum",
        "largest",
    ],
    *[
        "cols",
        "rows",
        "count",
        "whole",
        "per_column",
        "per_row",
        "between",
        "empty",
        "sizes",
        "shape",
        "make",
        "op",
        "torch",
        "math",
    ],
    *[
        "reference",
        "backward_reference",
        "validate",
        "cases",
        "over_rows",
        "each_element",
        "each_row",
        "results",
    ],
    *[
        "sum_each_column",
        "each_value",
        "isnan",
        "isinf",
        "min",
        "max",
        "remainder",
        "fmod",
        "div",
        "y0",
        "y1",
        "j0",
        "j1",
        "gamma",
    ],
} - {"gamma"}
