// SPDX-License-Identifier: Apache-2.0
#include "miniapp/learning_rate.hpp"

#include <nlohmann/json.hpp>

#include "kernels/error.hpp"

namespace lockstep {

std::string LearningRate::text() const {
  std::string text = nlohmann::json(base).dump();  // the shortest text that reads as the same number
  if (rule == Rule::kept) return text;
  text += " at batch " + std::to_string(base_batch) + ", " + name(rule);
  if (warmup > 0) text += ", warm-up over " + std::to_string(warmup) + (warmup > 1 ? " epochs" : " epoch");
  return text;
}

char const* name(LearningRate::Rule rule) {
  return rule == LearningRate::Rule::kept ? "kept" : rule == LearningRate::Rule::sqrt ? "sqrt" : "linear";
}

LearningRate::Rule parse_learning_rate_rule(std::string const& option, std::string const& text) {
  for (auto const rule : {LearningRate::Rule::kept, LearningRate::Rule::sqrt, LearningRate::Rule::linear})
    if (text == name(rule)) return rule;
  throw Error(ExitCode::usage, option + " " + text + "; expected kept, sqrt or linear");
}

}  // namespace lockstep
