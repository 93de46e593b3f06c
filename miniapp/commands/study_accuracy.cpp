// SPDX-License-Identifier: Apache-2.0
// Test accuracy on k devices: the same whole number for every k, its time, and what evaluation with padded shares would
// report instead.
#include "comm/probe.hpp"
#include "kernels/median.hpp"
#include "miniapp/commands/quantities.hpp"
#include "miniapp/commands/study.hpp"
#include "miniapp/trainer.hpp"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

struct Settings : StudyOptions {
  std::string devices;
  std::int64_t batch, steps, samples;
  std::vector<std::int64_t> device_counts;

  Settings() {
    add("devices,k", devices, std::string("1,2,3,4,7,8"), std::string("1,2,3,7"),
        "numbers of devices per process, as a list");
    add<std::int64_t>("batch", batch, 256, 32, "images of a minibatch, in training and in padded evaluation");
    add<std::int64_t>("steps", steps, 705, 550, "of training before the evaluation");
    add<std::int64_t>("iters,n", samples, 5, "timed evaluations");
    add_data(4000, 1001);
  }
  void check() {
    StudyOptions::check();
    device_counts = parse_integers("--devices", devices, 1, 4096);
    in_range("--batch", batch, 1, most);
    in_range("--steps", steps, 0, most);
    in_range("--iters", samples, 1, 1000000);
  }
};

// Images from the beginning once more, until a multiple of `unit` is there: what samplers do that give every device
// equally many images, or equally many whole minibatches.
Dataset padded(Dataset const& data, std::int64_t unit) {
  Dataset longer          = data;
  std::int64_t const size = std::int64_t(data.height) * data.width;
  longer.count            = (data.count + unit - 1) / unit * unit;
  for (std::int64_t i = data.count; i < longer.count; ++i) {
    auto const image = data.images.begin() + i % data.count * size;
    longer.images.insert(longer.images.end(), image, image + size);
    longer.labels.push_back(data.labels[std::size_t(i % data.count)]);
  }
  return longer;
}

class Accuracy {
 public:
  Accuracy(Settings const& settings, Runtime const& runtime)
      : m_settings(settings),
        m_runtime(runtime),
        m_study(study_accuracy_command, settings, runtime),
        m_data(settings.load()) {}

  ExitCode execute() {
    m_study.describe(m_data);
    m_study.parameters().update({{"devices", m_settings.device_counts},
                                 {"processes", m_runtime.processes()},
                                 {"batch", m_settings.batch},
                                 {"steps", m_settings.steps}});
    train();
    for (std::int64_t k : m_settings.device_counts) evaluate(int(k));
    report();
    return m_study.finish();
  }

 private:
  struct Count {
    std::int64_t correct, images;
    double accuracy() const { return images > 0 ? double(correct) / double(images) : 0; }
    std::string text() const {
      return format("%.4f", accuracy()) + " (" + std::to_string(correct) + "/" + std::to_string(images) + ")";
    }
  };
  struct Row {
    int devices;
    Count count, to_devices, to_minibatches;
    double seconds;
  };

  TrainerOptions options() const {
    TrainerOptions options;
    options.batch = m_settings.batch;
    return options;
  }

  void train() {
    comm::Communicator communicator(m_runtime.instances(1));
    Trainer trainer(communicator, Network::chapter(), m_data.train, m_data.test, options());
    for (std::int64_t step = 0; step < m_settings.steps; ++step) trainer.advance();
    m_parameters = trainer.parameters();
    m_alone      = trainer.count_correct_alone();
    m_study.say("trained : %lld steps; one device alone counts %lld of %lld\n",
                static_cast<long long>(m_settings.steps), static_cast<long long>(m_alone),
                static_cast<long long>(m_data.test.count));
    m_study.result()["correct"] = m_alone;
  }

  // Correct predictions of the trained network, by all devices together.
  Count count(comm::Communicator& communicator, Dataset const& test, double* seconds = nullptr) const {
    Trainer trainer(communicator, Network::chapter(), m_data.train, test, options());
    trainer.restore(m_parameters, m_settings.steps);
    Count const count{trainer.count_correct(), test.count};
    if (!seconds) return count;
    std::vector<double> samples;
    for (std::int64_t i = 0; i < m_settings.samples; ++i)
      samples.push_back(comm::time_together(communicator, 1, [&] { trainer.count_correct(); }));
    *seconds = median(samples);
    return count;
  }

  void evaluate(int devices) {
    comm::Communicator communicator(m_runtime.instances(devices));
    std::int64_t const k = communicator.size();
    Row row{int(k), {}, {}, {}, 0};
    row.count          = count(communicator, m_data.test, &row.seconds);
    row.to_devices     = count(communicator, padded(m_data.test, k));
    row.to_minibatches = count(communicator, padded(m_data.test, k * m_settings.batch));
    m_rows.push_back(row);
  }

  void report() {
    Table table({"k", "correct", "accuracy", "time", "padded to k shares", "padded to k minibatches"});
    auto& rows = m_study.result()["rows"] = Json::array();
    auto const json                       = [](Count const& count) {
      return Json{{"correct", count.correct}, {"images", count.images}, {"accuracy", count.accuracy()}};
    };
    for (auto const& row : m_rows) {
      table.row({std::to_string(row.devices), std::to_string(row.count.correct), format("%.4f", row.count.accuracy()),
                 seconds_text(row.seconds), row.to_devices.text(), row.to_minibatches.text()});
      rows.push_back({{"devices", row.devices},
                      {"seconds", row.seconds},
                      {"whole", json(row.count)},
                      {"padded_to_devices", json(row.to_devices)},
                      {"padded_to_minibatches", json(row.to_minibatches)}});
      std::string const k = "k = " + std::to_string(row.devices);
      m_study.equality(k + ": the devices' counts add up to what one device alone counts",
                       row.count.correct == m_alone);
      if (row.to_minibatches.images != row.count.images)
        m_study.order(k + ": padding to whole minibatches reports another accuracy",
                      row.to_minibatches.accuracy() != row.count.accuracy());
    }
    m_study.say(
        "\nPadded: images from the beginning counted once more, so that k devices have equally many (padded to k "
        "shares), or equally many minibatches of %lld.\n",
        static_cast<long long>(m_settings.batch));
    m_study.say(table.text());
  }

  Settings const& m_settings;
  Runtime const& m_runtime;
  Study m_study;
  TrainTest m_data;
  std::vector<float> m_parameters;
  std::int64_t m_alone = 0;
  std::vector<Row> m_rows;
};

ExitCode run(Arguments const& arguments) {
  return run_study<Settings>(study_accuracy_command, arguments, [](Settings const& settings, Runtime const& runtime) {
    return Accuracy(settings, runtime).execute();
  });
}

}  // namespace

Command const study_accuracy_command{"study accuracy", "test accuracy on k devices, and what padding makes of it", run};

}  // namespace lockstep
