# SPDX-License-Identifier: Apache-2.0
# find_package(Lockstep) for an installed tree. The libraries install themselves (lockstep_add_library).
include(CMakePackageConfigHelpers)
set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep")
configure_package_config_file(cmake/LockstepConfig.cmake.in "${PROJECT_BINARY_DIR}/LockstepConfig.cmake"
  INSTALL_DESTINATION "${_package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake" COMPATIBILITY SameMajorVersion)
install(FILES "${PROJECT_BINARY_DIR}/LockstepConfig.cmake" "${PROJECT_BINARY_DIR}/LockstepConfigVersion.cmake"
  DESTINATION "${_package_dir}")
if(LOCKSTEP_ENABLE_NCCL)
  install(FILES cmake/FindNCCL.cmake DESTINATION "${_package_dir}")
endif()
install(EXPORT LockstepTargets NAMESPACE lockstep:: DESTINATION "${_package_dir}")
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DATADIR}/licenses/lockstep")
