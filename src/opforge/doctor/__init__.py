# SPDX-License-Identifier: Apache-2.0
"""What is found on this machine."""
