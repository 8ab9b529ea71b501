# SPDX-License-Identifier: Apache-2.0
"""Finds cases that reach code no case of the record reaches."""
