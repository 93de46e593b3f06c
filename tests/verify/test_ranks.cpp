// SPDX-License-Identifier: Apache-2.0
// The checks over the ranks of a job: one verdict on all of them.
#include <gtest/gtest.h>

#include "tests/test_runtime.hpp"
#include "verify/check.hpp"

namespace lockstep::verify {
namespace {

TEST(Ranks, AllChecksPass) {
  for (int const devices : {1, 2}) {
    Context const context(test_runtime(), Scope::fault, devices);
    for (Check const& check : all_checks()) {
      Outcome const outcome = run_agreed(check, context);
      EXPECT_TRUE(outcome.passed) << devices << " devices a process, " << check.name << ": " << outcome.detail;
    }
  }
}

TEST(Ranks, AFailureOnTheLastProcessIsToldByAll) {
  static int last;
  last = test_runtime().processes() - 1;
  static int self;
  self = test_runtime().process();
  Check const one_sided{"one-sided", "", [](Context const&) {
                          return self == last ? Outcome::failure("a detail that is longer than one word of eight bytes",
                                                                 12, "W3")
                                              : Outcome::success("fine here");
                        }};
  Outcome const outcome = run_agreed(one_sided, Context(test_runtime(), Scope::fault));
  EXPECT_FALSE(outcome.passed);
  EXPECT_EQ(outcome.step, 12);
  EXPECT_EQ(outcome.tensor, "W3");
  EXPECT_NE(outcome.detail.find("a detail that is longer than one word of eight bytes"), std::string::npos);
  EXPECT_EQ(outcome.detail.rfind("process " + std::to_string(last), 0), last > 0 ? 0u : std::string::npos);
}

// A replica that differs on another process only.
TEST(Ranks, ADriftedProcessFailsTheReplicasCheck) {
  Plant plant;
  plant.in_step = [](StepState& state) {
    if (state.stage != Stage::updated || state.step != 4 || state.ranks == 1 || state.rank != state.ranks - 1) return;
    Kokkos::deep_copy(state.space, Kokkos::subview(state.parameters, std::make_pair(0, 1)), 7.0f);
  };
  Context const context(test_runtime(), Scope::fault, 2, plant);
  for (Check const& check : all_checks()) {
    if (check.name != std::string("replicas") && check.name != std::string("devices")) continue;
    Outcome const outcome = run_agreed(check, context);
    EXPECT_FALSE(outcome.passed) << check.name;
    EXPECT_EQ(outcome.step, 4) << check.name;
    EXPECT_EQ(outcome.tensor, "W1") << check.name;
  }
}

}  // namespace
}  // namespace lockstep::verify
