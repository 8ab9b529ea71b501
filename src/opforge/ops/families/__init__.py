# SPDX-License-Identifier: Apache-2.0
"""What several ops share in Python: formulas, checks and cases of a family."""
