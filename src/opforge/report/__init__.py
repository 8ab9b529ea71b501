# SPDX-License-Identifier: Apache-2.0
"""One page of HTML from results of ``opforge bench`` and reports of ``opforge check``."""
