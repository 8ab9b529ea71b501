# SPDX-License-Identifier: Apache-2.0
"""The operators that ship with opforge: a folder each."""
