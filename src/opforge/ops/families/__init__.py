# SPDX-License-Identifier: Apache-2.0
"""Python code that several ops share: formulas, checks and cases of a family."""
