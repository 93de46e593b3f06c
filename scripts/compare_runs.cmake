# SPDX-License-Identifier: Apache-2.0
# cmake -DA=one.json -DB=two.json -P compare_runs.cmake: fails when two training records differ in any bit of what was
# computed (every step's loss, the parameters, the test count of every epoch). CMake reads JSON, and is here already.
file(READ "${A}" a)
file(READ "${B}" b)

function(compare what)
  string(JSON in_a GET "${a}" ${ARGN})
  string(JSON in_b GET "${b}" ${ARGN})
  if(NOT in_a STREQUAL in_b)
    message(FATAL_ERROR "${what}: ${in_a} in ${A}, ${in_b} in ${B}; expected equal")
  endif()
endfunction()

string(JSON steps LENGTH "${a}" result step_losses)
if(steps EQUAL 0)
  message(FATAL_ERROR "${A}: no step losses; expected a run with --log-steps")
endif()
compare("step losses" result step_losses)
compare("epochs' test counts" result test_correct)
compare("parameters' SHA-256" result parameters_sha256)
string(JSON hash GET "${a}" result parameters_sha256)
string(JSON correct GET "${a}" result test_correct)
string(JSON count GET "${a}" result test_count)
message(STATUS "equal to the last bit: ${steps} step losses, ${correct} of ${count} test images right, parameters ${hash}")
