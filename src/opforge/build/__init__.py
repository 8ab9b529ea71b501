# SPDX-License-Identifier: Apache-2.0
"""The builder: plans, compilers, the cache, and loading."""
