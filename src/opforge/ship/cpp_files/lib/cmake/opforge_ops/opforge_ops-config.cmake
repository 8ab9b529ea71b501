# SPDX-License-Identifier: Apache-2.0
# find_package(opforge_ops) makes the target opforge::ops. Link it, and the ops are there.
get_filename_component(_opforge_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(_opforge_library "${_opforge_root}/lib/libopforge_ops.so")

if(NOT TARGET opforge::ops)
  add_library(opforge::ops INTERFACE IMPORTED)
  # The program names no symbol of the library: without these options the linker may leave it out.
  set_target_properties(
    opforge::ops
    PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_opforge_root}/include"
               INTERFACE_LINK_LIBRARIES
               "-Wl,--push-state,--no-as-needed;${_opforge_library};-Wl,--pop-state")
endif()

unset(_opforge_root)
unset(_opforge_library)
