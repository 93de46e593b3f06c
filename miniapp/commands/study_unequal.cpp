// SPDX-License-Identifier: Apache-2.0
// Devices of unequal speed: equal shares, shares by speed, or the slow one left out?
#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "comm/probe.hpp"
#include "kernels/kokkos_compat.hpp"
#include "kernels/median.hpp"
#include "miniapp/commands/quantities.hpp"
#include "miniapp/commands/study.hpp"
#include "miniapp/trainer.hpp"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

struct Settings : StudyOptions {
  std::string slowdowns, weights;
  std::int64_t devices, batch, steps;
  std::vector<double> slow, given;

  Settings() {
    add<std::int64_t>("devices,k", devices, 2, "devices per process");
    add("slow", slowdowns, std::string("1,1.5,2,4,8"), std::string("1,8"),
        "how many times slower the last device is made, as a list: after its work it idles");
    add("weights", weights, "speeds of the devices, a list in order of rank (default: measured)");
    add<std::int64_t>("batch", batch, 256, "images a step, of all devices together");
    add<std::int64_t>("steps", steps, 40, 12, "of each run");
    add_data(4000);
  }
  void check() {
    StudyOptions::check();
    slow = parse_numbers("--slow", slowdowns, 1, 1000);
    if (!weights.empty()) given = parse_numbers("--weights", weights, 0, 1e9);
    in_range("--devices", devices, 1, 4096);
    in_range("--batch", batch, 1, most);
    in_range("--steps", steps, 2, most);
  }
};

class Unequal {
 public:
  Unequal(Settings const& settings, Runtime const& runtime)
      : m_settings(settings),
        m_study(study_unequal_command, settings, runtime),
        m_data(settings.load()),
        m_world(runtime.instances(int(settings.devices))) {
    LOCKSTEP_THROW_IF(m_world.size() < 2, ExitCode::usage, "study unequal on 1 device; expected 2 or more");
  }

  ExitCode execute() {
    int const k = m_world.size();
    m_study.describe(m_data);
    m_study.describe(m_world);
    m_study.parameters().update({{"batch", m_settings.batch},
                                 {"steps", m_settings.steps},
                                 {"weights", m_settings.given.empty() ? Json("measured") : Json(m_settings.given)}});
    std::vector<double> without(std::size_t(k), 1.0);
    without.back() = 0;
    Table table({"last device", "weights", "shards", "left out", "equal", "by weight", "predicted", "", "step"});
    auto& rows = m_study.result()["rows"] = Json::array();
    run(1, {});  // the first use of everything takes longer
    for (double slow : m_settings.slow) {
      Outcome const equal    = run(slow, {});
      auto const weights     = m_settings.given.empty() ? equal.speeds : m_settings.given;
      Outcome const weighted = run(slow, weights), left_out = run(slow, without);
      // Of the last device to end, from the speeds found with equal shares.
      double const predicted_equal = predict({}, equal.speeds), predicted = predict(weights, equal.speeds),
                   predicted_left_out = predict(without, equal.speeds);
      std::string shown, shards;
      for (int rank = 0; rank < k; ++rank) {
        shown += (rank ? ":" : "") + format("%.2f", weights[std::size_t(rank)] / weights[0]);
        shards += (rank ? ":" : "") + std::to_string(plan().shards_of(rank, weights).size());
      }
      table.row({format("%gx slower", slow), shown, shards, seconds_text(left_out.slowest), seconds_text(equal.slowest),
                 seconds_text(weighted.slowest), seconds_text(predicted),
                 weighted.slowest < left_out.slowest ? "pays" : "does not pay", seconds_text(weighted.step)});
      rows.push_back({{"slower", slow},
                      {"weights", weights},
                      {"shards", shards},
                      {"left_out_s", left_out.slowest},
                      {"equal_s", equal.slowest},
                      {"weighted_s", weighted.slowest},
                      {"predicted_left_out_s", predicted_left_out},
                      {"predicted_equal_s", predicted_equal},
                      {"predicted_weighted_s", predicted},
                      {"step_left_out_s", left_out.step},
                      {"step_equal_s", equal.step},
                      {"step_weighted_s", weighted.step},
                      {"parameters_sha256", weighted.sha256}});
      std::string const claim = "last device " + format("%g", slow) + " times slower: ";
      m_study.equality(claim + "equal shares, shares by weight and the device left out end in the same bits",
                       equal.sha256 == weighted.sha256 && equal.sha256 == left_out.sha256);
      if (slow >= 2) {
        m_study.order(claim + "shares by weight end sooner than equal shares", weighted.slowest < equal.slowest);
        if (k == 2)
          m_study.order(claim + "it is better left out than given an equal share", left_out.slowest < equal.slowest);
      }
    }
    m_study.say(
        "\ntimes: of a step's gradients on the device that needs longest, median of %lld steps; predicted: by weight, "
        "from the speeds with equal shares; step: the whole step by weight, all devices\n",
        static_cast<long long>(m_settings.steps));
    if (m_world.local_size() > 1)
      m_study.say("NOTE: the devices of a process take turns here: a step takes their times together\n");
    m_study.say(table.text());
    return m_study.finish();
  }

 private:
  struct Outcome {
    double slowest = 0;          // seconds of a step's gradients on the device that needs longest: median over steps
    double step    = 0;          // seconds of a whole step, median
    std::vector<double> speeds;  // shards a second, by rank; 0 for a rank without
    std::string sha256;
  };

  ShardPlan plan() const { return ShardPlan::for_batch(std::min(m_settings.batch, m_data.train.count)); }

  Outcome run(double slow, std::vector<double> const& weights) {
    // Of gradients, by device and step.
    std::vector<std::vector<double>> seconds(std::size_t(m_world.local_size())), rates(seconds.size());
    // The trainer launches the gradients of one device after the other's: one's time ends where the next one's begins.
    struct {
      Space const* space = nullptr;  // null: none is being timed
      int rank           = 0;
      double start = 0, shards = 0;
    } timed;
    auto const end = [&] {
      if (!timed.space) return;
      fence(*timed.space, "lockstep::study::unequal");
      double const own = comm::clock_seconds() - timed.start;
      if (timed.rank == m_world.size() - 1)
        std::this_thread::sleep_for(std::chrono::duration<double>((slow - 1) * own));
      auto const local = std::size_t(timed.rank % m_world.local_size());
      seconds[local].push_back(comm::clock_seconds() - timed.start);
      rates[local].push_back(timed.shards / std::max(seconds[local].back(), 1e-9));
      timed.space = nullptr;
    };
    TrainerOptions options;
    options.batch   = m_settings.batch;
    options.weights = weights;
    options.hook    = [&](StepState& state) {
      if (state.stage == Stage::planned || state.stage == Stage::computed) end();
      if (state.stage == Stage::planned) {
        fence(state.space, "lockstep::study::unequal");
        timed = {&state.space, state.rank, comm::clock_seconds(), double(state.interval->size())};
      }
    };
    Trainer trainer(m_world, Network::chapter(), m_data.train, m_data.test, options);
    std::vector<double> steps;
    for (std::int64_t step = 0; step < m_settings.steps; ++step)
      steps.push_back(comm::time_together(m_world, 1, [&] { trainer.advance(); }));
    Outcome outcome;
    outcome.step   = median(steps);
    outcome.sha256 = trainer.parameters_sha256();
    for (int local = 0; local < m_world.local_size(); ++local) {
      double const own = median(seconds[std::size_t(local)]);
      auto const owns = m_world.gather(own), speeds = m_world.gather(median(rates[std::size_t(local)]));
      outcome.speeds.resize(std::size_t(m_world.size()));
      for (int process = 0; process < m_world.processes(); ++process) {
        auto const p                                                               = std::size_t(process);
        outcome.slowest                                                            = std::max(outcome.slowest, owns[p]);
        outcome.speeds[p * std::size_t(m_world.local_size()) + std::size_t(local)] = speeds[p];
      }
    }
    return outcome;
  }

  double predict(std::vector<double> const& weights, std::vector<double> const& speeds) const {
    double last = 0;
    for (int rank = 0; rank < m_world.size(); ++rank) {
      auto const run = weights.empty() ? plan().shards_of(rank, m_world.size()) : plan().shards_of(rank, weights);
      if (run.size() > 0) last = std::max(last, double(run.size()) / speeds[std::size_t(rank)]);
    }
    return last;
  }

  Settings const& m_settings;
  Study m_study;
  TrainTest m_data;
  comm::Communicator m_world;
};

ExitCode run(Arguments const& arguments) {
  return run_study<Settings>(study_unequal_command, arguments, [](Settings const& settings, Runtime const& runtime) {
    return Unequal(settings, runtime).execute();
  });
}

}  // namespace

Command const study_unequal_command{"study unequal", "equal or weighted shares for devices of unequal speed", run};

}  // namespace lockstep
