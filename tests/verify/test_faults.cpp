// SPDX-License-Identifier: Apache-2.0
// Every check has a fault that it must see, every fault a check, and no check sees one where there is none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/test_runtime.hpp"
#include "verify/faults.hpp"

namespace lockstep::verify {
namespace {

using Names = std::vector<std::string>;

Names names(std::vector<Caught> const& caught) {
  Names result;
  for (Caught const& one : caught) result.push_back(one.check);
  return result;
}

// What must see a fault, and in which step where that is certain. Others may see it, too.
struct Expectation {
  Names checks;
  std::int64_t step = -1;  // of the last of these checks
};

std::map<std::string, Expectation> const expectations{
    {"broadcast not written back", {{"schedules", "collectives", "traffic", "devices", "replicas"}, 1}},
    {"chunk dropped", {{"schedules", "collectives", "traffic", "devices"}, 1}},
    {"chunk reduced twice", {{"schedules", "collectives", "traffic", "devices"}, 1}},
    {"wrong operand", {{"schedules", "collectives", "devices"}, 1}},
    {"wrong chunk", {{"schedules", "collectives", "devices", "replicas"}, 1}},
    {"last step missing", {{"schedules", "collectives", "traffic", "devices", "replicas"}, 1}},
    {"extra traffic", {{"traffic"}}},
    {"running past a buffer", {{"collectives"}}},
    {"shared parameter memory", {{"training", "devices"}, 1}},
    {"shared gradient memory", {{"training", "devices"}, 1}},
    {"missing fence", {{"training", "devices"}, 1}},
    {"stale tail slots", {{"training", "devices"}, 3}},
    {"bucket re-formed after step 1", {{"training", "devices", "replicas"}, 2}},
    {"nominal batch length", {{"samples", "training"}, 3}},
    {"mean of means", {{"training", "devices"}, 3}},
    {"divided by the own share", {{"training", "devices", "replicas"}, 3}},
    {"sum taken for a mean", {{"training", "devices"}, 1}},
    {"clipped before the reduction", {{"training", "devices"}, 1}},
    {"gradient not zeroed", {{"training"}, 2}},
    {"loss of the first device", {{"training", "devices"}, 1}},
    {"missing gradient on one rank", {{"training", "devices"}, 1}},
    {"sample skipped", {{"devices", "samples"}, 1}},
    {"remainder dropped", {{"devices", "samples"}, 1}},
    {"sample repeated", {{"training", "samples"}, 1}},
    {"shuffle by rank", {{"devices", "samples"}}},
    {"same images on all ranks", {{"devices", "samples"}, 1}},
    {"same order every epoch", {{"training", "samples"}, 4}},
    {"different start weights", {{"training", "devices", "replicas"}, 0}},
    {"state left from the run before", {{"repeat"}, 0}},
    {"update missed by one rank", {{"devices", "replicas"}, 3}},
    {"bit flipped in a replica", {{"devices", "replicas"}, 2}},
    {"wrong sum now and then", {{"training", "devices"}, 2}},
    {"rows summed in float first", {{"devices"}, 1}},
    {"exponent off by one", {{"training", "devices", "replicas"}, 1}},
    {"exponents not agreed", {{"devices", "not-finite"}, 3}},
    {"NaN seen by one rank", {{"not-finite"}, 3}},
    {"counts as means", {{"evaluation"}}},
    {"padding repeats test images", {{"evaluation"}}},
    {"last test images dropped", {{"evaluation"}}},
    {"whole test set on every device", {{"evaluation"}}},
    {"kernel flipped in the weight gradient", {{"network", "differences", "training"}, 1}},
    {"bias gradient missing", {{"network", "differences", "training"}, 1}},
    {"gradient one percent off", {{"network", "training"}, 1}},
};

TEST(Faults, AreManyAndAllExpected) {
  EXPECT_GE(all_faults().size(), 20u);
  std::set<std::string> distinct;
  for (Fault const& fault : all_faults()) {
    EXPECT_TRUE(distinct.insert(fault.name).second) << fault.name;
    EXPECT_EQ(expectations.count(fault.name), 1u) << fault.name;
  }
  EXPECT_EQ(distinct.size(), expectations.size());
}

TEST(Faults, NoneIsSeenWhereThereIsNone) {
  Fault const none{"none", "", [] { return Plant{}; }};
  for (Caught const& caught : hunt(test_runtime(), none, all_checks()))
    ADD_FAILURE() << caught.check << ": " << caught.outcome.detail;
}

TEST(Faults, EachIsSeenByItsChecksInItsStep) {
  std::set<std::string> useful;
  for (Fault const& fault : all_faults()) {
    auto const caught           = hunt(test_runtime(), fault, fault_checks());
    Names const seen            = names(caught);
    Expectation const& expected = expectations.at(fault.name);
    EXPECT_THAT(seen, testing::IsSupersetOf(expected.checks)) << fault.name;
    useful.insert(seen.begin(), seen.end());
    if (expected.step < 0) continue;
    auto const last = std::find(seen.begin(), seen.end(), expected.checks.back());
    if (last != seen.end()) {
      Outcome const& outcome = caught[std::size_t(last - seen.begin())].outcome;
      EXPECT_EQ(outcome.step, expected.step) << fault.name << ": " << outcome.detail;
    }
  }
  for (Check const& check : fault_checks()) EXPECT_EQ(useful.count(check.name), 1u) << check.name << " sees no fault";
}

// A bit that all replicas lose alike, in the float mode's comparison: its bound is no excuse for anything.
TEST(Faults, TheFloatComparisonSeesAWrongGradient) {
  Plant plant;
  plant.in_step = [](StepState& state) {
    if (state.stage != Stage::computed || state.ranks == 1) return;
    *state.count = std::min<std::int64_t>(*state.count, 4);
  };
  auto const float_check = *std::find_if(all_checks().begin(), all_checks().end(),
                                         [](Check const& check) { return check.name == std::string("float"); });
  EXPECT_TRUE(run_agreed(float_check, Context(test_runtime(), Scope::fault)).passed);
  Outcome const outcome = run_agreed(float_check, Context(test_runtime(), Scope::fault, 0, plant));
  EXPECT_FALSE(outcome.passed);
  EXPECT_EQ(outcome.step, 1);
}

TEST(Checks, AnExceptionIsAFailureOfTheCheck) {
  Check const broken{"broken", "", [](Context const&) -> Outcome { throw std::runtime_error("out of luck"); }};
  Outcome const outcome = run_agreed(broken, Context(test_runtime(), Scope::fault));
  EXPECT_FALSE(outcome.passed);
  EXPECT_EQ(outcome.detail, "out of luck");
}

}  // namespace
}  // namespace lockstep::verify
