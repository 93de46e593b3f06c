# SPDX-License-Identifier: Apache-2.0
# lockstep_add_library(NAME [SOURCES ...] [LINK ...]): target lockstep_NAME, alias lockstep::NAME.
function(lockstep_add_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(lockstep_${name} ${ARG_SOURCES})
  add_library(lockstep::${name} ALIAS lockstep_${name})
  set_target_properties(lockstep_${name} PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(lockstep_${name} PUBLIC ${ARG_LINK})
  target_include_directories(lockstep_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/lockstep>)
  target_compile_features(lockstep_${name} PUBLIC cxx_std_17)
  lockstep_compile_options(lockstep_${name})
  install(TARGETS lockstep_${name} EXPORT LockstepTargets)
  install(DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/lockstep"
    FILES_MATCHING PATTERN "*.hpp")
endfunction()

# lockstep_backend_option(CUDA): LOCKSTEP_ENABLE_CUDA. Lockstep runs on Kokkos' default execution space, so the answer is
# Kokkos' own; the option lets a build demand it and fail at configuration instead of running on the wrong devices.
function(lockstep_backend_option backend)
  set(has OFF)
  if(backend IN_LIST Kokkos_DEVICES)
    set(has ON)
  endif()
  option(LOCKSTEP_ENABLE_${backend} "Kokkos with ${backend}" ${has})
  if(LOCKSTEP_ENABLE_${backend} AND NOT has)
    message(FATAL_ERROR "LOCKSTEP_ENABLE_${backend}=ON, but the Kokkos in ${Kokkos_DIR} has only ${Kokkos_DEVICES}")
  elseif(has AND NOT LOCKSTEP_ENABLE_${backend})
    message(FATAL_ERROR "LOCKSTEP_ENABLE_${backend}=OFF, but the Kokkos in ${Kokkos_DIR} has ${Kokkos_DEVICES}")
  endif()
endfunction()

# Warnings, sanitizers and the floating-point contract, for Lockstep's own targets only. Contraction is off because
# a compiler that fuses a multiply-add in one loop and not in its tail changes bits; kernels fuse by name.
function(lockstep_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -ffp-contract=off ${LOCKSTEP_ARCH_FLAGS}
    $<$<BOOL:${LOCKSTEP_ENABLE_WERROR}>:-Werror>)
  if(LOCKSTEP_ENABLE_CUDA)  # the same of device code, through Kokkos' nvcc_wrapper
    target_compile_options(${target} PRIVATE --fmad=false
      $<$<BOOL:${LOCKSTEP_ENABLE_WERROR}>:SHELL:-Xcudafe --promote_warnings>)
    # Kokkos names the driver's library, of which it may use nothing; programs start without it.
    target_link_options(${target} PRIVATE LINKER:--as-needed)
  endif()
  if(LOCKSTEP_ENABLE_SANITIZERS)
    target_compile_options(${target} PRIVATE -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=address,undefined)
  endif()
endfunction()

# For every test. Instrumented code needs several times the time; the GoogleTest executables look for leaks while MPI still
# holds its memory (test_main.cpp), other programs cannot.
# processors: how many cores the test keeps busy, so that `ctest --parallel` fills the machine and no more.
function(lockstep_test_properties name timeout processors environment)
  if(LOCKSTEP_ENABLE_SANITIZERS)
    math(EXPR timeout "5 * ${timeout}")
    list(APPEND environment "ASAN_OPTIONS=strict_string_checks=1:leak_check_at_exit=0" "UBSAN_OPTIONS=print_stacktrace=1"
      "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0")
  endif()
  if(environment MATCHES "singleton_isolated")  # one folder for all of a user's: those that end take it from those that start
    list(APPEND environment "OMPI_MCA_orte_tmpdir_base=${PROJECT_BINARY_DIR}/tests/tmp/${name}")
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} PROCESSORS ${processors} ENVIRONMENT "${environment}")
endfunction()

# lockstep_add_test(NAME SOURCES ... LINK ... [RANKS 1 2 4] [FILTER tests] [TIMEOUT seconds] [PROCESSORS n]): one GoogleTest
# executable and one ctest entry without a launcher, one more per MPI rank count, which runs the tests that FILTER names (or all).
function(lockstep_add_test name)
  cmake_parse_arguments(ARG "" "FILTER;TIMEOUT;PROCESSORS" "SOURCES;LINK;RANKS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_PROCESSORS)
    set(ARG_PROCESSORS ${LOCKSTEP_TEST_THREADS})
  endif()
  add_executable(test_${name} ${ARG_SOURCES})
  target_link_libraries(test_${name} PRIVATE ${ARG_LINK} lockstep_test_main)
  lockstep_compile_options(test_${name})
  set_target_properties(test_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/bin")
  add_test(NAME ${name} COMMAND test_${name})
  lockstep_test_properties(${name} ${ARG_TIMEOUT} ${ARG_PROCESSORS} "${LOCKSTEP_PROGRAM_ENVIRONMENT}")
  if(NOT LOCKSTEP_ENABLE_MPI)
    return()
  endif()
  set(filter "")
  if(ARG_FILTER)
    set(filter "--gtest_filter=${ARG_FILTER}")
  endif()
  foreach(ranks IN LISTS ARG_RANKS)
    add_test(NAME ${name}_np${ranks}
             COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${MPIEXEC_PREFLAGS}
                     $<TARGET_FILE:test_${name}> ${MPIEXEC_POSTFLAGS} ${filter})
    lockstep_test_properties(${name}_np${ranks} ${ARG_TIMEOUT} 2 "${LOCKSTEP_LAUNCHER_ENVIRONMENT}")
  endforeach()
endfunction()

# lockstep_add_program_test(NAME SCRIPT [PYTHON command...] [ENVIRONMENT ...] [TIMEOUT seconds] [PROCESSORS n]): a test of the built
# program in Python's unittest, which finds the program and the launcher in the environment. Exit code 77 skips.
function(lockstep_add_program_test name script)
  cmake_parse_arguments(ARG "" "TIMEOUT;PROCESSORS" "PYTHON;ENVIRONMENT" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  if(NOT ARG_PROCESSORS)
    set(ARG_PROCESSORS 2)
  endif()
  if(NOT ARG_PYTHON)
    set(ARG_PYTHON "${Python3_EXECUTABLE}" -B)
  endif()
  set(launcher "")
  if(LOCKSTEP_ENABLE_MPI)
    string(JOIN " " launcher ${MPIEXEC_EXECUTABLE} ${MPIEXEC_PREFLAGS} ${MPIEXEC_NUMPROC_FLAG})
  endif()
  add_test(NAME ${name} COMMAND ${ARG_PYTHON} "${CMAKE_CURRENT_SOURCE_DIR}/${script}")
  set(environment "LOCKSTEP=$<TARGET_FILE:lockstep>" "LOCKSTEP_MPIEXEC=${launcher}" "${LOCKSTEP_PROGRAM_ENVIRONMENT}" "${ARG_ENVIRONMENT}")
  lockstep_test_properties(${name} ${ARG_TIMEOUT} ${ARG_PROCESSORS} "${environment}")
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
endfunction()
