# SPDX-License-Identifier: Apache-2.0
"""Searches for cases that reach code which the record's own cases do not reach."""
