// SPDX-License-Identifier: Apache-2.0
#include "verify/faults.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>

#include "kernels/gradient_sum.hpp"
#include "verify/cases.hpp"
#include "verify/transfer.hpp"

namespace lockstep::verify {
namespace {

using comm::Action;
using comm::Schedule;
using comm::Transfer;

template <class T, class Change>
void edit(Space const& space, Buffer<T> const& buffer, Change const& change) {
  std::vector<T> values = to_host(space, buffer);
  change(values);
  copy_in(space, buffer, values);
}

bool last(StepState const& state) {
  return state.ranks > 1 && state.rank == state.ranks - 1;
}
bool not_first(StepState const& state) {
  return state.rank > 0;
}

// A plant that acts at one stage.
std::function<Plant()> at(Stage stage, std::function<void(StepState&)> action) {
  return [stage, action = std::move(action)] {
    Plant plant;
    plant.in_step = [stage, action](StepState& state) {
      if (state.stage == stage) action(state);
    };
    return plant;
  };
}

std::function<Plant()> scheduled(std::string algorithm, std::function<void(Schedule&)> action) {
  return [algorithm = std::move(algorithm), action = std::move(action)] {
    Plant plant;
    plant.algorithm   = algorithm;
    plant.in_schedule = [action](Schedule& schedule) {
      if (schedule.ranks > 1) action(schedule);
    };
    return plant;
  };
}

// Rows of shard gradients [rows][parameters + 1], also those of kernels called on their own.
std::function<Plant()> in_rows(std::function<void(float* row, std::int64_t columns)> action) {
  return [action = std::move(action)] {
    auto const all = [action](std::vector<float>& rows, std::int64_t columns) {
      for (std::size_t begin = 0; begin + std::size_t(columns) <= rows.size(); begin += std::size_t(columns))
        action(rows.data() + begin, columns);
    };
    Plant plant;
    plant.in_step = [all](StepState& state) {
      if (state.stage != Stage::computed) return;
      edit(state.space, state.rows, [&](auto& rows) { all(rows, std::int64_t(state.gradient.extent(0))); });
    };
    plant.in_kernels = [all](Network const& network, std::vector<float>& rows) { all(rows, network.parameters + 1); };
    return plant;
  };
}

Transfer& first_of(Schedule& schedule, Action action) {
  return *std::find_if(schedule.transfers.begin(), schedule.transfers.end(),
                       [&](Transfer const& t) { return t.action == action && !t.is_local(); });
}

// Does the transfer once more, in a step of its own after the one it is in.
void repeat(Schedule& schedule, Transfer again) {
  for (Transfer& t : schedule.transfers) t.step += t.step > again.step;
  ++again.step;
  ++schedule.steps;
  schedule.transfers.push_back(again);
  std::stable_sort(schedule.transfers.begin(), schedule.transfers.end(),
                   [](Transfer const& a, Transfer const& b) { return a.step < b.step; });
}

std::int64_t own_images(StepState const& state) {
  return ShardPlan::for_batch(state.images).images_of_device(state.rank, state.ranks).size();
}

std::vector<Fault> make_faults() {
  std::vector<Fault> faults;
  auto const add = [&](char const* name, char const* story, std::function<Plant()> plant) {
    faults.push_back({name, story, std::move(plant)});
  };

  // The collective
  add("broadcast not written back", "devices other than the first keep their own gradient after the allreduce",
      scheduled("naive", [](Schedule& s) {
        auto const& gone = [](Transfer const& t) { return t.action == Action::copy; };
        s.transfers.erase(std::remove_if(s.transfers.begin(), s.transfers.end(), gone), s.transfers.end());
      }));
  add("chunk dropped", "one transfer of the reduction is left out", scheduled("ring", [](Schedule& s) {
        s.transfers.erase(s.transfers.begin() + (&first_of(s, Action::reduce) - s.transfers.data()));
      }));
  add("chunk reduced twice", "one transfer of the reduction is done again",
      scheduled("ring", [](Schedule& s) { repeat(s, first_of(s, Action::reduce)); }));
  add("wrong operand", "one transfer overwrites the partial sum instead of adding to it",
      scheduled("ring", [](Schedule& s) { first_of(s, Action::reduce).action = Action::copy; }));
  add("wrong chunk", "one transfer of the result carries the neighbouring chunk", scheduled("ring", [](Schedule& s) {
        Transfer& t = first_of(s, Action::copy);
        t.chunk     = (t.chunk + 1) % s.chunks;
      }));
  add("last step missing", "the ring stops one step early", scheduled("ring", [](Schedule& s) {
        --s.steps;
        while (s.transfers.back().step == s.steps) s.transfers.pop_back();
      }));
  add("extra traffic", "the result's last transfer is sent twice",
      scheduled("ring", [](Schedule& s) { repeat(s, s.transfers.back()); }));
  add("running past a buffer", "the allreduce takes one element more than the buffer has", [] {
    Plant plant;
    plant.in_call = [](std::vector<Buffer<std::int64_t>>& buffers) {
      for (auto& buffer : buffers) buffer = Buffer<std::int64_t>(buffer.data(), buffer.extent(0) + 1);
    };
    return plant;
  });

  // Memory
  add("shared parameter memory", "all devices of a process update one copy of the parameters", [] {
    auto const first = std::make_shared<Buffer<float>>();
    return at(Stage::allocated, [first](StepState& state) {
      if (state.rank == 0) *first = state.parameters;
      state.parameters = *first;
    })();
  });
  add("shared gradient memory", "all devices of a process reduce the same buffer", [] {
    auto const first = std::make_shared<Buffer<std::int64_t>>();
    return at(Stage::allocated, [first](StepState& state) {
      if (state.rank == 0) *first = state.fixed;
      state.fixed = *first;
    })();
  });
  add("missing fence", "the last device's buffer is sent before its kernel has written it: the step before is in it",
      [] {
        auto const before = std::make_shared<std::vector<std::int64_t>>();
        return at(Stage::summed, [before](StepState& state) {
          if (!last(state)) return;
          edit(state.space, state.fixed, [&](auto& values) {
            if (before->size() != values.size()) before->assign(values.size(), 0);
            values.swap(*before);
          });
        })();
      });
  add("stale tail slots", "in a short minibatch the last device sums the rows of the one before, too",
      at(Stage::computed, [](StepState& state) {
        if (last(state)) *state.count = std::int64_t(state.rows.extent(0) / state.gradient.extent(0));
      }));
  add("bucket re-formed after step 1", "from step 2 on, other devices fill buckets of the same lengths from the front",
      [] {
        Plant plant;
        plant.bucket_bytes = 1;
        plant.in_step      = [](StepState& state) {
          if (state.stage != Stage::bucketed || state.step < 2 || !not_first(state)) return;
          std::int64_t at = 0;
          for (Interval& bucket : *state.buckets) {
            bucket = {at, at + bucket.size()};
            at     = bucket.end;
          }
        };
        return plant;
      });

  // Sums, means and weights
  add("nominal batch length", "a short minibatch is divided by the length of a full one", [] {
    auto const nominal = std::make_shared<std::int64_t>(0);
    return at(Stage::reduced, [nominal](StepState& state) {
      *nominal     = std::max(*nominal, state.images);
      *state.count = *nominal;
    })();
  });
  add("mean of means", "the gradient is the mean of the devices' means, whatever their shares",
      at(Stage::computed, [](StepState& state) {
        float const factor = float(double(state.images) / (double(state.ranks) * double(own_images(state))));
        edit(state.space, state.rows, [&](auto& rows) {
          for (float& value : rows) value *= factor;
        });
      }));
  add("divided by the own share", "each device divides by the number of its own images",
      at(Stage::reduced, [](StepState& state) { *state.count = own_images(state); }));
  add("sum taken for a mean", "the step is k times too long", at(Stage::divided, [](StepState& state) {
        edit(state.space, state.gradient, [&](auto& values) {
          for (float& value : values) value *= float(state.ranks);
        });
      }));
  add("clipped before the reduction", "each device shortens its own gradient to a largest norm",
      at(Stage::computed, [](StepState& state) {
        edit(state.space, state.rows, [&](auto& rows) {
          double sum = 0;
          for (float const value : rows) sum += double(value) * value;
          float const factor = float(std::min(1.0, 1.0 / std::sqrt(sum)));
          for (float& value : rows) value *= factor;
        });
      }));
  add("gradient not zeroed", "the gradient of the step before is still in the buffer", [] {
    auto const before = std::make_shared<std::map<std::pair<int, int>, std::vector<float>>>();
    return at(Stage::divided, [before](StepState& state) {
      edit(state.space, state.gradient, [&](auto& values) {
        auto& kept = (*before)[{state.ranks, state.rank}];
        if (state.step == 1 || kept.size() != values.size()) kept.assign(values.size(), 0.0f);
        for (std::size_t i = 0; i + 1 < values.size(); ++i) kept[i] = values[i] += kept[i];
      });
    })();
  });
  add("loss of the first device", "the loss that is shown is the first device's share",
      at(Stage::computed, [](StepState& state) {
        edit(state.space, state.rows, [&](auto& rows) {
          std::size_t const columns = state.gradient.extent(0);
          float const factor        = state.rank > 0 ? 0.0f : float(state.ranks);
          for (std::size_t i = columns - 1; i < rows.size(); i += columns) rows[i] *= factor;
        });
      }));
  add("missing gradient on one rank", "the last device has no gradient for one tensor",
      at(Stage::computed, [](StepState& state) {
        if (!last(state)) return;
        edit(state.space, state.rows, [&](auto& rows) {
          std::size_t const columns = state.gradient.extent(0);
          for (std::size_t i = columns - 2; i < rows.size(); i += columns) rows[i] = 0;  // of the last bias
        });
      }));

  // Samples
  add("sample skipped", "the last device leaves out the last of its shards", at(Stage::planned, [](StepState& state) {
        if (last(state) && state.interval->size() > 0) --state.interval->end;
      }));
  add("remainder dropped", "images beyond a multiple of the number of devices are never used",
      at(Stage::planned, [](StepState& state) {
        std::int64_t const even = ShardPlan::for_batch(state.images).shards / state.ranks;
        state.interval->end     = state.interval->begin + std::min(even, state.interval->size());
      }));
  add("sample repeated", "one image takes the place of another in the epoch's order",
      at(Stage::shuffled, [](StepState& state) { (*state.order)[1] = (*state.order)[0]; }));
  add("shuffle by rank", "each device permutes the epoch in its own way", at(Stage::shuffled, [](StepState& state) {
        std::rotate(state.order->begin(), state.order->begin() + state.rank % std::int64_t(state.order->size()),
                    state.order->end());
      }));
  add("same images on all ranks", "every device takes the first device's images",
      at(Stage::planned, [](StepState& state) {
        *state.interval = {0, state.interval->size()};
      }));
  add("same order every epoch", "the epoch's number does not enter the shuffle", [] {
    auto const first = std::make_shared<std::map<std::pair<int, int>, std::vector<std::int32_t>>>();
    return at(Stage::shuffled, [first](StepState& state) {
      auto& kept = (*first)[{state.ranks, state.rank}];
      if (state.step == 1 || kept.size() != state.order->size()) kept = *state.order;
      *state.order = kept;
    })();
  });

  // Start values and replicas
  add("different start weights", "each rank draws its own start values", at(Stage::started, [](StepState& state) {
        if (!not_first(state)) return;
        edit(state.space, state.parameters, [&](auto& values) { std::reverse(values.begin(), values.end()); });
      }));
  add("state left from the run before", "a second run in the same process starts from the first one's result", [] {
    auto const left = std::make_shared<std::vector<float>>();
    Plant plant;
    plant.in_step = [left](StepState& state) {
      if (state.stage == Stage::updated) *left = to_host(state.space, state.parameters);
      if (state.stage == Stage::started && left->size() == state.parameters.extent(0))
        copy_in(state.space, state.parameters, *left);
    };
    return plant;
  });
  add("update missed by one rank", "the last device skips the update of step 3", [] {
    auto const before = std::make_shared<std::vector<float>>();
    Plant plant;
    plant.in_step = [before](StepState& state) {
      if (state.step != 3 || !last(state)) return;
      if (state.stage == Stage::divided) *before = to_host(state.space, state.parameters);
      if (state.stage == Stage::updated) copy_in(state.space, state.parameters, *before);
    };
    return plant;
  });
  add("bit flipped in a replica", "memory of the last device loses a bit in step 2",
      at(Stage::updated, [](StepState& state) {
        if (state.step != 2 || !last(state)) return;
        edit(state.space, state.parameters, [](auto& values) { values[4] = std::nextafter(values[4], 2.0f); });
      }));
  add("wrong sum now and then", "the allreduce of step 2 gives all devices the same wrong value",
      at(Stage::reduced, [](StepState& state) {
        if (state.step != 2 || state.ranks == 1) return;
        edit(state.space, state.fixed, [](auto& values) { values[6] ^= std::int64_t(1) << 40; });
      }));

  // Exactness
  add("rows summed in float first", "each device adds its shards in float32 before the exact sum",
      at(Stage::computed, [](StepState& state) {
        std::size_t const columns = state.gradient.extent(0);
        edit(state.space, state.rows, [&](auto& rows) {
          for (std::int64_t r = 1; r < *state.count; ++r)
            for (std::size_t i = 0; i < columns; ++i) rows[i] += rows[std::size_t(r) * columns + i];
        });
        *state.count = std::min<std::int64_t>(*state.count, 1);
      }));
  add("exponent off by one", "the last device scales by another power of two",
      at(Stage::exponents_agreed, [](StepState& state) {
        if (!last(state)) return;
        edit(state.space, state.exponents, [](auto& codes) { ++codes[2]; });
      }));
  add("exponents not agreed", "each device scales by the exponents of its own rows, NaN included", [] {
    auto const own = std::make_shared<std::map<int, std::vector<std::int64_t>>>();
    Plant plant;
    plant.in_step = [own](StepState& state) {
      if (state.stage == Stage::exponents_found) (*own)[state.rank] = to_host(state.space, state.exponents);
      if (state.stage == Stage::exponents_agreed) copy_in(state.space, state.exponents, (*own)[state.rank]);
    };
    return plant;
  });
  add("NaN seen by one rank", "the last device does not tell the others that its gradient is not finite",
      at(Stage::exponents_found, [](StepState& state) {
        if (!last(state)) return;
        edit(state.space, state.exponents, [](auto& codes) {
          for (auto& code : codes)
            if (code == exponent_not_finite) code = 0;
        });
      }));

  // Evaluation
  add("counts as means", "test accuracy is the mean of the devices' accuracies",
      at(Stage::counted, [](StepState& state) {
        edit(state.space, state.correct, [&](auto& counts) {
          double const share = double(state.images) / state.ranks;
          if (state.interval->size() > 0)
            counts[0] = std::llround(double(counts[0]) / double(state.interval->size()) * share);
        });
      }));
  add("padding repeats test images", "shares are filled up to equal length with images of other devices",
      at(Stage::evaluating, [](StepState& state) {
        std::int64_t const share = (state.images + state.ranks - 1) / state.ranks;
        state.interval->end      = std::min(state.images, state.interval->begin + share);
        state.interval->begin    = state.interval->end - share;
      }));
  add("last test images dropped", "every device counts the same whole number of test images",
      at(Stage::evaluating, [](StepState& state) {
        state.interval->begin = state.images / state.ranks * state.rank;
        state.interval->end   = state.interval->begin + state.images / state.ranks;
      }));
  add("whole test set on every device", "every device counts all test images",
      at(Stage::evaluating, [](StepState& state) {
        *state.interval = {0, state.images};
      }));

  // Kernels: wrong alike for every k
  add("kernel flipped in the weight gradient", "the first layer's weight gradient is that of a true convolution",
      in_rows([](float* row, std::int64_t columns) {
        for (float* filter = row; filter < row + std::min<std::int64_t>(27, columns - 9); filter += 9)
          std::reverse(filter, filter + 9);
      }));
  add("bias gradient missing", "the first layer's bias is never updated", in_rows([](float* row, std::int64_t columns) {
        for (std::int64_t i = 27; i < std::min<std::int64_t>(30, columns - 1); ++i) row[i] = 0;
      }));
  add("gradient one percent off", "one tensor's gradient is 1 % too large",
      in_rows([](float* row, std::int64_t columns) {
        for (std::int64_t i = 30; i < std::min<std::int64_t>(90, columns - 1); ++i) row[i] *= 1.01f;
      }));
  return faults;
}

}  // namespace

std::vector<Fault> const& all_faults() {
  static std::vector<Fault> const faults = make_faults();
  return faults;
}

std::vector<Check> fault_checks() {
  std::vector<Check> checks;
  for (Check const& check : all_checks()) {
    std::string const name = check.name;
    if (name != "reference" && name != "layers" && name != "float") checks.push_back(check);
  }
  return checks;
}

std::vector<Caught> hunt(Runtime const& runtime, Fault const& fault, std::vector<Check> const& checks) {
  std::vector<Caught> caught;
  for (Check const& check : checks) {
    Context const context(runtime, Scope::fault, 0, fault.plant());
    Outcome outcome = run_agreed(check, context);
    if (!outcome.passed) caught.push_back({check.name, std::move(outcome)});
  }
  return caught;
}

}  // namespace lockstep::verify
