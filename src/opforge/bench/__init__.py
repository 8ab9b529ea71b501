# SPDX-License-Identifier: Apache-2.0
"""``opforge bench``: how fast an op is, beside the limit and beside everybody else."""
