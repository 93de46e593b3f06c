// SPDX-License-Identifier: Apache-2.0
// The checks of `lockstep verify`: what one is, where it runs, and the list in the order in which they run.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "miniapp/runtime.hpp"
#include "miniapp/trainer.hpp"

namespace lockstep::verify {

// What one process found. Where a check compares steps, the first that differs is named.
struct Outcome {
  bool passed = true;
  std::string detail;      // one line: what was compared and the worst figure, or what is wrong
  std::int64_t step = -1;  // of the first failure; -1: the check has no steps
  std::string tensor;      // of the first failure

  static Outcome success(std::string detail) { return {true, std::move(detail), -1, ""}; }
  static Outcome failure(std::string detail, std::int64_t step = -1, std::string tensor = "") {
    return {false, std::move(detail), step, std::move(tensor)};
  }
};

// A wrong program, made from the right one: everything that the checks run goes through these two places.
struct Plant {
  std::string algorithm     = "ring";                // of the allreduce in the fault's runs
  std::int64_t bucket_bytes = 0;                     // TrainerOptions::bucket_bytes, in the same
  StepHook in_step;                                  // TrainerOptions::hook
  std::function<void(comm::Schedule&)> in_schedule;  // CommunicatorOptions::alter_schedule
  // Around a collective called on its own: may exchange the buffers that the call is given.
  std::function<void(std::vector<Buffer<std::int64_t>>&)> in_call;
  // Around the kernels called on their own: the rows that they return.
  std::function<void(Network const&, std::vector<float>&)> in_kernels;
};

enum class Scope { fault, quick, full };  // how much is run: against one planted fault, with --quick, by default

struct WorldShape {
  int devices               = 1;  // in each process
  comm::Transport transport = comm::Transport::automatic;
};

class Context {
 public:
  // devices: in each process; 0: the check's own choice. Under a launcher the world is the real ranks and `devices` is
  // 1 unless given.
  Context(Runtime const& runtime, Scope scope, int devices = 0, Plant plant = {});

  Runtime const& runtime() const { return m_runtime; }
  Scope scope() const { return m_scope; }
  Plant const& plant() const { return m_plant; }
  // The worlds that k-against-one checks go through, the largest last.
  std::vector<WorldShape> const& worlds() const { return m_worlds; }
  // One is enough for some checks: all of them by default, else the largest.
  std::vector<WorldShape> few_worlds() const;
  // Allreduce algorithms that the world can run; the plant's own in a fault's run.
  std::vector<std::string> algorithms(comm::Communicator const& world) const;

  comm::Communicator world(WorldShape const& shape) const;  // all processes
  comm::Communicator alone() const;                         // one device, this process
  // The plant's hook after `first`.
  StepHook hook(StepHook first = {}) const;

 private:
  Runtime const& m_runtime;
  Scope m_scope;
  Plant m_plant;
  std::vector<WorldShape> m_worlds;
};

struct Check {
  char const* name;
  char const* summary;
  Outcome (*run)(Context const&);
};

// In the order in which they run: a check may rely on what those before it have shown.
std::vector<Check> const& all_checks();

// A check that stops early must stop on all processes: returns `mine`, or an empty failure where only others have
// failed.
Outcome together(comm::Communicator& world, Outcome mine);

// 0 if the values' bits are equal on all processes, else the number of the first that differs from process 0.
int first_that_differs(comm::Communicator& world, std::vector<float> const& values);

// Runs a check on all processes and agrees on the outcome: passed only if it passed everywhere; what failed is told by
// the first process where it did. An exception becomes a failure.
Outcome run_agreed(Check const& check, Context const& context);

Outcome check_reference(Context const&);
Outcome check_layers(Context const&);
Outcome check_network(Context const&);
Outcome check_differences(Context const&);
Outcome check_schedules(Context const&);
Outcome check_collectives(Context const&);
Outcome check_traffic(Context const&);
Outcome check_training(Context const&);
Outcome check_devices(Context const&);
Outcome check_float(Context const&);
Outcome check_replicas(Context const&);
Outcome check_repeat(Context const&);
Outcome check_samples(Context const&);
Outcome check_evaluation(Context const&);
Outcome check_not_finite(Context const&);

}  // namespace lockstep::verify
