// SPDX-License-Identifier: Apache-2.0
// Training on k devices: against the float64 reference, against one device, replica against replica.
#include <algorithm>
#include <cmath>

#include "kernels/error.hpp"
#include "verify/cases.hpp"
#include "verify/check.hpp"
#include "verify/compare.hpp"
#include "verify/training_run.hpp"
#include "verify/transfer.hpp"

namespace lockstep::verify {
namespace {

Values change(std::vector<float> const& now, std::vector<float> const& start, Tensor const& tensor) {
  Values result(std::size_t(tensor.count));
  for (std::size_t i = 0; i < result.size(); ++i)
    result[i] = double(now[std::size_t(tensor.offset) + i]) - double(start[std::size_t(tensor.offset) + i]);
  return result;
}

Values change(Values const& now, Values const& start, Tensor const& tensor) {
  Values result(std::size_t(tensor.count));
  for (std::size_t i = 0; i < result.size(); ++i)
    result[i] = now[std::size_t(tensor.offset) + i] - start[std::size_t(tensor.offset) + i];
  return result;
}

// Two runs may be apart, in the 2-norm, in what a tensor has become after `s` steps: by `a_step` of the way it went for
// the gradients, and by half a unit in the last place of its values for the updates, both once a step.
struct Allowance {
  double worst = 0;  // largest share of what is allowed

  std::optional<Outcome> check(std::string const& at, std::int64_t s, double a_step, std::vector<float> const& start,
                               Tensor const& tensor, Values const& found, Values const& expected) {
    auto const begin     = start.begin() + tensor.offset;
    double const allowed = double(s) * (a_step * norm(expected) + 2 * float_unit * norm({begin, begin + tensor.count}));
    double const apart   = distance(found, expected);
    if (!(apart <= allowed))
      return Outcome::failure(at + tensor.name + " is " + format(apart) +
                                  " away from where it should be, after a way of " + format(norm(expected)) +
                                  "; allowed are " + format(allowed),
                              s, tensor.name);
    worst = std::max(worst, apart / allowed);
    return std::nullopt;
  }
};

// Variations of how the work is reduced; none may change a bit.
std::vector<TrainerOptions> variations(Context const& context, comm::Communicator const& world,
                                       TrainerOptions const& base) {
  std::vector<TrainerOptions> result;
  int n = world.size();  // other combinations for other worlds
  for (std::string const& algorithm : context.algorithms(world)) {
    result.push_back(base);
    result.back().allreduce = algorithm;
    if (context.scope() == Scope::fault) continue;
    // One bucket, one a tensor, some tensors together; and each of the latter with overlap.
    static constexpr std::int64_t bytes[] = {0, 1, 400};
    result.back().bucket_bytes            = bytes[n % 3];
    result.back().overlap                 = n % 2 == 1;
    result.back().accumulate              = 1 + n / 2 % 3;
    ++n;
  }
  return result;
}

}  // namespace

// Gradients and losses are held to the network's bound for a minibatch; seven steps of this network do not amplify
// rounding.
Outcome check_training(Context const& context) {
  Setup setup                          = small_setup(context);
  ReferenceTrajectory const reference  = reference_training(setup);
  double const a_step                  = network_bound(setup.network, setup.options.batch);
  std::vector<WorldShape> const worlds = context.few_worlds();
  Allowance allowance;
  int largest = 0;
  for (WorldShape const& shape : worlds) {
    comm::Communicator world = context.world(shape);
    largest                  = std::max(largest, world.size());
    auto const compare       = [&](Trainer& trainer, StepResult const& result) -> std::optional<Outcome> {
      if (result.step == 0) return std::nullopt;
      std::size_t const s  = std::size_t(result.step);
      std::string const at = describe(world, setup.options) + ", step " + std::to_string(s) + ": ";
      double const wanted = reference.losses[s], bound = double(s) * a_step;
      if (!(std::abs(result.loss - wanted) <= bound * wanted))
        return Outcome::failure(
                  at + "loss " + format(result.loss) + ", expected " + format(wanted) + " within a relative " + format(bound),
                  result.step, "loss");
      std::vector<float> const now = trainer.parameters();
      for (Tensor const& tensor : setup.network.tensors)
        if (auto failure =
                allowance.check(at, result.step, a_step, setup.start, tensor, change(now, setup.start, tensor),
                                      change(reference.parameters[s], reference.parameters[0], tensor)))
          return failure;
      return std::nullopt;
    };
    if (auto const failure = run_training(world, setup, compare)) return *failure;
  }
  return Outcome::success(std::to_string(setup.steps) + " steps on k = " + std::to_string(largest) + " devices" +
                          (worlds.size() > 1 ? " and fewer" : "") + ": at most " + format(allowance.worst) +
                          " of the allowed distance");
}

namespace {

// All local replicas and the loss, bit by bit, after every step of a run like the one that `one` recorded.
std::optional<Outcome> follow(comm::Communicator& world, Setup const& setup, Trajectory const& one) {
  return run_training(world, setup, [&](Trainer& trainer, StepResult const& result) -> std::optional<Outcome> {
    std::size_t const s  = std::size_t(result.step);
    std::string const at = describe(world, setup.options) + ", step " + std::to_string(s) + ": ";
    for (int local = 0; local < world.local_size(); ++local) {
      Difference const difference = compare_bits(setup.network, trainer.parameters(local), one.parameters[s]);
      if (!difference.equal)
        return Outcome::failure(
            at + "rank " + std::to_string(world.rank(local)) + ", " + describe(difference) + " on one device",
            result.step, difference.tensor);
    }
    if (result.loss != one.losses[s])
      return Outcome::failure(at + "loss " + format(result.loss) + ", " + format(one.losses[s]) + " on one device",
                              result.step, "loss");
    return std::nullopt;
  });
}

}  // namespace

Outcome check_devices(Context const& context) {
  comm::Communicator alone = context.alone();
  Setup small              = small_setup(context);
  Trajectory const one     = record(alone, small);
  int runs = 0, largest = 0;
  for (WorldShape const& shape : context.worlds()) {
    comm::Communicator world = context.world(shape);
    largest                  = std::max(largest, world.size());
    for (TrainerOptions const& options : variations(context, world, small.options)) {
      small.options = options;
      if (auto const failure = follow(world, small, one)) return *failure;
      ++runs;
    }
  }
  if (context.scope() != Scope::fault) {
    Setup const chapter            = chapter_setup(context);
    Trajectory const chapter_alone = record(alone, chapter);
    for (WorldShape const& shape : context.few_worlds()) {
      comm::Communicator world = context.world(shape);
      if (auto const failure = follow(world, chapter, chapter_alone)) return *failure;
      ++runs;
    }
  }
  return Outcome::success(std::to_string(runs) + " runs, up to " + std::to_string(largest) +
                          " devices: equal bits after every step");
}

// Two orders of a sum of n terms differ by at most 2 sum_bound(n) times the sum of magnitudes, here of shard gradients:
// for gradients that do not cancel by more than a factor of 16, by 32 sum_bound(shards) of the gradient.
Outcome check_float(Context const& context) {
  Setup setup              = small_setup(context);
  setup.options.reduction  = Reduction::plain;
  comm::Communicator alone = context.alone();
  Trajectory const one     = record(alone, setup);
  double const a_step      = 32 * sum_bound(ShardPlan::for_batch(setup.options.batch).shards);
  Allowance allowance;
  std::int64_t ulps = 0;
  for (WorldShape const& shape : context.worlds()) {
    comm::Communicator world = context.world(shape);
    auto const compare       = [&](Trainer& trainer, StepResult const& result) -> std::optional<Outcome> {
      std::size_t const s          = std::size_t(result.step);
      std::string const at         = describe(world, setup.options) + ", float, step " + std::to_string(s) + ": ";
      std::vector<float> const now = trainer.parameters();
      ulps                         = std::max(ulps, compare_bits(setup.network, now, one.parameters[s]).largest_ulps);
      for (Tensor const& tensor : setup.network.tensors)
        if (auto failure =
                allowance.check(at, result.step, a_step, setup.start, tensor, change(now, setup.start, tensor),
                                      change(one.parameters[s], setup.start, tensor)))
          return failure;
      for (int local = 1; local < world.local_size(); ++local) {
        Difference const difference = compare_bits(setup.network, trainer.parameters(local), now);
        if (!difference.equal)
          return Outcome::failure(at + "rank " + std::to_string(world.rank(local)) + ", " + describe(difference) +
                                            " on rank " + std::to_string(world.rank(0)),
                                        result.step, difference.tensor);
      }
      return std::nullopt;
    };
    for (TrainerOptions const& options : variations(context, world, setup.options)) {
      setup.options = options;
      if (auto const failure = run_training(world, setup, compare)) return *failure;
    }
  }
  return Outcome::success("at most " + format(allowance.worst) + " of the allowed distance (" + format(a_step) +
                          " of the way a step); largest distance " + std::to_string(ulps) + " ulps");
}

Outcome check_replicas(Context const& context) {
  Setup setup              = small_setup(context);
  setup.start              = {};  // the trainer's own start values, as they were given to the devices
  comm::Communicator world = context.world(context.worlds().back());
  auto const failure =
      run_training(world, setup, [&](Trainer& trainer, StepResult const& result) -> std::optional<Outcome> {
        std::string const at         = describe(world, setup.options) + ", step " + std::to_string(result.step) + ": ";
        Divergence const& divergence = trainer.divergence();
        if (divergence.found)
          return Outcome::failure(at + "fingerprints of " + divergence.tensor + " differ on ranks " + divergence.ranks,
                                  divergence.step, divergence.tensor);
        std::vector<float> const first = trainer.parameters(0);
        int const other                = first_that_differs(world, first);
        for (int local = 1; local < world.local_size(); ++local) {
          Difference const difference = compare_bits(setup.network, trainer.parameters(local), first);
          if (!difference.equal)
            return Outcome::failure(at + "rank " + std::to_string(world.rank(local)) + ", " + describe(difference) +
                                        " on rank " + std::to_string(world.rank(0)),
                                    result.step, difference.tensor);
        }
        if (other > 0)
          return Outcome::failure(at + "process " + std::to_string(other) + " holds other parameters", result.step);
        return std::nullopt;
      });
  if (failure) return *failure;
  if (world.size() == 1) return Outcome::success("one device: nothing to compare");

  // The comparison itself: one bit of one parameter of the last rank, flipped in step 2, has to be named.
  Tensor const& tensor      = setup.network.tensors[3];
  std::int64_t const target = tensor.offset + tensor.count - 1;
  setup.options.hook        = context.hook([&](StepState& state) {
    if (state.stage != Stage::updated || state.step != 2 || state.rank != state.ranks - 1) return;
    std::vector<float> values   = to_host(state.space, state.parameters);
    values[std::size_t(target)] = std::nextafter(values[std::size_t(target)], 1.0f);
    copy_in(state.space, state.parameters, values);
  });
  setup.steps               = 3;
  Divergence seen;
  run_training(world, setup, [&](Trainer& trainer, StepResult const&) -> std::optional<Outcome> {
    seen = trainer.divergence();
    return std::nullopt;
  });
  std::string const last = std::to_string(world.size() - 1);
  if (!seen.found || seen.step != 2 || seen.tensor != tensor.name || seen.ranks != last)
    return Outcome::failure("a bit of " + tensor.name + " flipped on rank " + last + " in step 2 was " +
                                (seen.found ? "reported as " + seen.tensor + " on ranks " + seen.ranks + " in step " +
                                                  std::to_string(seen.step)
                                            : std::string("not seen")),
                            2, tensor.name);
  return Outcome::success("k = " + std::to_string(world.size()) + ", " + std::to_string(7) +
                          " steps: equal; a flipped bit on rank " + last + " is named with step and tensor");
}

namespace {

// The recipe's start: weights normal(0, 0.01), biases 0. Mean and deviation of a tensor's n values within five of their
// own deviations, 0.01 / sqrt(n) and 0.01 / sqrt(2 n).
Outcome check_start(Network const& network, std::vector<float> const& start) {
  for (Layer const& layer : network.layers) {
    if (layer.weight < 0) continue;
    Tensor const &weight = network.tensors[std::size_t(layer.weight)], &bias = network.tensors[std::size_t(layer.bias)];
    for (std::int64_t i = 0; i < bias.count; ++i)
      if (start[std::size_t(bias.offset + i)] != 0)
        return Outcome::failure(bias.name + " does not start at 0", 0, bias.name);
    double sum = 0, squares = 0, n = double(weight.count);
    for (std::int64_t i = 0; i < weight.count; ++i) {
      double const value = start[std::size_t(weight.offset + i)];
      sum += value;
      squares += value * value;
    }
    double const deviation = std::sqrt(squares / n);
    if (!(std::abs(sum / n) <= 5 * 0.01 / std::sqrt(n)) || !(std::abs(deviation - 0.01) <= 5 * 0.01 / std::sqrt(2 * n)))
      return Outcome::failure(weight.name + " starts with mean " + format(sum / n) + " and deviation " +
                                  format(deviation) + ", expected 0 and 0.01",
                              0, weight.name);
  }
  return Outcome::success("");
}

}  // namespace

Outcome check_repeat(Context const& context) {
  Setup setup              = small_setup(context);
  setup.start              = {};
  comm::Communicator world = context.world(context.worlds().back());
  Trajectory const first = record(world, setup), second = record(world, setup);
  Outcome same = Outcome::success("k = " + std::to_string(world.size()) + ": equal bits after every step");
  for (std::size_t s = 0; s < first.parameters.size() && same.passed; ++s) {
    Difference const difference = compare_bits(setup.network, second.parameters[s], first.parameters[s]);
    if (!difference.equal)
      same = Outcome::failure(describe(world, setup.options) + ", step " + std::to_string(s) + ": the second run has " +
                                  describe(difference) + " in the first",
                              std::int64_t(s), difference.tensor);
  }
  if (Outcome const start = check_start(setup.network, first.parameters[0]); same.passed && !start.passed) same = start;
  same = together(world, same);
  if (!same.passed) return same;
  ++setup.options.seed;
  setup.steps            = 0;
  Trajectory const other = record(world, setup);
  if (compare_bits(setup.network, other.parameters[0], first.parameters[0]).equal)
    return Outcome::failure("another seed draws the same start values", 0);
  return same;
}

namespace {

// Trains until a rank stops the run, with a value that is not finite in a gradient row of one rank in one step.
Outcome stop_by(float poison, Context const& context, comm::Communicator& world, Setup setup) {
  std::int64_t const step   = 3;  // the short minibatch
  std::int64_t const shards = ShardPlan::for_batch(setup.train.count % setup.options.batch).shards;
  int const rank            = int(std::min<std::int64_t>(world.size(), shards)) - 1;  // the last that has some
  Tensor const& tensor      = setup.network.tensors[4];
  setup.options.hook        = context.hook([&](StepState& state) {
    if (state.stage != Stage::computed || state.step != step || state.rank != rank) return;
    std::vector<float> rows          = to_host(state.space, state.rows);
    rows[std::size_t(tensor.offset)] = poison;
    copy_in(state.space, state.rows, rows);
  });
  std::string const at      = describe(world, setup.options) +
                         (setup.options.reduction == Reduction::exact ? ", exact, " : ", float, ") +
                         (std::isnan(poison) ? "NaN" : "Inf") + " on rank " + std::to_string(rank) + " in step " +
                         std::to_string(step) + ": ";
  Trainer trainer(world, setup.network, setup.train, setup.test, setup.options);
  trainer.restore(setup.start, 0);
  std::vector<float> before;
  std::string verdict;
  try {
    while (trainer.step() < setup.steps) {
      before = trainer.parameters();
      trainer.advance();
    }
  } catch (Error const& error) {
    if (error.code() != ExitCode::wrong_result) throw;
    verdict = error.what();
  }
  auto const verdicts = world.gather(hash_of(verdict));
  if (verdict.empty()) return Outcome::failure(at + "no rank stopped", step, tensor.name);
  if (std::count(verdicts.begin(), verdicts.end(), verdicts[0]) != std::int64_t(verdicts.size()))
    return Outcome::failure(at + "the ranks gave different verdicts", step, tensor.name);
  if (verdict.find("step " + std::to_string(step) + ":") == std::string::npos ||
      verdict.find(" " + tensor.name + " ") == std::string::npos)
    return Outcome::failure(at + "expected the step and " + tensor.name + " named, found '" + verdict + "'", step,
                            tensor.name);
  if (trainer.step() != step - 1 || !compare_bits(setup.network, trainer.parameters(), before).equal)
    return Outcome::failure(at + "the refused step has changed the parameters", step, tensor.name);
  return Outcome::success("");
}

}  // namespace

Outcome check_not_finite(Context const& context) {
  int cases = 0;
  for (WorldShape const& shape : context.few_worlds()) {
    comm::Communicator world = context.world(shape);
    for (Reduction const reduction : {Reduction::exact, Reduction::plain})
      for (float const poison : {std::nanf(""), -std::numeric_limits<float>::infinity()}) {
        if (context.scope() == Scope::fault && reduction == Reduction::plain) continue;
        Setup setup             = small_setup(context);
        setup.options.reduction = reduction;
        if (context.scope() != Scope::fault && std::isnan(poison)) {
          setup.options.bucket_bytes = 1;
          setup.options.overlap      = true;
        }
        Outcome const outcome = together(world, stop_by(poison, context, world, std::move(setup)));
        if (!outcome.passed) return outcome;
        ++cases;
      }
  }
  return Outcome::success(std::to_string(cases) + " cases: step and tensor named alike on all ranks");
}

}  // namespace lockstep::verify
