# SPDX-License-Identifier: Apache-2.0
"""``opforge check``: runs the rows of the check on ops, and reports the results."""
