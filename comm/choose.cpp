// SPDX-License-Identifier: Apache-2.0
#include "comm/choose.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "comm/probe.hpp"
#include "kernels/error.hpp"
#include "kernels/kokkos_compat.hpp"
#include "kernels/median.hpp"

namespace lockstep::comm {

std::vector<Choice> measure_choices(Communicator& world, std::int64_t most_bytes, int repeats) {
  std::vector<Buffer<float>> whole;
  std::int64_t const most = std::max<std::int64_t>(most_bytes / 4, 1);
  for (int d = 0; d < world.local_size(); ++d) {
    whole.emplace_back(Kokkos::view_alloc(world.instance(d), std::string("lockstep::comm::choose")), std::size_t(most));
    fence(world.instance(d), "lockstep::comm::choose");
  }
  std::vector<Choice> choices;
  for (std::int64_t count = 16;; count *= 8) {
    count = std::min(count, most);
    std::vector<Buffer<float>> buffers;
    for (auto const& buffer : whole) buffers.push_back(Kokkos::subview(buffer, std::make_pair(std::int64_t(0), count)));
    std::string best;
    double best_seconds = 0;
    for (auto const& algorithm : world.algorithms()) {
      if (algorithm == "mpi" || algorithm == "nccl") continue;
      auto const call          = [&] { world.allreduce(algorithm, Op::sum, buffers); };
      double const one         = std::min(time_together(world, 1, call), time_together(world, 1, call));
      std::int64_t const calls = std::clamp<std::int64_t>(std::int64_t(30e-6 / std::max(one, 1e-9)), 1, 50);
      std::vector<double> times;
      for (int i = 0; i < repeats; ++i) times.push_back(time_together(world, calls, call));
      double const seconds = median(times) / double(calls);
      if (!best.empty() && seconds >= best_seconds) continue;
      best         = algorithm;
      best_seconds = seconds;
    }
    // A length counts as the measured one that is nearer on a logarithmic scale.
    std::int64_t const limit = std::int64_t(double(count) * 4 * std::sqrt(8.0));
    if (!choices.empty() && choices.back().algorithm == best)
      choices.back().bytes = limit;
    else
      choices.push_back({limit, best});
    if (count == most) return choices;
  }
}

std::vector<Choice> read_choices(std::string const& path) {
  std::ifstream file(path);
  LOCKSTEP_THROW_IF(!file, ExitCode::usage, path + ": cannot be read; expected a table of algorithms");
  std::vector<Choice> choices;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    Choice choice{};
    std::string rest;
    if (!(words >> std::ws) || words.eof()) continue;
    bool const good = words >> choice.bytes >> choice.algorithm && !(words >> rest) && choice.bytes > 0 &&
                      (choices.empty() || choice.bytes > choices.back().bytes);
    LOCKSTEP_THROW_IF(!good, ExitCode::usage,
                      path + ", line " + std::to_string(number) + ": found '" + line +
                          "', expected a number of bytes above the last line's, and an algorithm");
    choices.push_back(choice);
  }
  LOCKSTEP_THROW_IF(choices.empty(), ExitCode::usage, path + ": is empty; expected lines of bytes and algorithm");
  return choices;
}

std::string as_text(std::vector<Choice> const& choices) {
  std::string text = "# vectors of up to so many bytes: algorithm\n";
  for (auto const& choice : choices) text += std::to_string(choice.bytes) + ' ' + choice.algorithm + '\n';
  return text;
}

}  // namespace lockstep::comm
