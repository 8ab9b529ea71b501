# SPDX-License-Identifier: Apache-2.0
"""``opforge bench``: times an op against its ceiling and against other implementations."""
