// SPDX-License-Identifier: Apache-2.0
// Communication behind backward: how much of it a step still waits for, by bucket size.
#include <algorithm>
#include <memory>

#include "comm/probe.hpp"
#include "kernels/error.hpp"
#include "kernels/median.hpp"
#include "miniapp/commands/cost_options.hpp"
#include "miniapp/commands/quantities.hpp"
#include "miniapp/commands/study.hpp"
#include "miniapp/profiler.hpp"
#include "miniapp/report.hpp"
#include "miniapp/trainer.hpp"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

struct Settings : StudyOptions {
  std::string buckets, allreduce, trace;
  std::int64_t devices, batch, steps;
  std::vector<double> sizes;  // falling

  Settings() {
    add<std::int64_t>("devices,k", devices, 2, "devices per process");
    add("bucket-bytes", buckets, std::string("1,16384,131072"), std::string("1,131072"),
        "sizes of buckets, a list (1: a bucket a tensor)");
    add("allreduce", allreduce, std::string("ring"), "the algorithm");
    add<std::int64_t>("batch", batch, 256, "images a step, of all devices together");
    add<std::int64_t>("steps", steps, 100, 20, "of each run");
    add("trace", trace, "write a timeline of the run with the smallest buckets and overlap to this file");
    add_data(4000);
  }
  void check() {
    StudyOptions::check();
    LOCKSTEP_THROW_IF(trace == "-", ExitCode::usage, "--trace -; expected a file");
    LOCKSTEP_THROW_IF(parse_algorithms("--allreduce", allreduce).size() != 1, ExitCode::usage,
                      "--allreduce " + allreduce + "; expected one algorithm");
    sizes = parse_numbers("--bucket-bytes", buckets, 1, 1e12);
    std::sort(sizes.rbegin(), sizes.rend());
    in_range("--devices", devices, 1, 4096);
    in_range("--batch", batch, 1, most);
    in_range("--steps", steps, 2, most);
  }
  std::vector<Target> targets() const { return {{"--json", json}, {"--trace", trace}}; }
};

// Multiply-adds of one layer's forward for an image; backward takes twice as many but for the first layer, which has
// no gradient of its input.
double multiply_adds(Layer const& layer) {
  if (layer.weight < 0) return 0;
  return layer.kind == LayerKind::dense
             ? double(layer.input.size()) * double(layer.output.size())
             : double(layer.output.size()) * layer.input.channels * layer.kernel * layer.kernel;
}

class Overlap {
 public:
  Overlap(Settings const& settings, Runtime const& runtime)
      : m_settings(settings),
        m_runtime(runtime),
        m_study(study_overlap_command, settings, runtime),
        m_data(settings.load()),
        m_network(Network::chapter()),
        m_world(runtime.instances(int(settings.devices))),
        m_probe(m_world, 8 * m_network.parameters) {
    LOCKSTEP_THROW_IF(m_world.size() < 2, ExitCode::usage, "study overlap on 1 device; expected 2 or more");
  }

  ExitCode execute() {
    m_study.describe(m_data);
    m_study.describe(m_world);
    m_study.say("allreduce : %s\n", m_settings.allreduce.c_str());
    m_study.parameters().update(
        {{"allreduce", m_settings.allreduce}, {"batch", m_settings.batch}, {"steps", m_settings.steps}});
    m_study.result()["rows"] = Json::array();
    run(0, false, false);  // the first use of everything takes longer
    Outcome const whole = run(0, false, false);
    double const alone  = whole.step - whole.communication;  // seconds of a step without communication
    add_row(0, whole, alone);
    for (double const size : m_settings.sizes) {
      auto const bytes  = std::int64_t(size);
      bool const last   = size == m_settings.sizes.back();
      Outcome const off = run(bytes, false, false), on = run(bytes, true, last && !m_settings.trace.empty());
      add_row(bytes, off, alone);
      add_row(bytes, on, alone);
      std::string const claim = buckets_text(bytes, on) + ": ";
      m_study.equality(claim + "with and without overlap, and with one bucket: the same bits",
                       off.sha256 == whole.sha256 && on.sha256 == whole.sha256);
      if (!on.notice.empty()) {
        m_study.say("NOTE: %s\n", on.notice.c_str());
        continue;
      }
      if (on.buckets == 1) continue;
      m_study.order(claim + "part of the communication is hidden", on.exposed < on.communication);
      m_study.order(claim + "the step is shorter with overlap", on.step < off.step);
    }
    m_study.say(
        "\nseconds of a step, medians of %lld; exposed: what the step waits for; predicted: on devices that need no "
        "core for communication, from the step without it (%s), from probes of these ranks, and from where backward "
        "is when a bucket is full\n",
        static_cast<long long>(m_settings.steps), seconds_text(alone).c_str());
    m_study.say(m_table.text());
    return m_study.finish();
  }

 private:
  struct Outcome {
    bool overlaps       = false;
    std::size_t buckets = 0;
    double step = 0, communication = 0, exposed = 0;  // medians
    double predicted = 0, predicted_exposed = 0;      // communication, and what of it a step waits for
    std::string sha256, notice;
  };

  Outcome run(std::int64_t bytes, bool overlap, bool trace) {
    TrainerOptions options;
    options.batch        = m_settings.batch;
    options.allreduce    = m_settings.allreduce;
    options.bucket_bytes = bytes;
    options.overlap      = overlap;
    Trainer trainer(m_world, m_network, m_data.train, m_data.test, options);
    std::unique_ptr<Profiler> profiler;
    if (trace) {
      m_world.barrier();
      profiler = std::make_unique<Profiler>(true);
    }
    std::vector<double> steps, communication, exposed;
    for (std::int64_t step = 0; step < m_settings.steps; ++step) {
      StepResult result;
      steps.push_back(comm::time_together(m_world, 1, [&] { result = trainer.advance(); }));
      communication.push_back(result.communication);
      exposed.push_back(result.exposed);
    }
    if (trace) {
      auto const timeline = profiler->timeline(m_world);
      if (m_runtime.is_root()) write_json(m_settings.trace, timeline);
    }
    Outcome outcome;
    outcome.overlaps      = trainer.overlaps();
    outcome.notice        = trainer.overlap_notice();
    outcome.buckets       = trainer.buckets().size();
    outcome.step          = longest(median(steps));
    outcome.communication = longest(median(communication));
    outcome.exposed       = longest(median(exposed));
    outcome.sha256        = trainer.parameters_sha256();
    return outcome;
  }

  // Of the process that needs longest.
  double longest(double mine) {
    auto const all = m_world.gather(mine);
    return *std::max_element(all.begin(), all.end());
  }

  // Buckets are reduced one after another, each from when it is full: the last layers' first.
  void predict(std::int64_t bytes, double alone, Outcome& outcome) const {
    double all = 0, done = 0, end = 0;
    for (std::size_t l = 0; l < m_network.layers.size(); ++l)
      all += (l == 0 ? 2 : 3) * multiply_adds(m_network.layers[l]);
    for (auto const& bucket : make_buckets(m_network, bytes)) {
      done = 0;
      for (std::size_t l = 0; l < m_network.layers.size(); ++l) {
        bool const gone_back = int(l) >= bucket.first_layer;
        done += multiply_adds(m_network.layers[l]) * (gone_back ? (l == 0 ? 2 : 3) : 1);
      }
      comm::ScheduleRequest const request{m_world.size(), bucket.elements.size(), m_world.ranks_per_node()};
      double const seconds = m_probe.predict(m_settings.allreduce, request, sizeof(std::int64_t)).sum();
      outcome.predicted += seconds;
      end = std::max(end, outcome.overlaps ? alone * done / all : alone) + seconds;
    }
    outcome.predicted_exposed = end - alone;
  }

  static std::string buckets_text(std::int64_t bytes, Outcome const& outcome) {
    return std::to_string(outcome.buckets) + (outcome.buckets == 1 ? " bucket" : " buckets") +
           (bytes > 1 ? " of up to " + bytes_text(double(bytes)) : "");
  }

  void add_row(std::int64_t bytes, Outcome outcome, double alone) {
    predict(bytes, alone, outcome);
    m_table.row({buckets_text(bytes, outcome), outcome.overlaps ? "on" : "off", seconds_text(outcome.step),
                 seconds_text(outcome.communication), seconds_text(outcome.exposed), seconds_text(outcome.predicted),
                 seconds_text(outcome.predicted_exposed)});
    m_study.result()["rows"].push_back({{"bucket_bytes", bytes},
                                        {"buckets", outcome.buckets},
                                        {"overlap", outcome.overlaps},
                                        {"step_s", outcome.step},
                                        {"communication_s", outcome.communication},
                                        {"exposed_s", outcome.exposed},
                                        {"predicted_communication_s", outcome.predicted},
                                        {"predicted_exposed_s", outcome.predicted_exposed},
                                        {"parameters_sha256", outcome.sha256}});
  }

  Settings const& m_settings;
  Runtime const& m_runtime;
  Study m_study;
  TrainTest m_data;
  Network m_network;
  comm::Communicator m_world;
  comm::Probe m_probe;
  Table m_table{{"buckets", "overlap", "step", "communication", "exposed", "predicted", "predicted exposed"}};
};

ExitCode run(Arguments const& arguments) {
  return run_study<Settings>(study_overlap_command, arguments, [](Settings const& settings, Runtime const& runtime) {
    return Overlap(settings, runtime).execute();
  });
}

}  // namespace

Command const study_overlap_command{"study overlap", "communication hidden behind backward, by size of buckets", run};

}  // namespace lockstep
