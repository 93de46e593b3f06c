// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "verify/report.hpp"

namespace lockstep::verify {
namespace {

std::vector<Result> const results{
    {"check", "first", Outcome::success("3 < 4 & \"so on\""), 0.5},
    {"check", "second", Outcome::failure("wrong\nsum", 3, "W2"), 0.25},
    {"fault", "third", Outcome::success("seen"), 1},
};

TEST(Report, JsonTellsStepAndTensorOfFailures) {
  auto const json = as_json(results);
  EXPECT_FALSE(json["passed"]);
  ASSERT_EQ(json["results"].size(), 3u);
  EXPECT_EQ(json["results"][1]["step"], 3);
  EXPECT_EQ(json["results"][1]["tensor"], "W2");
  EXPECT_FALSE(json["results"][0].contains("step"));
  EXPECT_TRUE(as_json({results[0], results[2]})["passed"]);
}

TEST(Report, JunitEscapesAndCounts) {
  std::string const xml = as_junit(results);
  auto const contains   = [&](char const* text) { return xml.find(text) != std::string::npos; };
  EXPECT_TRUE(contains("3 &lt; 4 &amp; &quot;so on&quot;"));
  EXPECT_TRUE(contains("<failure message=\"wrong sum\"/>"));
  EXPECT_TRUE(contains("name=\"lockstep.verify.check\" tests=\"2\" failures=\"1\" time=\"0.750\""));
  EXPECT_TRUE(contains("name=\"lockstep.verify.fault\" tests=\"1\" failures=\"0\" time=\"1.000\""));
}

}  // namespace
}  // namespace lockstep::verify
