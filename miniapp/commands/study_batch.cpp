// SPDX-License-Identifier: Apache-2.0
// With k devices the minibatch grows from b to k b: what becomes of accuracy, and how should the learning rate follow?
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <tuple>

#include "miniapp/commands/quantities.hpp"
#include "miniapp/commands/study.hpp"
#include "miniapp/report.hpp"
#include "miniapp/trainer.hpp"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

struct Rule {
  std::string name;
  LearningRate::Rule rule;
  bool warm_up;
};

Rule const known_rules[] = {{"kept", LearningRate::Rule::kept, false},
                            {"sqrt", LearningRate::Rule::sqrt, false},
                            {"linear", LearningRate::Rule::linear, false},
                            {"warmup", LearningRate::Rule::linear, true}};

struct Settings : StudyOptions {
  std::string devices, rates, rules;
  std::int64_t batch, warmup, seeds, epochs;
  std::vector<std::int64_t> device_counts;
  std::vector<double> learning_rates;
  std::vector<Rule> chosen;

  Settings() {
    add("devices,k", devices, std::string("1,2,4,8"), std::string("1,2"), "numbers of devices k, as a list");
    add<std::int64_t>("batch", batch, 256, 32, "images a step of one device, b; k devices take k b");
    add("lr", rates, std::string("0.2"), "learning rates of b, as a list");
    add("rules", rules, std::string("kept,sqrt,linear,warmup"),
        "what the learning rate of k b is, as a list: lr kept, times sqrt(k), times k (linear), or that after a ramp "
        "(warmup)");
    add<std::int64_t>("warmup-epochs", warmup, 2, 1, "length of the ramp");
    add<std::int64_t>("seeds", seeds, 3, 2, "runs of each kind, with seeds 1, 2, ...");
    add<std::int64_t>("epochs", epochs, 10, 6, "passes over the training images");
    add_data(4000, 1000);
  }
  void check() {
    StudyOptions::check();
    std::int64_t const many = std::int64_t(1) << 20;
    device_counts           = parse_integers("--devices", devices, 1, 4096);
    learning_rates          = parse_numbers("--lr", rates, 0, 1e6);
    in_range("--batch", batch, 1, many);
    in_range("--warmup-epochs", warmup, 1, many);
    in_range("--seeds", seeds, 1, many);
    in_range("--epochs", epochs, 1, many);
    for (auto const& word : split_list(rules)) {
      auto const* found =
          std::find_if(std::begin(known_rules), std::end(known_rules), [&](Rule const& r) { return r.name == word; });
      LOCKSTEP_THROW_IF(found == std::end(known_rules), ExitCode::usage,
                        "--rules " + rules + "; expected some of kept, sqrt, linear, warmup");
      chosen.push_back(*found);
    }
  }
};

enum class End { trained, plateau, not_finite };

struct Run {
  std::int64_t devices;
  double lr;
  std::string rule;
  std::int64_t seed;
  double scaled_lr             = 0;
  std::int64_t steps           = 0;
  double images_per_s          = 0;
  End end                      = End::trained;
  std::string sha256           = {};
  std::vector<double> accuracy = {}, loss = {};  // by epoch: test accuracy, mean training loss
};

char const* name(End end) {
  return end == End::trained ? "trained" : end == End::plateau ? "plateau" : "not finite";
}

class Batch {
 public:
  Batch(Settings const& settings, Runtime const& runtime)
      : m_settings(settings),
        m_runtime(runtime),
        m_study(study_batch_command, settings, runtime),
        m_data(settings.load()) {}

  ExitCode execute() {
    auto const& s = m_settings;
    m_study.describe(m_data);
    m_study.parameters().update({{"devices", s.device_counts},
                                 {"batch", s.batch},
                                 {"learning_rates", s.learning_rates},
                                 {"warmup_epochs", s.warmup},
                                 {"seeds", s.seeds},
                                 {"epochs", s.epochs}});
    prove();
    m_study.result()["runs"] = Json::array();
    for (std::int64_t seed = 1; seed <= s.seeds; ++seed)
      for (std::int64_t k : s.device_counts)
        for (double lr : s.learning_rates)
          for (auto const& rule : s.chosen)
            if (k > 1 || &rule == &s.chosen.front()) train(k, lr, rule, seed);
    summarise();
    return m_study.finish();
  }

 private:
  TrainerOptions options(std::int64_t k, double lr, Rule const& rule, std::int64_t seed) const {
    TrainerOptions options;
    options.batch         = k * m_settings.batch;
    options.learning_rate = {lr, rule.rule, m_settings.batch, rule.warm_up ? m_settings.warmup : 0};
    options.seed          = std::uint64_t(seed);
    return options;
  }

  // The parameters' hash after a few steps with minibatches of k b on `devices` devices.
  std::string hash_after(std::int64_t k, int devices) const {
    comm::Communicator communicator(m_runtime.instances(devices));
    Trainer trainer(communicator, Network::chapter(), m_data.train, m_data.test,
                    options(k, m_settings.learning_rates[0], m_settings.chosen.back(), 1));
    for (int step = 0; step < 3; ++step) trainer.advance();
    return trainer.parameters_sha256();
  }

  // In exact mode k decides the size of the minibatch and nothing else.
  void prove() {
    for (std::int64_t k : m_settings.device_counts) {
      if (k == 1) continue;
      m_study.equality("three steps of " + std::to_string(k * m_settings.batch) + " images end in the same bits on " +
                           std::to_string(k) + " devices and on one",
                       hash_after(k, int(k)) == hash_after(k, 1));
    }
    m_study.say(
        "Exact mode gives k devices the bits of one, so k is here the size of the minibatch, k x %lld: each run has "
        "one "
        "device, with all threads.\n",
        static_cast<long long>(m_settings.batch));
  }

  void train(std::int64_t k, double lr, Rule const& rule, std::int64_t seed) {
    comm::Communicator communicator(m_runtime.instances(1));
    Trainer trainer(communicator, Network::chapter(), m_data.train, m_data.test, options(k, lr, rule, seed));
    Run run{k, lr, k == 1 ? "any" : rule.name, seed};
    run.scaled_lr  = options(k, lr, rule, seed).learning_rate.scaled(k * m_settings.batch);
    double seconds = 0, images = 0;
    try {
      for (std::int64_t epoch = 0; epoch < m_settings.epochs; ++epoch) {
        double loss      = 0;
        auto const start = std::chrono::steady_clock::now();
        for (std::int64_t step = 0; step < trainer.steps_per_epoch(); ++step) {
          auto const result = trainer.advance();
          loss += result.loss * double(result.images);
        }
        seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        images += double(m_data.train.count);
        run.loss.push_back(loss / double(m_data.train.count));
        run.accuracy.push_back(double(trainer.count_correct()) / double(std::max<std::int64_t>(1, m_data.test.count)));
      }
      if (run.loss.back() > 0.99 * std::log(10.0)) run.end = End::plateau;  // guessing among ten classes
    } catch (Error const& error) {
      if (error.code() != ExitCode::wrong_result) throw;
      run.end = End::not_finite;
    }
    run.steps        = trainer.step();
    run.sha256       = trainer.parameters_sha256();
    run.images_per_s = seconds > 0 ? images / seconds : 0;
    m_study.say("k %lld, lr %g, %s -> %g, seed %lld: %s, test accuracy %s\n", static_cast<long long>(k), lr,
                run.rule.c_str(), run.scaled_lr, static_cast<long long>(seed), name(run.end),
                run.accuracy.empty() ? "-" : format("%.4f", run.accuracy.back()).c_str());
    m_study.result()["runs"].push_back({{"devices", k},
                                        {"batch", k * m_settings.batch},
                                        {"lr", lr},
                                        {"rule", run.rule},
                                        {"scaled_lr", run.scaled_lr},
                                        {"seed", seed},
                                        {"end", name(run.end)},
                                        {"steps", run.steps},
                                        {"images_per_s", run.images_per_s},
                                        {"parameters_sha256", run.sha256},
                                        {"train_loss", run.loss},
                                        {"test_accuracy", run.accuracy}});
    m_study.write();  // a study that is stopped keeps what it has
    m_runs.push_back(std::move(run));
  }

  struct Row {
    std::int64_t devices;
    double lr;
    std::string rule;
    double scaled_lr = 0, images_per_s = 0;
    std::int64_t steps = 0, runs = 0, trained = 0;
    std::vector<double> mean = {}, deviation = {};  // of trained runs' test accuracy, by epoch
    double last_three = 0;                          // mean of the last three epochs' means
    // More runs that learned come before higher accuracy.
    std::pair<std::int64_t, double> rank() const { return {trained, last_three}; }
  };

  Row row_of(std::int64_t k, double lr, std::string const& rule) const {
    Row row{k, lr, rule};
    std::vector<Run const*> trained;
    for (auto const& run : m_runs) {
      if (std::tie(run.devices, run.lr, run.rule) != std::tie(k, lr, rule)) continue;
      ++row.runs;
      row.scaled_lr = run.scaled_lr;
      row.steps     = std::max(row.steps, run.steps);
      row.images_per_s += run.images_per_s;
      if (run.end == End::trained) trained.push_back(&run);
    }
    row.images_per_s /= double(row.runs);
    row.trained    = std::int64_t(trained.size());
    double const n = double(row.trained);
    if (trained.empty()) return row;
    for (std::size_t epoch = 0; epoch < std::size_t(m_settings.epochs); ++epoch) {
      double sum = 0, squares = 0;
      for (auto const* run : trained) sum += run->accuracy[epoch];
      for (auto const* run : trained) squares += std::pow(run->accuracy[epoch] - sum / n, 2);
      row.mean.push_back(sum / n);
      row.deviation.push_back(n > 1 ? std::sqrt(squares / (n - 1)) : 0);
    }
    std::size_t const last = std::min<std::size_t>(3, row.mean.size());
    for (std::size_t i = row.mean.size() - last; i < row.mean.size(); ++i) row.last_three += row.mean[i] / double(last);
    return row;
  }

  void summarise() {
    std::vector<Row> rows;
    for (auto const& run : m_runs)
      if (std::none_of(rows.begin(), rows.end(), [&](Row const& r) {
            return std::tie(r.devices, r.lr, r.rule) == std::tie(run.devices, run.lr, run.rule);
          }))
        rows.push_back(row_of(run.devices, run.lr, run.rule));
    std::vector<std::string> heads{"k", "batch", "rule", "lr", "steps", "images/s", "trained"};
    for (std::int64_t epoch = 1; epoch <= m_settings.epochs; ++epoch) heads.push_back(std::to_string(epoch));
    for (char const* head : {"+-", "last 3"}) heads.emplace_back(head);
    Table table(heads);
    auto& summary = m_study.result()["summary"] = Json::array();
    for (auto const& row : rows) {
      std::vector<std::string> cells{std::to_string(row.devices),
                                     std::to_string(row.devices * m_settings.batch),
                                     row.rule,
                                     format("%g", row.scaled_lr),
                                     std::to_string(row.steps),
                                     format("%.0f", row.images_per_s),
                                     std::to_string(row.trained) + "/" + std::to_string(row.runs)};
      for (double mean : row.mean) cells.push_back(format("%.3f", mean));
      if (row.trained > 0)
        for (double value : {row.deviation.back(), row.last_three}) cells.push_back(format("%.3f", value));
      else
        cells.emplace_back("no run learned");
      table.row(cells);
      summary.push_back({{"devices", row.devices},
                         {"batch", row.devices * m_settings.batch},
                         {"lr", row.lr},
                         {"rule", row.rule},
                         {"scaled_lr", row.scaled_lr},
                         {"steps", row.steps},
                         {"images_per_s", row.images_per_s},
                         {"runs", row.runs},
                         {"trained", row.trained},
                         {"mean", row.mean},
                         {"deviation", row.deviation},
                         {"last_three", row.last_three}});
    }
    m_study.say("\ntest accuracy by epoch, mean of the runs that learned; +-: standard deviation of the last epoch\n");
    m_study.say(table.text());

    auto& best = m_study.result()["best"] = Json::array();
    for (std::int64_t k : m_settings.device_counts) {
      auto const at_k = [&](Row const& row) { return row.devices == k; };
      auto const top  = std::max_element(rows.begin(), rows.end(), [&](Row const& a, Row const& b) {
        return std::pair(at_k(a), a.rank()) < std::pair(at_k(b), b.rank());
      });
      m_study.say("best for k = %lld : %s\n", static_cast<long long>(k),
                  top->trained > 0 ? (top->rule + ", lr " + format("%g", top->scaled_lr)).c_str() : "none learned");
      best.push_back({{"devices", k}, {"rule", top->trained > 0 ? Json(top->rule) : Json()}, {"lr", top->lr}});
    }
    compare(rows);
  }

  // The shape of the book's and others' results, with the first learning rate.
  void compare(std::vector<Row> const& rows) {
    auto const find = [&](std::int64_t k, char const* rule) {
      auto const found = std::find_if(rows.begin(), rows.end(), [&](Row const& row) {
        return row.devices == k && row.rule == rule && row.lr == m_settings.learning_rates[0];
      });
      return found == rows.end() ? nullptr : &*found;
    };
    auto const* one = find(1, "any");
    for (std::int64_t k : m_settings.device_counts) {
      auto const *kept = find(k, "kept"), *linear = find(k, "linear");
      std::string const devices = "k = " + std::to_string(k) + ": ";
      if (one && kept && k > 1)
        m_study.order(devices + "a kept learning rate is less accurate than k = 1 after as many epochs",
                      kept->rank() < one->rank());
      if (kept && linear && k > 1)
        m_study.order(devices + "linear scaling is more accurate than a kept learning rate",
                      kept->rank() < linear->rank());
    }
  }

  Settings const& m_settings;
  Runtime const& m_runtime;
  Study m_study;
  TrainTest m_data;
  std::vector<Run> m_runs;
};

ExitCode run(Arguments const& arguments) {
  return run_study<Settings>(study_batch_command, arguments, [](Settings const& settings, Runtime const& runtime) {
    require_one_process(study_batch_command, runtime);
    return Batch(settings, runtime).execute();
  });
}

}  // namespace

Command const study_batch_command{"study batch", "accuracy when k devices take k times the images a step", run};

}  // namespace lockstep
