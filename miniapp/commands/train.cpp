// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>

#include "comm/algorithms.hpp"
#include "comm/choose.hpp"
#include "comm/communicator.hpp"
#include "comm/device_runtime.hpp"
#include "miniapp/checkpoint.hpp"
#include "miniapp/commands/command.hpp"
#include "miniapp/commands/quantities.hpp"
#include "miniapp/profiler.hpp"
#include "miniapp/report.hpp"
#include "miniapp/runtime.hpp"
#include "miniapp/trainer.hpp"

namespace lockstep {
namespace {

namespace po = boost::program_options;
using Json   = nlohmann::ordered_json;

constexpr std::int64_t most = std::int64_t(1) << 31;

struct Settings {
  std::string table, save_table, data, lr_rule, weights, fuse, overlap, reduction, conv, json, trace, checkpoint,
      resume, save;
  std::int64_t every, devices, epochs, steps, train_images, test_images, threads, seed;
  double timeout;
  bool force = false, log_steps = false, timers = false;
  TrainerOptions trainer;
};

std::string joined(std::vector<std::string> const& names) {
  std::string text;
  for (auto const& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// One pass over shared memory and MPI_Allreduce need a world that has them; auto picks by length.
std::vector<std::string> allreduce_names() {
  auto names = comm::algorithm_names();
  for (char const* name : {"fused", "mpi", "nccl", "auto"}) names.emplace_back(name);
  return names;
}

po::options_description describe(Settings& settings) {
  auto& trainer = settings.trainer;
  po::options_description options("Options");
  auto add = options.add_options();
  add("data", po::value(&settings.data)->default_value("auto"),
      "auto, fashion-mnist, synthetic, or a folder with the four IDX files");
  add("devices,k", po::value(&settings.devices)->default_value(1), "devices per process");
  add("weights", po::value(&settings.weights),
      "speeds of the devices, a list in order of rank: faster ones get more of every batch (default: equal)");
  add("epochs", po::value(&settings.epochs)->default_value(10), "passes over the training images");
  add("steps", po::value(&settings.steps)->default_value(0), "stop after this many steps (0: after the epochs)");
  add("batch", po::value(&trainer.batch)->default_value(256), "images a step, of all devices together");
  auto& rate = trainer.learning_rate;
  add("lr", po::value(&rate.base)->default_value(0.2, "0.2"), "learning rate");
  add("lr-rule", po::value(&settings.lr_rule)->default_value("kept"),
      "kept: the learning rate of every batch; sqrt: times sqrt(batch / base batch); linear: times batch / base batch");
  add("base-batch", po::value(&rate.base_batch)->default_value(256), "the batch that --lr belongs to");
  add("warmup-epochs", po::value(&rate.warmup)->default_value(0),
      "epochs over which the learning rate grows from --lr to what the rule makes of it, every step");
  add("seed", po::value(&settings.seed)->default_value(1), "of the start weights and of the order of the images");
  add("allreduce", po::value(&trainer.allreduce)->default_value("ring"), joined(allreduce_names()).c_str());
  add("allreduce-table", po::value(&settings.table),
      "for --allreduce auto: read the table from this file (default: measure one at the start)");
  add("save-allreduce-table", po::value(&settings.save_table), "for --allreduce auto: write the table to this file");
  add("fuse", po::value(&settings.fuse)->default_value("on"),
      "on: one allreduce a step, or one a bucket; off: one a parameter tensor");
  add("bucket-bytes", po::value(&trainer.bucket_bytes)->default_value(0),
      "reduce the gradients in buckets of whole tensors of up to so many bytes, the last layers first (0: one bucket)");
  add("overlap", po::value(&settings.overlap)->default_value("off"),
      "on: reduce buckets while backward of earlier layers goes on");
  add("reduction", po::value(&settings.reduction)->default_value("exact"),
      "exact: the same bits for every number of devices; float: plain float32 sums");
  add("conv", po::value(&settings.conv)->default_value("direct"),
      "direct: this project's kernels; gemm: convolutions (im2col) and dense layers by Kokkos Kernels' matrix "
      "products");
  add("accumulate", po::value(&trainer.accumulate)->default_value(1), "micro-batches a step");
  add("graph", po::bool_switch(&trainer.graph),
      "on GPUs of one process: launch each full batch as one graph (a CUDA graph, or HIP's); the same bits");
  add("train-images", po::value(&settings.train_images)->default_value(0), "use the first N (0: all)");
  add("test-images", po::value(&settings.test_images)->default_value(0), "use the first N (0: all)");
  add("threads", po::value(&settings.threads)->default_value(0),
      "threads per process (0: OMP_NUM_THREADS, else the node's cores divided by its processes)");
  add("timeout", po::value(&settings.timeout)->default_value(60), "seconds after which a silent rank ends the job");
  add("checkpoint", po::value(&settings.checkpoint), "folder to write checkpoints to");
  add("every", po::value(&settings.every)->default_value(0), "steps between checkpoints (0: at the end of each epoch)");
  add("resume", po::value(&settings.resume),
      "continue from the latest checkpoint in this folder, or from this file; on any number of devices");
  add("save", po::value(&settings.save), "write the trained weights to this file (safetensors)");
  add("log-steps", po::bool_switch(&settings.log_steps), "record the loss of every step in the JSON record");
  add("timers", po::bool_switch(&settings.timers), "print where the time goes, and put it into the JSON record");
  add("trace", po::value(&settings.trace), "write a timeline to this file, for chrome://tracing or ui.perfetto.dev");
  add("json", po::value(&settings.json), "write a record to this file (-: standard output)");
  add("force", po::bool_switch(&settings.force), "replace existing files");
  return options;
}

void check(Settings& settings) {
  auto& trainer = settings.trainer;
  in_range("--devices", settings.devices, 1, 4096);
  if (!settings.weights.empty()) trainer.weights = parse_numbers("--weights", settings.weights, 0, 1e9);
  in_range("--epochs", settings.epochs, 0, most);
  in_range("--steps", settings.steps, 0, most);
  in_range("--batch", trainer.batch, 1, most);
  trainer.seed = std::uint64_t(in_range("--seed", settings.seed, 0, std::numeric_limits<std::int64_t>::max()));
  in_range("--accumulate", trainer.accumulate, 1, most);
  in_range("--train-images", settings.train_images, 0, most);
  in_range("--test-images", settings.test_images, 0, most);
  in_range("--threads", settings.threads, 0, most_threads);
  auto& rate = trainer.learning_rate;
  LOCKSTEP_THROW_IF(!std::isfinite(rate.base) || rate.base < 0, ExitCode::usage,
                    "--lr " + std::to_string(rate.base) + "; expected a finite number, 0 or more");
  rate.rule = parse_learning_rate_rule("--lr-rule", settings.lr_rule);
  in_range("--base-batch", rate.base_batch, 1, most);
  in_range("--warmup-epochs", rate.warmup, 0, most);
  LOCKSTEP_THROW_IF(rate.warmup > 0 && rate.rule == LearningRate::Rule::kept, ExitCode::usage,
                    "--warmup-epochs " + std::to_string(rate.warmup) +
                        " with --lr-rule kept; expected sqrt or linear, which give the ramp its end");
  LOCKSTEP_THROW_IF(!(settings.timeout > 0 && settings.timeout <= 86400), ExitCode::usage,
                    "--timeout " + std::to_string(settings.timeout) + "; expected more than 0, up to 86400 seconds");
  auto const names = allreduce_names();
  LOCKSTEP_THROW_IF(std::find(names.begin(), names.end(), trainer.allreduce) == names.end(), ExitCode::usage,
                    "--allreduce " + trainer.allreduce + "; expected one of " + joined(names));
  LOCKSTEP_THROW_IF(settings.reduction != "exact" && settings.reduction != "float", ExitCode::usage,
                    "--reduction " + settings.reduction + "; expected exact or float");
  trainer.reduction = settings.reduction == "exact" ? Reduction::exact : Reduction::plain;
  LOCKSTEP_THROW_IF(settings.conv != "direct" && settings.conv != "gemm", ExitCode::usage,
                    "--conv " + settings.conv + "; expected direct or gemm");
  trainer.conv = settings.conv == "gemm" ? Conv::gemm : Conv::direct;
  in_range("--bucket-bytes", trainer.bucket_bytes, 0, std::numeric_limits<std::int64_t>::max());
  if (!is_on("--fuse", settings.fuse)) {
    LOCKSTEP_THROW_IF(trainer.bucket_bytes > 0, ExitCode::usage,
                      "--fuse off with --bucket-bytes " + std::to_string(trainer.bucket_bytes) +
                          "; expected one of them (--fuse off is a bucket a tensor)");
    trainer.bucket_bytes = 1;
  }
  trainer.overlap = is_on("--overlap", settings.overlap);
  LOCKSTEP_THROW_IF(trainer.overlap && trainer.conv == Conv::gemm, ExitCode::usage,
                    "--overlap on with --conv gemm; expected --conv direct, which goes back in segments");
  LOCKSTEP_THROW_IF(
      trainer.graph && !device_calls(), ExitCode::usage,
      std::string("--graph in a program whose devices are ") + Space::name() + "; expected one built for CUDA or HIP");
  LOCKSTEP_THROW_IF(trainer.graph && trainer.overlap, ExitCode::usage,
                    "--graph with --overlap on; expected --overlap off");
  LOCKSTEP_THROW_IF(trainer.graph && (settings.timers || !settings.trace.empty()), ExitCode::usage,
                    std::string("--graph with ") + (settings.timers ? "--timers" : "--trace") +
                        "; expected one of them: a graph's kernels are not heard");
  in_range("--every", settings.every, 0, most);
  LOCKSTEP_THROW_IF(
      settings.every > 0 && settings.checkpoint.empty(), ExitCode::usage,
      "--every " + std::to_string(settings.every) + " without --checkpoint; expected a folder to write to");
  for (auto const& [option, file] :
       {std::pair("--save", settings.save), std::pair("--save-allreduce-table", settings.save_table)})
    LOCKSTEP_THROW_IF(file == "-", ExitCode::usage, std::string(option) + " -; expected a file");
  for (auto const& [option, file] :
       {std::pair("--allreduce-table ", settings.table), std::pair("--save-allreduce-table ", settings.save_table)})
    LOCKSTEP_THROW_IF(!file.empty() && trainer.allreduce != "auto", ExitCode::usage,
                      option + file + " with --allreduce " + trainer.allreduce + "; expected --allreduce auto");
}

class Clock {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - m_start).count(); }

 private:
  std::chrono::steady_clock::time_point m_start = std::chrono::steady_clock::now();
};

class Run {
 public:
  Run(Settings const& settings, Runtime const& runtime)
      : m_settings(settings),
        m_runtime(runtime),
        m_out(settings.json == "-" || settings.trace == "-" ? stderr : stdout),
        m_data(load_dataset(settings.data, settings.train_images, settings.test_images)),
        m_communicator(runtime.instances(int(settings.devices)), communicator_options(settings)),
        m_trainer(with_table(m_communicator, settings), Network::chapter(), m_data.train, m_data.test,
                  settings.trainer),
        m_record(new_record("train", runtime)) {}

  ExitCode execute() {
    print_header();
    if (!m_settings.checkpoint.empty() && m_runtime.is_root())
      prepare_checkpoint_folder(m_settings.checkpoint, m_settings.resume);
    if (!m_settings.resume.empty()) resume();
    m_first_step = m_trainer.step();
    say("epoch  train loss  test accuracy          seconds  images/s  communication  exposed\n");
    if (m_settings.timers || !m_settings.trace.empty()) {
      m_communicator.barrier();
      m_profiler = std::make_unique<Profiler>(!m_settings.trace.empty());
    }
    while (!done()) epoch();
    return finish();
  }

 private:
  static comm::CommunicatorOptions communicator_options(Settings const& settings) {
    comm::CommunicatorOptions options;
    options.timeout = std::chrono::duration<double>(settings.timeout);
    return options;
  }

  static comm::Communicator& with_table(comm::Communicator& world, Settings const& settings) {
    if (settings.trainer.allreduce != "auto") return world;
    std::int64_t const longest = 8 * (Network::chapter().parameters + 1);
    auto const table =
        settings.table.empty() ? comm::measure_choices(world, longest) : comm::read_choices(settings.table);
    world.set_choices(table);
    if (world.process() == 0) write_text(settings.save_table, comm::as_text(table));
    return world;
  }

  template <class... Values>
  void say(char const* format, Values... values) const {
    if (!m_runtime.is_root()) return;
    std::fprintf(m_out, format, values...);
    std::fflush(m_out);
  }

  std::int64_t last_step() const {
    std::int64_t const by_epochs = m_settings.epochs * m_trainer.steps_per_epoch();
    return m_settings.steps > 0 ? std::min(m_settings.steps, by_epochs) : by_epochs;
  }
  bool done() const { return !m_failure.empty() || m_trainer.step() >= last_step(); }

  void print_header() {
    auto const& trainer = m_settings.trainer;
    std::string buckets;
    Json bucket_list = Json::array();
    for (Bucket const& bucket : m_trainer.buckets()) {
      std::string const tensors = describe(bucket, m_trainer.network());
      std::int64_t const bytes  = bucket.elements.size() * std::int64_t(sizeof(float));
      buckets += (buckets.empty() ? "" : "; ") + tensors + " (" + std::to_string(bytes) + " bytes)";
      bucket_list.push_back({{"tensors", tensors}, {"bytes", bytes}});
    }
    std::vector<Fact> facts = build_facts();
    for (auto const& fact : environment_facts(m_runtime)) facts.push_back(fact);
    auto const add = [&](char const* key, std::string const& value) { facts.push_back({key, value}); };
    add("data", m_data.name + " (" + m_data.source + "), " + std::to_string(m_data.train.count) + " + " +
                    std::to_string(m_data.test.count) + " images");
    add("data sha256", m_data.train.sha256 + " " + m_data.test.sha256);
    add("network", std::to_string(m_trainer.network().parameters) + " parameters in " +
                       std::to_string(m_trainer.network().tensors.size()) + " tensors");
    add("devices", std::to_string(m_communicator.size()) + " (" + std::to_string(m_communicator.processes()) +
                       " processes x " + std::to_string(m_communicator.local_size()) + ")");
    add("transport",
        m_communicator.transport() + (m_communicator.notes().empty() ? "" : "; ") + m_communicator.notes());
    add("allreduce", trainer.allreduce);
    add("buckets", buckets + (m_trainer.overlaps() ? "; overlap with backward" : ""));
    if (trainer.graph) add("graph", "full batches are launched as one, from the second on");
    add("reduction", m_settings.reduction + ": sum over the minibatch's images, divided once by their number");
    add("conv", m_settings.conv);
    add("batch",
        std::to_string(trainer.batch) + ", " + std::to_string(m_trainer.steps_per_epoch()) + " steps an epoch");
    add("learning rate", trainer.learning_rate.text());
    add("seed", std::to_string(trainer.seed));
    for (auto const& [key, value] : facts) say("%s : %s\n", key.c_str(), value.c_str());
    if (!m_data.notice.empty()) say("NOTE: %s\n", m_data.notice.c_str());
    if (!m_trainer.overlap_notice().empty()) say("NOTE: overlap is off: %s\n", m_trainer.overlap_notice().c_str());
    if (m_communicator.local_size() > 1 && Kokkos::SpaceAccessibility<Kokkos::HostSpace, Memory>::accessible)
      say("NOTE: on this back end the devices of a process share its cores; speed-up comes from processes\n");

    m_record["parameters"]       = {{"data", m_data.name},
                                    {"data_source", m_data.source},
                                    {"train_images", m_data.train.count},
                                    {"test_images", m_data.test.count},
                                    {"train_sha256", m_data.train.sha256},
                                    {"test_sha256", m_data.test.sha256},
                                    {"processes", m_communicator.processes()},
                                    {"devices_per_process", m_communicator.local_size()},
                                    {"devices", m_communicator.size()},
                                    {"weights", trainer.weights},
                                    {"epochs", m_settings.epochs},
                                    {"steps", m_settings.steps},
                                    {"batch", trainer.batch},
                                    {"steps_per_epoch", m_trainer.steps_per_epoch()},
                                    {"learning_rate", trainer.learning_rate.base},
                                    {"lr_rule", name(trainer.learning_rate.rule)},
                                    {"base_batch", trainer.learning_rate.base_batch},
                                    {"warmup_epochs", trainer.learning_rate.warmup},
                                    {"seed", trainer.seed},
                                    {"allreduce", trainer.allreduce},
                                    {"fuse", m_settings.fuse == "on"},
                                    {"bucket_bytes", trainer.bucket_bytes},
                                    {"buckets", bucket_list},
                                    {"overlap", m_trainer.overlaps()},
                                    {"reduction", m_settings.reduction},
                                    {"conv", m_settings.conv},
                                    {"accumulate", trainer.accumulate},
                                    {"graph", trainer.graph}};
    m_record["result"]["epochs"] = Json::array();
  }

  // What must be equal for a checkpoint to be continued to the same bits.
  std::vector<RunSetting> run_settings() const {
    auto const& trainer = m_settings.trainer;
    return {{"seed", std::to_string(trainer.seed)},
            {"batch", std::to_string(trainer.batch)},
            {"learning_rate", trainer.learning_rate.text()},
            {"reduction", m_settings.reduction},
            {"conv", m_settings.conv},
            {"train_images", std::to_string(m_data.train.count)},
            {"data_sha256", m_data.train.sha256}};
  }

  // One process reads; the others need not see the file.
  void resume() {
    Checkpoint checkpoint;
    if (m_runtime.is_root()) checkpoint = load_checkpoint(m_settings.resume, m_trainer.network(), run_settings());
    auto const step = std::int64_t(m_communicator.gather(std::uint64_t(checkpoint.state.step))[0]);
    m_epoch_loss    = m_communicator.gather(checkpoint.state.epoch_loss)[0];
    LOCKSTEP_THROW_IF(step > last_step(), ExitCode::usage,
                      "--resume " + m_settings.resume + ": found step " + std::to_string(step) + ", expected at most " +
                          std::to_string(last_step()) + ", where this run ends");
    m_trainer.restore(checkpoint.state.parameters, step);
    say("resumed : step %lld, from %s\n", static_cast<long long>(step), checkpoint.path.c_str());
    m_record["result"]["resumed_at_step"] = step;
  }

  void write_checkpoint() {
    if (m_runtime.is_root())
      save_checkpoint(m_settings.checkpoint, m_trainer.network(), run_settings(),
                      {m_trainer.step(), m_epoch_loss, m_trainer.parameters()});
  }

  // What the last update made of the parameters: a step looks at its gradients alone.
  void note_parameters() {
    auto const parameters = m_trainer.parameters();
    bool const finite =
        std::all_of(parameters.begin(), parameters.end(), [](float value) { return std::isfinite(value); });
    auto const everywhere = m_communicator.gather(std::uint64_t(finite));  // replicas may differ
    if (std::count(everywhere.begin(), everywhere.end(), 0) > 0)
      m_failure = "step " + std::to_string(m_trainer.step()) + ": the parameters are not finite";
  }

  bool checkpoint_is_due() const {
    if (m_settings.checkpoint.empty()) return false;
    std::int64_t const every = m_settings.every > 0 ? m_settings.every : m_trainer.steps_per_epoch();
    return done() || m_trainer.step() % every == 0;
  }

  // Up to the end of the epoch, or to the last step.
  void epoch() {
    std::int64_t const per_epoch = m_trainer.steps_per_epoch(), number = m_trainer.step() / per_epoch + 1;
    bool const progress  = m_runtime.is_root() && isatty(STDERR_FILENO);
    double communication = 0, exposed = 0;
    std::int64_t images = 0;
    if (m_trainer.step() % per_epoch == 0) m_epoch_loss = 0;
    Clock const clock;
    while (!done() && m_trainer.step() < number * per_epoch) {
      StepResult step;
      try {
        step = m_trainer.advance();
      } catch (NotFinite const& error) {
        m_failure = error.what();
        break;
      }
      m_epoch_loss += step.loss * double(step.images);
      images += step.images;
      communication += step.communication;
      exposed += step.exposed;
      if (checkpoint_is_due() || done()) note_parameters();
      if (checkpoint_is_due() && m_failure.empty()) write_checkpoint();
      if (m_settings.log_steps) m_step_losses.push_back(step.loss);
      if (progress)
        std::fprintf(stderr, "\repoch %lld: step %lld/%lld, loss %.4f ", static_cast<long long>(number),
                     static_cast<long long>((step.step - 1) % per_epoch + 1), static_cast<long long>(per_epoch),
                     step.loss);
    }
    double const seconds = slowest(clock.seconds());
    if (progress) std::fprintf(stderr, "\r\033[K");
    if (images == 0) return;

    m_correct             = m_trainer.count_correct();
    double const accuracy = share(m_correct, m_data.test.count), rate = double(images) / seconds;
    double const loss = m_epoch_loss / double(images_done(per_epoch));
    // Of the last step, which a ramp has brought farthest.
    double const learning_rate =
        m_settings.trainer.learning_rate.at(m_trainer.step() - 1, m_settings.trainer.batch, per_epoch);
    m_images += images;
    m_seconds += seconds;
    m_communication += communication;
    m_exposed += exposed;
    say("%5lld  %10.4f  %8.4f (%5lld/%lld)  %7.2f  %8.0f  %11.1f %%  %5.1f %%\n", static_cast<long long>(number), loss,
        accuracy, static_cast<long long>(m_correct), static_cast<long long>(m_data.test.count), seconds, rate,
        100 * communication / seconds, 100 * exposed / seconds);
    m_record["result"]["epochs"].push_back({{"epoch", number},
                                            {"train_loss", loss},
                                            {"test_correct", m_correct},
                                            {"test_accuracy", accuracy},
                                            {"seconds", seconds},
                                            {"images_per_s", rate},
                                            {"learning_rate", learning_rate},
                                            {"communication_share", communication / seconds},
                                            {"communication", communication_times(communication, exposed)}});
  }

  // Of the root's process.
  static Json communication_times(double seconds, double exposed) {
    return {{"seconds", seconds}, {"hidden_seconds", seconds - exposed}, {"exposed_seconds", exposed}};
  }

  // Of the epoch that the last step lies in, steps before a resume included.
  std::int64_t images_done(std::int64_t per_epoch) const {
    std::int64_t const steps = (m_trainer.step() - 1) % per_epoch + 1;
    return std::min(steps * m_settings.trainer.batch, m_data.train.count);
  }

  double slowest(double seconds) {
    auto const all = m_communicator.gather(seconds);
    return *std::max_element(all.begin(), all.end());
  }

  static double share(std::int64_t correct, std::int64_t count) {
    return count > 0 ? double(correct) / double(count) : 0;
  }

  ExitCode finish() {
    m_correct                = m_trainer.count_correct();
    std::int64_t const alone = m_trainer.count_correct_alone();
    auto const& divergence   = m_trainer.divergence();
    bool const counts_equal  = m_correct == alone;
    bool const passed        = m_failure.empty() && counts_equal && !divergence.found;
    double const rate        = m_seconds > 0 ? double(m_images) / m_seconds : 0;
    std::string const hash   = m_trainer.parameters_sha256();

    std::string verdict = m_failure.empty() ? "" : m_failure + "; ";
    verdict += divergence.found ? "replicas differ first at step " + std::to_string(divergence.step) + " in " +
                                      divergence.tensor + " on ranks " + divergence.ranks
                                : std::to_string(m_communicator.size()) + " replicas equal at every one of " +
                                      std::to_string(m_trainer.step() - m_first_step) + " steps";
    verdict += "; test count " + std::to_string(m_correct) + (counts_equal ? " equal to" : " DIFFERS FROM") +
               " one device's " + std::to_string(alone);
    if (m_settings.timers) report_timers();
    say("parameters sha256 : %s\n", hash.c_str());
    say("communication : %.3f s, of which %.3f s hidden behind compute and %.3f s exposed\n", m_communication,
        m_communication - m_exposed, m_exposed);
    say("FOM: %.1f images/s\n", rate);
    say("VERIFICATION: %s (%s)\n", passed ? "PASSED" : "FAILED", verdict.c_str());

    auto& result                = m_record["result"];
    result["steps"]             = m_trainer.step();
    result["parameters_sha256"] = hash;
    result["test_correct"]      = m_correct;
    result["test_count"]        = m_data.test.count;
    result["test_accuracy"]     = share(m_correct, m_data.test.count);
    result["communication"]     = communication_times(m_communication, m_exposed);
    if (m_settings.log_steps) result["step_losses"] = m_step_losses;
    m_record["fom"]          = {{"value", rate}, {"unit", "images/s"}};
    m_record["verification"] = {
        {"passed", passed}, {"replicas_equal", !divergence.found}, {"counts_equal", counts_equal}, {"detail", verdict}};
    if (!m_settings.trace.empty()) write_timeline();
    if (m_runtime.is_root() && !m_settings.save.empty() && m_failure.empty())
      save_weights(m_settings.save, m_trainer.network(), m_trainer.parameters());
    if (m_runtime.is_root()) write_json(m_settings.json, m_record);
    return passed ? ExitCode::success : ExitCode::wrong_result;
  }

  void report_timers() {
    auto const timers = m_profiler->timers();
    say("where the time of process 0 went:\n%s", as_table(timers).c_str());
    say("kernel launches a step : %.1f\n", launches_of(timers, "lockstep::trainer::step"));
    m_record["timers"] = as_json(timers);
  }

  void write_timeline() {
    auto const timeline = m_profiler->timeline(m_communicator);
    if (m_runtime.is_root()) write_json(m_settings.trace, timeline);
  }

  Settings const& m_settings;
  Runtime const& m_runtime;
  std::FILE* m_out;
  TrainTest m_data;
  comm::Communicator m_communicator;
  Trainer m_trainer;
  Json m_record;
  std::unique_ptr<Profiler> m_profiler;
  std::vector<double> m_step_losses;
  std::string m_failure;          // what ended training before its last step
  std::int64_t m_first_step = 0;  // steps done when it began
  std::int64_t m_correct = 0, m_images = 0;
  double m_communication = 0, m_exposed = 0;  // seconds, in all steps
  double m_seconds = 0, m_epoch_loss = 0;     // m_epoch_loss: sum over the epoch's images so far
};

ExitCode run(Arguments const& arguments) {
  Settings settings;
  po::variables_map values;
  if (!parse(train_command, describe(settings), arguments, values)) return ExitCode::success;
  check(settings);
  return with_runtime(
      int(settings.threads),
      [&](Runtime const& runtime) {
        if (runtime.is_root())
          check_targets({{"--json", settings.json},
                         {"--trace", settings.trace},
                         {"--save", settings.save},
                         {"--save-allreduce-table", settings.save_table}},
                        settings.force);
        return Run(settings, runtime).execute();
      },
      settings.timeout);
}

}  // namespace

Command const train_command{"train", "train the network on k devices and check them against each other", run};

}  // namespace lockstep
