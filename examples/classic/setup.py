# SPDX-License-Identifier: Apache-2.0
"""Builds the module: ``python setup.py build_ext --inplace``."""

import torch
from setuptools import setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

has_cuda = CUDA_HOME is not None and torch.version.cuda is not None
sources = ["scale_bias_relu.cpp"] + (["scale_bias_relu.cu"] if has_cuda else [])
macros = [("WITH_CUDA", None)] if has_cuda else []
extension = CUDAExtension if has_cuda else CppExtension

setup(
    name="classic_scale_bias_relu",
    version="0.1.0",
    ext_modules=[extension("classic_scale_bias_relu", sources, define_macros=macros)],
    cmdclass={"build_ext": BuildExtension},
)
