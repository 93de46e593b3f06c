// SPDX-License-Identifier: Apache-2.0
#include "verify/check.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "comm/algorithms.hpp"
#include "kernels/error.hpp"
#include "verify/compare.hpp"

namespace lockstep::verify {
namespace {

// Process `source`'s text on all processes.
std::string tell(comm::Communicator& world, std::string const& text, int source) {
  std::size_t const bytes = world.gather(std::uint64_t(text.size()))[std::size_t(source)];
  std::string result(bytes, ' ');
  for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    if (at < text.size()) std::memcpy(&word, text.data() + at, std::min(sizeof word, text.size() - at));
    word = world.gather(word)[std::size_t(source)];
    std::memcpy(&result[at], &word, std::min(sizeof word, bytes - at));
  }
  return result;
}

std::vector<WorldShape> choose_worlds(Runtime const& runtime, Scope scope, int devices) {
  using comm::Transport;
  if (runtime.processes() > 1) {
    int const own = devices > 0 ? devices : 1;
    if (scope == Scope::fault) return {{own, Transport::automatic}};
    return {{own, Transport::messages}, {own, Transport::automatic}};
  }
  std::vector<WorldShape> worlds;
  auto const add = [&](std::initializer_list<int> numbers) {
    for (int const k : numbers) worlds.push_back({k, Transport::automatic});
  };
  if (devices > 0)
    add({devices});
  else if (scope == Scope::fault)
    add({3});
  else if (scope == Scope::quick)
    add({2, 3, 5, 8});
  else
    add({1, 2, 3, 4, 5, 6, 7, 8});
  return worlds;
}

}  // namespace

Context::Context(Runtime const& runtime, Scope scope, int devices, Plant plant)
    : m_runtime(runtime), m_scope(scope), m_plant(std::move(plant)), m_worlds(choose_worlds(runtime, scope, devices)) {}

std::vector<WorldShape> Context::few_worlds() const {
  if (m_scope == Scope::full) return m_worlds;
  return {m_worlds.back()};
}

comm::Communicator Context::world(WorldShape const& shape) const {
  comm::CommunicatorOptions options;
  options.transport      = shape.transport;
  options.alter_schedule = m_plant.in_schedule;
  return comm::Communicator(m_runtime.instances(shape.devices), options);
}

comm::Communicator Context::alone() const {
  comm::CommunicatorOptions options;
  options.alone          = true;
  options.alter_schedule = m_plant.in_schedule;
  return comm::Communicator(m_runtime.instances(1), options);
}

std::vector<std::string> Context::algorithms(comm::Communicator const& world) const {
  if (m_scope == Scope::fault) return {m_plant.algorithm};
  return world.algorithms();
}

StepHook Context::hook(StepHook first) const {
  if (!first) return m_plant.in_step;
  if (!m_plant.in_step) return first;
  return [first = std::move(first), second = m_plant.in_step](StepState& state) {
    first(state);
    second(state);
  };
}

Outcome together(comm::Communicator& world, Outcome mine) {
  if (world.processes() == 1 || !mine.passed) {
    if (world.processes() > 1) world.gather(std::uint64_t(0));
    return mine;
  }
  for (std::uint64_t const passed : world.gather(std::uint64_t(1)))
    if (!passed) return Outcome::failure("");
  return mine;
}

int first_that_differs(comm::Communicator& world, std::vector<float> const& values) {
  auto const hashes = world.gather(hash_of(values));
  return int(std::find_if(hashes.begin(), hashes.end(), [&](auto hash) { return hash != hashes[0]; }) -
             hashes.begin()) %
         int(hashes.size());
}

Outcome run_agreed(Check const& check, Context const& context) {
  Outcome outcome;
  try {
    outcome = check.run(context);
  } catch (Error const& error) {
    if (error.code() == ExitCode::timeout) throw;  // the other processes are gone
    outcome = Outcome::failure(error.what());
  } catch (std::exception const& error) {
    outcome = Outcome::failure(error.what());
  }
  if (context.runtime().processes() == 1) return outcome;

  comm::Communicator world(context.runtime().instances(1));
  // The earliest step tells: what is wrong there spreads to other processes in the steps after it.
  constexpr std::uint64_t well = std::numeric_limits<std::uint64_t>::max(), by_others = well - 1;
  auto const verdicts = world.gather(outcome.passed           ? well
                                     : outcome.detail.empty() ? by_others
                                                              : std::uint64_t(outcome.step + 1));
  auto const worst    = std::min_element(verdicts.begin(), verdicts.end());
  int const teller    = int(worst - verdicts.begin());
  Outcome agreed;
  agreed.passed = *worst == well;
  agreed.detail = tell(world, outcome.detail, teller);
  agreed.tensor = tell(world, outcome.tensor, teller);
  agreed.step   = std::int64_t(world.gather(std::uint64_t(outcome.step))[std::size_t(teller)]);
  if (!agreed.passed) agreed.detail = "process " + std::to_string(teller) + ": " + agreed.detail;
  return agreed;
}

std::vector<Check> const& all_checks() {
  static std::vector<Check> const checks{
      {"reference", "central differences of the float64 reference: every layer, whole networks", check_reference},
      {"layers", "forward and backward of every layer kind against the reference, odd sizes", check_layers},
      {"network", "logits, losses and gradients of whole networks against the reference", check_network},
      {"differences", "central differences of the float32 loss, tensor by tensor", check_differences},
      {"schedules", "every algorithm's schedule proved for 1 to 16 ranks", check_schedules},
      {"collectives", "allreduce over the devices: all lengths, exact sums, equal bits, guard zones",
       check_collectives},
      {"traffic", "bytes and messages moved against the schedule's prediction", check_traffic},
      {"training", "steps of k devices against float64 gradient descent, short last minibatch included",
       check_training},
      {"devices", "k devices against one, exact reduction: equal bits after every step", check_devices},
      {"float", "k devices against one, float reduction: differences within the stated bound", check_float},
      {"replicas", "replicas against each other after every step, and a flipped bit is seen", check_replicas},
      {"repeat", "the same run twice gives the same bits, another seed others", check_repeat},
      {"samples", "every image of an epoch used once, in the same minibatches for every k", check_samples},
      {"evaluation", "test counts of k devices equal one device's, each image counted once", check_evaluation},
      {"not-finite", "NaN and Inf on the last device stop all ranks at the same step and tensor", check_not_finite},
  };
  return checks;
}

}  // namespace lockstep::verify
