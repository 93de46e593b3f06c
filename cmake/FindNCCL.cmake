# SPDX-License-Identifier: Apache-2.0
# NCCL::NCCL, NCCL_VERSION: NCCL, or RCCL with LOCKSTEP_ENABLE_HIP. NCCL ships no CMake package; NCCL_ROOT, NCCL_HOME or
# CMAKE_PREFIX_PATH name its prefix. Python's wheels hold the library without a development link.
if(LOCKSTEP_ENABLE_HIP)
  set(_header rccl/rccl.h)
  set(_names rccl librccl.so.1)
else()
  set(_header nccl.h)
  set(_names nccl libnccl.so.2)
endif()
find_path(NCCL_INCLUDE_DIR ${_header} HINTS ENV NCCL_HOME PATH_SUFFIXES include)
# A folder's wheel before another folder's development link, and the library beside the header.
find_library(NCCL_LIBRARY NAMES ${_names} NAMES_PER_DIR HINTS ENV NCCL_HOME "${NCCL_INCLUDE_DIR}/.." PATH_SUFFIXES lib lib64)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
if(NCCL_INCLUDE_DIR)
  file(STRINGS "${NCCL_INCLUDE_DIR}/${_header}" _parts REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX REPLACE "[^0-9;]" "" _parts "${_parts}")
  list(JOIN _parts "." NCCL_VERSION)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)
if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL UNKNOWN IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES IMPORTED_LOCATION "${NCCL_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}")
endif()
