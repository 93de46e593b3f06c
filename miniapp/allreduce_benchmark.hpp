// SPDX-License-Identifier: Apache-2.0
// Measures allreduce: correctness and time of algorithms over a sweep of sizes, beside prediction and physical bound.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/probe.hpp"

namespace lockstep {

enum class ElementType { float32, float64, int64 };
char const* name(ElementType type);
constexpr std::int64_t bytes_of(ElementType type) {
  return type == ElementType::float32 ? 4 : 8;
}

struct BenchmarkOptions {
  std::vector<std::int64_t> sizes;  // bytes; each is cut to whole elements
  std::vector<std::string> algorithms;
  std::vector<ElementType> types{ElementType::float32};
  std::vector<comm::Op> operations{comm::Op::sum};
  bool in_place = true, out_of_place = true;
  bool registered     = true;  // buffers in the communicator's memory, else the program's own
  std::int64_t offset = 0;     // elements that buffers are off their allocation
  int samples = 20, warm_up = 3;
  bool check = true;
};

struct Timing {  // of one call, microseconds: longest over ranks from a common start
  bool measured = false;
  double min = 0, median = 0, mean = 0, p95 = 0, p99 = 0, max = 0, cv = 0, skew_percent = 0;
  std::int64_t wrong = 0;  // elements, over all ranks and all calls checked
};

struct BenchmarkRow {
  std::string algorithm;
  ElementType type;
  comm::Op op;
  std::int64_t count = 0, bytes = 0;
  std::int64_t calls_per_sample = 1;
  Timing out_of_place, in_place;
  comm::Seconds predicted, bound;
  double share_of_updates = 0;  // median over rounds of the update's time over the call's; 0: no updates were timed
  bool has_prediction     = false;
  // A second kind of input, whose sums round: against the schedule's own association, and between ranks.
  std::int64_t rounding_wrong = 0;  // elements of those compared; -1: not compared
  bool same_bits              = true;
  bool guards_intact          = true;
  std::uint64_t result_hash   = 0;  // of rank 0's result of the second kind
  // From the schedule, if it is one.
  bool is_schedule = false, proved = false;
  std::uint64_t schedule_hash = 0, order_id = 0;
  std::int64_t steps = 0, transfers = 0, orders = 0, chunks = 0;
  std::int64_t elements_sent_max = 0, elements_received_max = 0, elements_reduced_max = 0;
  double latencies = 0;  // of messages, one after another

  bool right() const {
    return out_of_place.wrong == 0 && in_place.wrong == 0 && rounding_wrong <= 0 && same_bits && guards_intact;
  }
  Timing const& best() const { return in_place.measured ? in_place : out_of_place; }
  // How much of the call's time the bound is. Memory's is taken from each round's own update, not from the fastest of
  // them, so that a machine whose speed changes meanwhile changes both times.
  double share_of_bound() const {
    return share_of_updates > 0 && bound.largest() == comm::BoundKind::memory ? share_of_updates : bound_over_median();
  }
  double bound_over_median() const { return best().median > 0 ? bound.max() * 1e6 / best().median : 0; }
  // Gigabytes (1e9) per second; the bus rate counts 2 (k - 1) / k bytes per byte.
  double rate(Timing const& timing) const { return timing.median > 0 ? double(bytes) / timing.median * 1e-3 : 0; }
};

// Collective. Calls `report` with each row, on all ranks, as soon as it is complete.
std::vector<BenchmarkRow> run_benchmark(comm::Communicator& world, comm::Probe const& probe,
                                        BenchmarkOptions const& options,
                                        std::function<void(BenchmarkRow const&)> const& report);

}  // namespace lockstep
