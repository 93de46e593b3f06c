// SPDX-License-Identifier: Apache-2.0
// Which images were trained on and which were counted: seen from outside, in what they did to the parameters and
// counts.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "verify/cases.hpp"
#include "verify/check.hpp"
#include "verify/compare.hpp"
#include "verify/reference.hpp"
#include "verify/training_run.hpp"

namespace lockstep::verify {
namespace {

// How often each image was used in a step, from the parameters before and after it. With one bright pixel i, image i
// has the logits w[i] + b, and one use changes row i of the weights by -lr / n (softmax(w[i] + b) - onehot); no other
// image changes it.
Values uses(Setup const& setup, std::vector<float> const& before, std::vector<float> const& after, std::int64_t n) {
  int const classes         = setup.network.classes;
  std::int64_t const weight = setup.network.tensors[0].offset, bias = setup.network.tensors[1].offset;
  Values result;
  for (std::int64_t image = 0; image < setup.train.count; ++image) {
    Values logits(static_cast<std::size_t>(classes));
    for (int c = 0; c < classes; ++c)
      logits[std::size_t(c)] =
          double(before[std::size_t(weight + image * classes + c)]) + before[std::size_t(bias + c)];
    Values const gradient = cross_entropy_gradient(logits, setup.train.labels[std::size_t(image)]);
    double found = 0, once = 0;
    for (int c = 0; c < classes; ++c) {
      std::size_t const at = std::size_t(weight + image * classes + c);
      double const one     = -setup.options.learning_rate.base / double(n) * gradient[std::size_t(c)];
      found += (double(after[at]) - before[at]) * one;
      once += one * one;
    }
    result.push_back(found / once);
  }
  return result;
}

struct Case {
  std::int64_t images, batch;
};

Setup audit_setup(Context const& context, Case const& sizes) {
  Setup setup;
  setup.train                      = one_bright_pixel(sizes.images);
  setup.network                    = one_dense_layer(setup.train);
  setup.test                       = setup.train;
  setup.options.batch              = sizes.batch;
  setup.options.learning_rate.base = 0.5;
  setup.options.seed               = 9;
  setup.options.allreduce          = context.plant().algorithm;
  setup.options.hook               = context.hook();
  setup.steps                      = 2 * ((sizes.images + sizes.batch - 1) / sizes.batch);  // two epochs
  return setup;
}

// The images of each minibatch in order of their numbers, or what is wrong.
struct Audit {
  std::vector<std::set<std::int64_t>> minibatches;
  std::optional<Outcome> failure;
};

Audit audit(comm::Communicator& world, Setup const& setup) {
  Audit result;
  std::int64_t const per_epoch = setup.steps / 2;
  std::vector<float> before;
  std::set<std::int64_t> epoch;
  result.failure = run_training(world, setup, [&](Trainer& trainer, StepResult const& step) -> std::optional<Outcome> {
    std::vector<float> const after = trainer.parameters();
    std::vector<float> const from  = std::exchange(before, after);
    if (step.step == 0) return std::nullopt;
    std::string const at = describe(world, setup.options) + ", step " + std::to_string(step.step) + ": ";
    std::int64_t const n =
        std::min(setup.options.batch, setup.train.count - (step.step - 1) % per_epoch * setup.options.batch);
    Values const used = uses(setup, from, after, n);
    result.minibatches.emplace_back();
    for (std::int64_t image = 0; image < setup.train.count; ++image) {
      double const times = used[std::size_t(image)];
      if (!(std::abs(times) < 0.01) && !(std::abs(times - 1) < 0.01))
        return Outcome::failure(at + "image " + std::to_string(image) + " counts " + format(times) + " times",
                                step.step);
      if (times < 0.5) continue;
      result.minibatches.back().insert(image);
      if (!epoch.insert(image).second)
        return Outcome::failure(at + "image " + std::to_string(image) + " is used again in the same epoch", step.step);
    }
    if (std::int64_t(result.minibatches.back().size()) != n)
      return Outcome::failure(
          at + std::to_string(result.minibatches.back().size()) + " images used, expected " + std::to_string(n),
          step.step);
    if (step.step % per_epoch == 0) epoch.clear();
    return std::nullopt;
  });
  return result;
}

}  // namespace

Outcome check_samples(Context const& context) {
  std::vector<Case> cases{{45, 16}};
  if (context.scope() != Scope::fault) cases.insert(cases.end(), {{10, 4}, {257, 256}, {5, 1}, {600, 560}});
  if (context.scope() == Scope::full) cases.insert(cases.end(), {{600, 96}, {33, 33}, {1100, 1100}});
  std::int64_t runs = 0;
  for (Case const& sizes : cases) {
    Setup const setup        = audit_setup(context, sizes);
    comm::Communicator alone = context.alone();
    Audit const one          = audit(alone, setup);
    Outcome outcome          = one.failure.value_or(Outcome::success(""));
    auto const per_epoch     = setup.steps / 2;
    auto const epoch         = one.minibatches.begin();
    if (outcome.passed && per_epoch > 1 && std::equal(epoch, epoch + per_epoch, epoch + per_epoch))
      outcome = Outcome::failure(
          "the second epoch of " + std::to_string(sizes.images) + " images has the order of the first", per_epoch + 1);
    for (WorldShape const& shape : context.worlds()) {
      comm::Communicator world = context.world(shape);
      outcome                  = together(world, outcome);
      if (!outcome.passed) return outcome;
      Audit const many = audit(world, setup);
      if (many.failure) return *many.failure;
      for (std::size_t s = 0; s < many.minibatches.size() && outcome.passed; ++s)
        if (many.minibatches[s] != one.minibatches[s])
          outcome = Outcome::failure(describe(world, setup.options) + ", step " + std::to_string(s + 1) +
                                         ": the minibatch holds other images than on one device",
                                     std::int64_t(s) + 1);
      outcome = together(world, outcome);
      if (!outcome.passed) return outcome;
      ++runs;
    }
  }
  return Outcome::success(std::to_string(runs) +
                          " runs of two epochs: every image once an epoch, minibatches as on one device");
}

Outcome check_evaluation(Context const& context) {
  Setup setup               = small_setup(context);
  setup.steps               = 0;
  std::int64_t const most   = context.scope() == Scope::fault ? 23 : 10000;
  Dataset const all         = noise(77, most, setup.network.input.height, setup.network.input.width);
  std::int64_t const pixels = setup.network.input.size();
  // What the network says of each image, and where float32 could not say otherwise.
  ReferenceNetwork const reference(setup.network);
  Values const parameters = to_double(setup.start);
  double const margin     = 2 * network_bound(setup.network, 1);
  std::vector<int> said, other;
  std::vector<bool> certain;
  for (std::int64_t i = 0; i < most; ++i) {
    Values z           = reference.logits(image_values(all.images, pixels, i), parameters);
    double const scale = norm(z);
    auto const take    = [&] {  // the index of the largest, which is then out
      int const index       = int(std::max_element(z.begin(), z.end()) - z.begin());
      double const value    = z[std::size_t(index)];
      z[std::size_t(index)] = -std::numeric_limits<double>::infinity();
      return std::make_pair(index, value);
    };
    auto const first = take(), second = take();
    said.push_back(first.first);
    other.push_back(take().first);
    certain.push_back(first.second - second.second > margin * scale);
  }

  std::vector<std::int64_t> sizes{1, 4, 5};
  if (context.scope() == Scope::fault)
    sizes = {5, 23};
  else
    sizes.insert(sizes.end(), {9999, 10000});
  std::int64_t counts = 0;
  for (std::int64_t const size : sizes) {
    // Right labels for: all images, the first, the last, every third.
    std::vector<std::function<bool(std::int64_t)>> const patterns{
        [](std::int64_t) { return true; }, [](std::int64_t i) { return i == 0; },
        [&](std::int64_t i) { return i == size - 1; }, [](std::int64_t i) { return i % 3 == 1; }};
    for (auto const& right : patterns) {
      setup.test       = all;
      setup.test.count = size;
      setup.test.images.resize(std::size_t(size * pixels));
      setup.test.labels.resize(std::size_t(size));
      std::int64_t expected = 0, doubtful = 0;
      for (std::int64_t i = 0; i < size; ++i) {
        bool const correct                = right(i);
        setup.test.labels[std::size_t(i)] = std::uint8_t(correct ? said[std::size_t(i)] : other[std::size_t(i)]);
        expected += correct;
        doubtful += correct && !certain[std::size_t(i)];
      }
      std::vector<std::int64_t> found;
      for (WorldShape const& shape : context.worlds()) {
        comm::Communicator world = context.world(shape);
        Trainer trainer(world, setup.network, setup.train, setup.test, setup.options);
        trainer.restore(setup.start, 0);
        std::int64_t const count = trainer.count_correct(), alone = trainer.count_correct_alone();
        std::string const what = std::to_string(size) + " test images, k = " + std::to_string(world.size()) + ": " +
                                 std::to_string(count) + " correct, ";
        found.push_back(count);
        Outcome outcome = Outcome::success("");
        if (count != alone)
          outcome = Outcome::failure(what + std::to_string(alone) + " on one device");
        else if (std::abs(count - expected) > doubtful)
          outcome = Outcome::failure(what + "expected " + std::to_string(expected));
        else if (count != found.front())
          outcome = Outcome::failure(what + std::to_string(found.front()) + " with fewer devices");
        outcome = together(world, outcome);
        if (!outcome.passed) return outcome;
        ++counts;
      }
    }
  }
  // On ties the first class is meant: with all parameters zero every image is of class 0.
  setup.test            = all;
  std::int64_t const of = std::count(all.labels.begin(), all.labels.end(), std::uint8_t(0));
  for (WorldShape const& shape : context.few_worlds()) {
    comm::Communicator world = context.world(shape);
    Trainer trainer(world, setup.network, setup.train, setup.test, setup.options);
    trainer.restore(std::vector<float>(setup.start.size(), 0.0f), 0);
    std::int64_t const count = trainer.count_correct();
    if (count != of)
      return Outcome::failure("k = " + std::to_string(world.size()) + ": " + std::to_string(count) +
                              " correct with equal logits, expected " + std::to_string(of) + ", the images of class 0");
    ++counts;
  }
  return Outcome::success(std::to_string(counts) + " counts of up to " + std::to_string(sizes.back()) +
                          " images: the same integers");
}

}  // namespace lockstep::verify
