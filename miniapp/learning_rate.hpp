// SPDX-License-Identifier: Apache-2.0
// The learning rate of a step: a given rate, scaled to the size of the minibatch, reached by a ramp.
#pragma once
#include <cmath>
#include <cstdint>
#include <string>

namespace lockstep {

struct LearningRate {
  enum class Rule { kept, sqrt, linear };

  double base             = 0.2;  // for minibatches of base_batch images
  Rule rule               = Rule::kept;
  std::int64_t base_batch = 256;
  std::int64_t warmup     = 0;  // epochs

  // After the ramp: base times 1, sqrt(batch / base_batch), or batch / base_batch.
  double scaled(std::int64_t batch) const {
    double const ratio = double(batch) / double(base_batch);
    return rule == Rule::kept ? base : base * (rule == Rule::sqrt ? std::sqrt(ratio) : ratio);
  }
  // Of the step that follows `step` steps. The ramp goes from the base rate to the scaled one, by the same amount every
  // step (gradual warm-up; Goyal et al., "Accurate, Large Minibatch SGD", arXiv:1706.02677, section 2.2).
  double at(std::int64_t step, std::int64_t batch, std::int64_t steps_per_epoch) const {
    std::int64_t const ramp = warmup * steps_per_epoch;
    if (step + 1 >= ramp) return scaled(batch);
    return base + (scaled(batch) - base) * double(step + 1) / double(ramp);
  }
  // "0.2", or "0.2 at batch 256, linear, warm-up over 2 epochs"; equal texts mean equal rates.
  std::string text() const;
};

char const* name(LearningRate::Rule rule);
// Throws Error (usage) that lists the names.
LearningRate::Rule parse_learning_rate_rule(std::string const& option, std::string const& text);

}  // namespace lockstep
