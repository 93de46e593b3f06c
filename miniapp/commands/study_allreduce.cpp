// SPDX-License-Identifier: Apache-2.0
// Why is an allreduce faster when different devices add different parts? This network's gradient, one call a tensor or
// all in one, by algorithms that give the parts to one device, to the owners of whole tensors, or to all evenly.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "comm/algorithms.hpp"
#include "comm/communicator.hpp"
#include "comm/cost.hpp"
#include "comm/probe.hpp"
#include "comm/prove.hpp"
#include "kernels/kokkos_compat.hpp"
#include "kernels/median.hpp"
#include "miniapp/commands/quantities.hpp"
#include "miniapp/commands/study.hpp"
#include "miniapp/network.hpp"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

struct Settings : StudyOptions {
  std::int64_t devices, samples;
  double alpha, rate;

  Settings() {
    add<std::int64_t>("devices,k", devices, 4, "devices per process");
    add<std::int64_t>("iters,n", samples, 50, 20, "timed samples");
    add("alpha", alpha, 2e-6, "of the predicted network: seconds a message");
    add("rate", rate, 16e9, "of the predicted network: bytes a second each way");
  }
  void check() const {
    StudyOptions::check();
    in_range("--devices", devices, 1, 256);
    in_range("--iters", samples, 1, 1000000);
    LOCKSTEP_THROW_IF(!(alpha >= 0 && alpha <= 1), ExitCode::usage,
                      "--alpha " + std::to_string(alpha) + "; expected 0 to 1 seconds");
    LOCKSTEP_THROW_IF(!(rate >= 1 && rate <= 1e15), ExitCode::usage,
                      "--rate " + std::to_string(rate) + "; expected 1 to 1e15 bytes a second");
  }
};

comm::NetworkModel network_of(double alpha, double bytes_per_second) {
  comm::NetworkModel model;
  model.link[comm::inside] = model.link[comm::between] = {alpha, 1 / bytes_per_second};
  return model;
}

// The naive sum with tensor t owned by device t mod k: every owner takes in one device's contribution after the
// other's, and copies the sum back; all owners at once. Chunks are as long as the greatest common divisor of the
// tensors' lengths, so that each tensor is a run of chunks.
comm::Schedule owners_schedule(Network const& network, int k) {
  std::int64_t unit = 0;
  for (auto const& tensor : network.tensors) unit = std::gcd(unit, tensor.count);
  comm::Schedule schedule;
  schedule.algorithm = "owners";
  schedule.ranks     = k;
  schedule.chunks    = std::int32_t(network.parameters / unit);
  schedule.steps     = k;
  for (int step = 0; step < k; ++step)
    for (std::size_t t = 0; t < network.tensors.size(); ++t) {
      auto const& tensor = network.tensors[t];
      int const owner    = int(t) % k;
      comm::Transfer transfer;
      transfer.step  = step;
      transfer.chunk = std::int32_t(tensor.offset / unit);
      transfer.count = std::int32_t(tensor.count / unit);
      if (step < k - 1) {
        transfer.action      = comm::Action::reduce;
        transfer.source      = (owner + step + 1) % k;
        transfer.destination = owner;
        schedule.transfers.push_back(transfer);
        continue;
      }
      transfer.source = owner;
      for (int shift = 1; shift < k; ++shift) {
        transfer.destination = (owner + shift) % k;
        schedule.transfers.push_back(transfer);
      }
    }
  return schedule;
}

struct Method {
  std::string algorithm;
  bool by_tensor;
  std::int64_t busiest = 0;                         // bytes sent or received, whichever is more
  double measured = 0, predicted = 0, network = 0;  // seconds a step
  std::string name() const { return algorithm + (by_tensor ? ", by tensor" : ", fused"); }
};

class Allreduce {
 public:
  Allreduce(Settings const& settings, Runtime const& runtime)
      : m_settings(settings),
        m_study(study_allreduce_command, settings, runtime),
        m_network(Network::chapter()),
        m_world(runtime.instances(int(settings.devices))),
        m_owners(owners_schedule(m_network, m_world.size())),
        m_owners_world(runtime.instances(int(settings.devices)), owners_options()),
        m_buffers(m_world.allocate<float>("lockstep::study::gradient", m_network.parameters)),
        m_probe(m_world, 4 * m_network.parameters) {}

  ExitCode execute() {
    int const k              = m_world.size();
    auto const proof         = comm::prove(m_owners, m_network.parameters);
    std::int64_t const bytes = 4 * m_network.parameters;
    m_study.say("gradient : %lld bytes in %d tensors, the largest %.0f %%\n", static_cast<long long>(bytes),
                int(m_network.tensors.size()), 100 * largest_share());
    m_study.describe(m_world);
    m_study.parameters().update({{"bytes", bytes},
                                 {"tensors", m_network.tensors.size()},
                                 {"alpha_s", m_settings.alpha},
                                 {"bytes_per_s", m_settings.rate}});
    m_study.equality("owners of whole tensors: every device ends with every contribution once (proof of the schedule)",
                     proof.correct || k == 1);
    std::vector<Method> methods;
    for (char const* algorithm : {"naive", "tree", "ring", "direct"})
      for (bool by_tensor : {true, false}) methods.push_back(measure({algorithm, by_tensor}));
    methods.insert(methods.begin() + 2, measure({"owners", false}));
    show(methods);
    if (k > 1) compare(methods);
    book();
    return m_study.finish();
  }

 private:
  comm::CommunicatorOptions owners_options() const {
    comm::CommunicatorOptions options;
    options.alter_schedule = [this](comm::Schedule& schedule) {
      if (schedule.algorithm == "naive") schedule = m_owners;
    };
    return options;
  }

  double largest_share() const {
    std::int64_t most = 0;
    for (auto const& tensor : m_network.tensors) most = std::max(most, tensor.count);
    return double(most) / double(m_network.parameters);
  }

  // The lengths of a step's calls.
  std::vector<std::pair<std::int64_t, std::int64_t>> parts(Method const& method) const {
    if (!method.by_tensor) return {{0, m_network.parameters}};
    std::vector<std::pair<std::int64_t, std::int64_t>> parts;
    for (auto const& tensor : m_network.tensors) parts.emplace_back(tensor.offset, tensor.offset + tensor.count);
    return parts;
  }

  Method measure(Method method) {
    bool const owners = method.algorithm == "owners";
    auto const model  = network_of(m_settings.alpha, m_settings.rate);
    std::vector<std::vector<Buffer<float>>> calls;
    for (auto const& [begin, end] : parts(method)) {
      comm::ScheduleRequest const request{m_world.size(), end - begin};
      auto const schedule = owners ? m_owners : comm::make_schedule(method.algorithm, request);
      auto const busiest  = comm::prove(schedule, end - begin).busiest;
      method.busiest += 4 * std::max(busiest.sent, busiest.received);
      method.network += comm::predict(schedule, request, 4, model).sum();
      std::int64_t const bytes = 4 * (end - begin);
      method.predicted += (m_probe.is_memory() ? comm::predict(schedule, request, 4, m_probe.memory(bytes))
                                               : comm::predict(schedule, request, 4, m_probe.network(bytes)))
                              .sum();
      calls.emplace_back();
      for (auto const& buffer : m_buffers)
        calls.back().push_back(Kokkos::subview(buffer, std::make_pair(std::size_t(begin), std::size_t(end))));
    }
    auto& world          = owners ? m_owners_world : m_world;
    auto const algorithm = owners ? "naive" : method.algorithm;
    auto const step      = [&] {
      for (auto const& buffers : calls) world.allreduce(algorithm, comm::Op::sum, buffers);
    };
    fill();
    step();
    m_study.equality(method.name() + ": every device has the exact sum of every element", is_sum());
    // Zeros stay zeros however often they are added.
    for (std::size_t local = 0; local < m_buffers.size(); ++local)
      Kokkos::deep_copy(m_world.instance(int(local)), m_buffers[local], 0.0f);
    for (int i = 0; i < 3; ++i) step();
    std::vector<double> samples;
    for (std::int64_t i = 0; i < m_settings.samples; ++i) samples.push_back(comm::time_together(m_world, 1, step));
    method.measured = median(samples);
    return method;
  }

  // Small whole numbers: their sums are exact in any order.
  static float value(int rank, std::int64_t i) { return float((i * 7 + rank * 13) % 101); }

  void fill() {
    for (std::size_t local = 0; local < m_buffers.size(); ++local) {
      std::vector<float> values;
      for (std::int64_t i = 0; i < m_network.parameters; ++i) values.push_back(value(m_world.rank(int(local)), i));
      Kokkos::View<float const*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>> const view(values.data(),
                                                                                                        values.size());
      Kokkos::deep_copy(m_world.instance(int(local)), m_buffers[local], view);
      fence(m_world.instance(int(local)), "lockstep::study::fill");
    }
  }

  bool is_sum() {
    double wrong = 0;
    for (std::size_t local = 0; local < m_buffers.size(); ++local) {
      std::vector<float> values(std::size_t(m_network.parameters));
      Kokkos::View<float*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>> const view(values.data(),
                                                                                                  values.size());
      Kokkos::deep_copy(m_world.instance(int(local)), view, m_buffers[local]);
      fence(m_world.instance(int(local)), "lockstep::study::is_sum");
      for (std::int64_t i = 0; i < m_network.parameters; ++i) {
        float sum = 0;
        for (int rank = 0; rank < m_world.size(); ++rank) sum += value(rank, i);
        wrong += values[std::size_t(i)] != sum;
      }
    }
    auto const all = m_world.gather(wrong);
    return std::accumulate(all.begin(), all.end(), 0.0) == 0;
  }

  void show(std::vector<Method> const& methods) {
    Table table({"algorithm", "calls", "busiest device", "measured", "predicted here", "predicted on the network"});
    auto& rows = m_study.result()["methods"] = Json::array();
    for (auto const& method : methods) {
      table.row({method.algorithm, std::to_string(parts(method).size()), bytes_text(double(method.busiest)),
                 seconds_text(method.measured), seconds_text(method.predicted), seconds_text(method.network)});
      rows.push_back({{"algorithm", method.algorithm},
                      {"calls", parts(method).size()},
                      {"busiest_bytes", method.busiest},
                      {"measured_s", method.measured},
                      {"predicted_s", method.predicted},
                      {"network_s", method.network}});
    }
    m_study.say(
        "\none step's gradient; busiest device: bytes that it sends, or receives if that is more; the network: "
        "%g s a message, %g GB/s each way\n",
        m_settings.alpha, m_settings.rate * 1e-9);
    m_study.say(table.text());
    if (m_world.processes() == 1)
      m_study.say(
          "NOTE: devices of one process take turns here: what counts is their work together, not the busiest\n");
  }

  void compare(std::vector<Method> const& methods) {
    auto const find = [&](std::string const& algorithm, bool by_tensor) {
      return *std::find_if(methods.begin(), methods.end(), [&](Method const& method) {
        return method.algorithm == algorithm && method.by_tensor == by_tensor;
      });
    };
    std::int64_t const k = m_world.size(), n = m_network.parameters;
    auto const naive = find("naive", false), owners = find("owners", false), ring = find("ring", false),
               direct = find("direct", false);
    m_study.equality("naive: device 0 takes in and gives out k - 1 gradients", naive.busiest == 4 * (k - 1) * n);
    // Chunks differ by one element, and there are 2 (k - 1) of them.
    m_study.equality("ring and direct: no device sends or receives more than 2 (k - 1) / k gradients, to the element",
                     std::max(ring.busiest, direct.busiest) <= 8 * (k - 1) * ((n + k - 1) / k));
    m_study.order("owners of whole tensors have less to move than the one device of naive",
                  owners.busiest < naive.busiest || k == 2);
    m_study.order("even parts have less to move than whole tensors", direct.busiest < owners.busiest || k == 2);
    m_study.order("on the network: naive, then owners, then direct",
                  (naive.network > owners.network && owners.network > direct.network) || k == 2);
    for (char const* algorithm : {"naive", "tree", "ring", "direct"}) {
      m_study.order(std::string("on the network: ") + algorithm + " is faster fused than by tensor",
                    find(algorithm, false).network < find(algorithm, true).network);
      m_study.order(std::string("measured: ") + algorithm + " is faster fused than by tensor",
                    find(algorithm, false).measured < find(algorithm, true).measured);
    }
  }

  // The worked figures of the book's chapters on several GPUs and on parameter servers, from the same model.
  void book() {
    struct Figure {
      char const* what;
      char const* algorithm;
      int ranks;
      double rate, book;  // bytes a second; seconds
      double tolerance;
    };
    Figure const figures[]     = {{"one GPU of 4 adds, PCIe", "naive", 4, 16e9, 60e-3, 1e-6},
                                  {"the CPU adds for 4 GPUs, PCIe", "naive", 5, 16e9, 80e-3, 1e-6},
                                  {"each of 4 GPUs adds a quarter, PCIe", "direct", 4, 16e9, 15e-3, 1e-6},
                                  {"ring of 8 GPUs, 3 NVLinks", "ring", 8, 54e9, 6e-3, 1e-3}};
    std::int64_t const weights = 40'000'000;
    Table table({"160 MB of gradients", "GB/s", "predicted", "the book"});
    auto& rows = m_study.result()["book"] = Json::array();
    for (auto const& f : figures) {
      double const predicted = comm::predict(f.algorithm, {f.ranks, weights}, 4, network_of(0, f.rate)).sum();
      table.row({f.what, format("%g", f.rate * 1e-9), seconds_text(predicted), seconds_text(f.book)});
      rows.push_back({{"what", f.what},
                      {"algorithm", f.algorithm},
                      {"devices", f.ranks},
                      {"bytes_per_s", f.rate},
                      {"predicted_s", predicted},
                      {"book_s", f.book}});
      m_study.equality(std::string("the book's figure: ") + f.what, std::abs(predicted - f.book) <= f.tolerance);
    }
    m_study.say("\n%s", table.text().c_str());
  }

  Settings const& m_settings;
  Study m_study;
  Network m_network;
  comm::Communicator m_world;
  comm::Schedule m_owners;
  comm::Communicator m_owners_world;  // naive stands for m_owners in it
  std::vector<Buffer<float>> m_buffers;
  comm::Probe m_probe;
};

ExitCode run(Arguments const& arguments) {
  return run_study<Settings>(study_allreduce_command, arguments, [](Settings const& settings, Runtime const& runtime) {
    return Allreduce(settings, runtime).execute();
  });
}

}  // namespace

Command const study_allreduce_command{"study allreduce", "why an allreduce is faster when all devices add parts", run};

}  // namespace lockstep
