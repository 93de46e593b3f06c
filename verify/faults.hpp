// SPDX-License-Identifier: Apache-2.0
// Faults of real programs, planted one at a time into a right one, to show that the checks see them.
#pragma once
#include <string>
#include <vector>

#include "verify/check.hpp"

namespace lockstep::verify {

struct Fault {
  char const* name;
  char const* story;             // what the wrong program does
  std::function<Plant()> plant;  // a fresh one for each check: plants may remember things
};

std::vector<Fault> const& all_faults();

// Checks that run against a planted fault: those of the program, not of the reference.
std::vector<Check> fault_checks();

struct Caught {
  std::string check;
  Outcome outcome;
};
// All checks that see the fault, in their order.
std::vector<Caught> hunt(Runtime const& runtime, Fault const& fault, std::vector<Check> const& checks);

}  // namespace lockstep::verify
