// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "comm/algorithms.hpp"
#include "comm/transports/plan.hpp"
#include "comm/transports/reduce.hpp"
#include "comm/transports/world.hpp"
#include "kernels/error.hpp"
#include "kernels/kokkos_compat.hpp"

namespace lockstep::comm {
namespace {

constexpr bool host_accessible = Kokkos::SpaceAccessibility<Kokkos::HostSpace, Memory>::accessible;

// A call as ranks must agree on it, and what was worked out for it once.
struct Shape {
  std::string algorithm;
  Op op              = Op::sum;
  Type type          = Type::float32;
  std::int64_t count = 0;
  std::string label;
  std::uint64_t signature = 0;
  Plan plan;
};

Schedule broadcast_schedule(int ranks) {
  Schedule schedule;
  schedule.algorithm = "broadcast";
  schedule.ranks     = ranks;
  for (int holders = 1; holders < ranks; holders *= 2) {
    for (int r = 0; r < holders && r + holders < ranks; ++r) {
      Transfer transfer;
      transfer.step        = schedule.steps;
      transfer.source      = r;
      transfer.destination = r + holders;
      schedule.transfers.push_back(transfer);
    }
    ++schedule.steps;
  }
  return schedule;
}

}  // namespace

struct Communicator::Impl {
  Impl(std::vector<Space> instances, CommunicatorOptions const& given)
      : options(given), spaces(std::move(instances)), world(given, int(spaces.size())) {
    placement.process    = world.process();
    placement.processes  = world.processes();
    placement.local_size = int(spaces.size());
    placement.readable.assign(std::size_t(world.processes()), false);
    placement.readable[std::size_t(world.process())] = true;
    scratch.resize(spaces.size());
    staging.resize(spaces.size());
    data.resize(spaces.size());
  }

  int size() const { return placement.processes * placement.local_size; }

  // Kernels of one device read other devices' memory, so all must have got here. Host spaces always have.
  void fence_all() const {
    if constexpr (!runs_on_host)
      for (auto const& space : spaces) lockstep::fence(space, "lockstep::comm::step");
  }

  Shape& shape_of(std::string_view algorithm, Op op, Type type, std::int64_t count) {
    for (auto& known : shapes)
      if (known->count == count && known->type == type && known->op == op && known->algorithm == algorithm) {
        if (options.check_every_call) agree(*known);
        return *known;
      }
    auto shape              = std::make_unique<Shape>();
    shape->algorithm        = algorithm;
    shape->op               = op;
    shape->type             = type;
    shape->count            = count;
    bool const is_broadcast = algorithm == "broadcast";
    shape->label = (is_broadcast ? "broadcast" : std::string("allreduce ") + shape->algorithm + " " + name_of(op)) +
                   " " + name_of(type) + "[" + std::to_string(count) + "]";
    Schedule schedule;
    if (is_broadcast)
      schedule = broadcast_schedule(size());
    else
      schedule = make_schedule(algorithm, {size(), count, world.processes_per_node() * placement.local_size});
    if (options.alter_schedule && !is_broadcast) options.alter_schedule(schedule);
    shape->signature = hash_bytes(shape->label.data(), shape->label.size(), schedule.hash());
    agree(*shape);
    shape->plan = make_plan(schedule, count, placement);
    for (std::size_t d = 0; d < spaces.size(); ++d) {
      grow(spaces[d], scratch[d], shape->plan.scratch * size_of(type), "lockstep::comm::scratch");
      grow(spaces[d], staging[d], shape->plan.staging[d] * size_of(type), "lockstep::comm::staging");
    }
    if (stages_messages() && std::int64_t(host.extent(0)) < shape->plan.messages * size_of(type))
      host = HostBuffer<char>(Kokkos::view_alloc(Kokkos::WithoutInitializing, "lockstep::comm::host"),
                              std::size_t(shape->plan.messages * size_of(type)));
    shapes.push_back(std::move(shape));
    return *shapes.back();
  }

  static void grow(Space const& space, Buffer<char>& buffer, std::int64_t bytes, char const* label) {
    if (std::int64_t(buffer.extent(0)) >= bytes) return;
    buffer = Buffer<char>();
    buffer =
        Buffer<char>(Kokkos::view_alloc(space, Kokkos::WithoutInitializing, std::string(label)), std::size_t(bytes));
  }

  void agree(Shape const& shape) {
    World::Statement mine{shape.signature, {}};
    std::snprintf(mine.text, sizeof mine.text, "%s", shape.label.c_str());
    world.agree("call " + std::to_string(world.call() + 1), mine);
  }

  bool stages_messages() const { return placement.processes > 1 && (options.host_staging || !host_accessible); }

  char* at(int rank, Slot slot, std::int64_t element, std::int64_t item) const {
    auto const d = std::size_t(rank % placement.local_size);
    return (slot == Slot::data ? data[d] : scratch[d].data()) + element * item;
  }

  // data[d] is set.
  void execute(Shape const& shape) {
    auto const& plan        = shape.plan;
    std::int64_t const item = size_of(shape.type);
    auto const space_of     = [&](Move const& move) -> Space const& {
      return spaces[std::size_t(move.destination % placement.local_size)];
    };
    auto const staged = [&](Move const& move) {
      return staging[std::size_t(move.destination % placement.local_size)].data() + move.staging * item;
    };
    auto const source      = [&](Move const& move) { return at(move.source, move.source_slot, move.source_at, item); };
    auto const destination = [&](Move const& move) {
      return at(move.destination, move.destination_slot, move.destination_at, item);
    };
    auto const apply = [&](Move const& move, char const* from) {
      if (move.reduce)
        reduce(space_of(move), shape.type, shape.op, destination(move), from, move.count);
      else
        copy(space_of(move), destination(move), from, move.count * item);
    };

    for (std::size_t s = 0; s < plan.steps.size(); ++s) {
      auto const& step = plan.steps[s];
      world.at_step(std::int64_t(s));
      fence_all();
#ifdef LOCKSTEP_HAVE_MPI
      post_messages(step, item, source, destination, staged);
#endif
      for (Move const& move : step.pulls)
        if (move.staging >= 0) copy(space_of(move), staged(move), source(move), move.count * item);
      for (Move const& move : step.pulls)
        if (move.staging < 0) apply(move, source(move));
      fence_all();
#ifdef LOCKSTEP_HAVE_MPI
      for (std::size_t i = 0; i < step.receives.size(); ++i) {
        Move const& move = step.receives[i];
        wait_for(receives[i], placement.process_of(move.source));
        if (receives[i].host)
          copy_from_host(space_of(move), move.staging >= 0 ? staged(move) : destination(move), receives[i].host,
                         move.count * item);
        if (move.staging >= 0 && !move.late) apply(move, staged(move));
      }
      for (std::size_t i = 0; i < step.sends.size(); ++i)
        wait_for(sends[i], placement.process_of(step.sends[i].destination));
#endif
      for (auto const* moves : {&step.pulls, &step.receives})
        for (Move const& move : *moves)
          if (move.late) apply(move, staged(move));
    }
    fence_all();
    traffic.bytes_sent += plan.elements_sent * item;
    traffic.messages_sent += plan.messages_sent;
    traffic.bytes_reduced += plan.elements_reduced * item;
  }

#ifdef LOCKSTEP_HAVE_MPI
  struct Message {  // in pieces that MPI's int counts can hold
    std::size_t first = 0, pieces = 0;
    char* host = nullptr;  // where it passes through host memory
  };

  template <class Source, class Destination, class Staged>
  void post_messages(PlanStep const& step, std::int64_t item, Source const& source, Destination const& destination,
                     Staged const& staged) {
    if (step.sends.empty() && step.receives.empty()) return;
    requests.clear();
    sends.clear();
    receives.clear();
    std::int64_t host_used = 0;
    auto const host_for    = [&](Move const& move) -> char* {
      if (!stages_messages()) return nullptr;
      char* const place = host.data() + host_used;
      host_used += move.count * item;
      return place;
    };
    int const tag   = int(world.call() & 0x7fff);
    auto const post = [&](char* memory, std::int64_t bytes, int peer, bool receive) {
      Message message{requests.size(), 0, nullptr};
      for (std::int64_t done = 0; done < bytes; ++message.pieces) {
        int const piece     = int(std::min(bytes - done, options.max_message_bytes));
        MPI_Request request = MPI_REQUEST_NULL;
        if (receive)
          world.check(MPI_Irecv(memory + done, piece, MPI_BYTE, peer, tag, world.comm(), &request), "MPI_Irecv");
        else
          world.check(MPI_Isend(memory + done, piece, MPI_BYTE, peer, tag, world.comm(), &request), "MPI_Isend");
        requests.push_back(request);
        done += piece;
      }
      return message;
    };
    for (Move const& move : step.receives) {
      char* const passing = host_for(move);
      receives.push_back(post(passing             ? passing
                              : move.staging >= 0 ? staged(move)
                                                  : destination(move),
                              move.count * item, placement.process_of(move.source), true));
      receives.back().host = passing;
    }
    for (Move const& move : step.sends) {
      char* memory = source(move);
      if (char* const passing = host_for(move)) {
        auto const& space = spaces[std::size_t(move.source % placement.local_size)];
        Kokkos::deep_copy(space, HostBytes(passing, std::size_t(move.count * item)),
                          DeviceBytes(memory, std::size_t(move.count * item)));
        lockstep::fence(space, "lockstep::comm::before_send");
        memory = passing;
      }
      sends.push_back(post(memory, move.count * item, placement.process_of(move.destination), false));
    }
  }

  void wait_for(Message const& message, int peer) {
    world.wait(
        [&] {
          int done = 0;
          world.check(MPI_Testall(int(message.pieces), requests.data() + message.first, &done, MPI_STATUSES_IGNORE),
                      "MPI_Testall");
          return done != 0;
        },
        peer);
  }

  void copy_from_host(Space const& space, char* to, char* from, std::int64_t bytes) {
    Kokkos::deep_copy(space, DeviceBytes(to, std::size_t(bytes)), HostBytes(from, std::size_t(bytes)));
  }

  using HostBytes   = Kokkos::View<char*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>;
  using DeviceBytes = Kokkos::View<char*, Memory, Kokkos::MemoryUnmanaged>;
  std::vector<MPI_Request> requests;
  std::vector<Message> sends, receives;
#endif

  CommunicatorOptions options;
  std::vector<Space> spaces;
  World world;
  Placement placement;
  std::vector<std::unique_ptr<Shape>> shapes;
  std::vector<Buffer<char>> scratch, staging;  // by local device
  HostBuffer<char> host;                       // messages on their way, where MPI cannot read device memory
  std::vector<char*> data;                     // of the call in progress, by local device
  Traffic traffic;
  double seconds = 0;
};

Communicator::Communicator(std::vector<Space> instances, CommunicatorOptions const& options) {
  LOCKSTEP_THROW_IF(instances.empty(), ExitCode::usage, "a communicator of 0 devices; expected 1 or more");
  LOCKSTEP_THROW_IF(
      options.max_message_bytes < 1 || options.max_message_bytes > INT32_MAX, ExitCode::usage,
      "messages of at most " + std::to_string(options.max_message_bytes) + " bytes; expected 1 to 2^31 - 1");
  m_impl = std::make_unique<Impl>(std::move(instances), options);
}
Communicator::~Communicator()                       = default;
Communicator::Communicator(Communicator&&) noexcept = default;

int Communicator::size() const {
  return m_impl->size();
}
int Communicator::processes() const {
  return m_impl->placement.processes;
}
int Communicator::process() const {
  return m_impl->placement.process;
}
int Communicator::local_size() const {
  return m_impl->placement.local_size;
}
Space const& Communicator::instance(int local) const {
  return m_impl->spaces[std::size_t(local)];
}
int Communicator::ranks_per_node() const {
  return m_impl->world.processes_per_node() * local_size();
}

std::vector<std::string> Communicator::algorithms() const {
  return algorithm_names();
}
std::string Communicator::transport() const {
  return processes() == 1 ? "in-process" : "messages";
}

namespace {

template <class T>
std::int64_t common_length(std::vector<Buffer<T>> const& buffers, int local_size) {
  LOCKSTEP_THROW_IF(int(buffers.size()) != local_size, ExitCode::usage,
                    std::to_string(buffers.size()) + " buffers given; expected one for each of " +
                        std::to_string(local_size) + " devices");
  for (auto const& buffer : buffers)
    LOCKSTEP_THROW_IF(buffer.extent(0) != buffers[0].extent(0), ExitCode::usage,
                      "a buffer of " + std::to_string(buffer.extent(0)) + " elements; expected " +
                          std::to_string(buffers[0].extent(0)) + " as on this process's first device");
  return std::int64_t(buffers[0].extent(0));
}

class Stopwatch {
 public:
  explicit Stopwatch(double& total) : m_total(total), m_start(std::chrono::steady_clock::now()) {}
  ~Stopwatch() { m_total += std::chrono::duration<double>(std::chrono::steady_clock::now() - m_start).count(); }

 private:
  double& m_total;
  std::chrono::steady_clock::time_point m_start;
};

}  // namespace

template <class T>
void Communicator::allreduce(std::string_view algorithm, Op op, std::vector<Buffer<T>> const& buffers) {
  allreduce(algorithm, op, buffers, buffers);
}

template <class T>
void Communicator::allreduce(std::string_view algorithm, Op op, std::vector<Buffer<T>> const& inputs,
                             std::vector<Buffer<T>> const& outputs) {
  auto& impl = *m_impl;
  Stopwatch const watch(impl.seconds);
  std::int64_t const count = common_length(inputs, local_size());
  LOCKSTEP_THROW_IF(common_length(outputs, local_size()) != count, ExitCode::usage,
                    "an output of " + std::to_string(outputs[0].extent(0)) + " elements; expected " +
                        std::to_string(count) + " as the input has");
  for (std::size_t d = 0; d < impl.spaces.size(); ++d) {
    T* const in  = inputs[d].data();
    T* const out = outputs[d].data();
    LOCKSTEP_THROW_IF(in != out && in < out + count && out < in + count, ExitCode::usage,
                      "input and output overlap in part; expected the same memory, or separate");
    impl.data[d] = reinterpret_cast<char*>(out);
  }
  Shape const& shape = impl.shape_of(algorithm, op, type_of<T>, count);
  for (std::size_t d = 0; d < impl.spaces.size(); ++d)
    copy(impl.spaces[d], outputs[d].data(), inputs[d].data(), count * std::int64_t(sizeof(T)));
  impl.world.enter(shape.label.c_str(), shape.signature);
  impl.execute(shape);
  impl.world.leave();
}

template <class T>
void Communicator::broadcast(std::vector<Buffer<T>> const& buffers) {
  auto& impl = *m_impl;
  Stopwatch const watch(impl.seconds);
  std::int64_t const count = common_length(buffers, local_size());
  for (std::size_t d = 0; d < impl.spaces.size(); ++d) impl.data[d] = reinterpret_cast<char*>(buffers[d].data());
  Shape const& shape = impl.shape_of("broadcast", Op::sum, type_of<T>, count);
  impl.world.enter(shape.label.c_str(), shape.signature);
  impl.execute(shape);
  impl.world.leave();
}

void Communicator::agree(std::string_view what, std::uint64_t value) {
  World::Statement mine{value, {}};
  std::snprintf(mine.text, sizeof mine.text, "%016llx", static_cast<unsigned long long>(value));
  m_impl->world.agree(std::string(what), mine);
}

std::vector<double> Communicator::gather(double value) {
  std::vector<double> all(static_cast<std::size_t>(processes()));
  m_impl->world.allgather(&value, sizeof value, all.data(), "gather");
  return all;
}

std::vector<std::uint64_t> Communicator::gather(std::uint64_t value) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(processes()));
  m_impl->world.allgather(&value, sizeof value, all.data(), "gather");
  return all;
}

void Communicator::barrier() {
  m_impl->world.barrier("barrier");
}
Traffic Communicator::traffic() const {
  return m_impl->traffic;
}
double Communicator::seconds() const {
  return m_impl->seconds;
}

#define LOCKSTEP_INSTANTIATE(T)                                                                  \
  template void Communicator::allreduce<T>(std::string_view, Op, std::vector<Buffer<T>> const&); \
  template void Communicator::allreduce<T>(std::string_view, Op, std::vector<Buffer<T>> const&,  \
                                           std::vector<Buffer<T>> const&);                       \
  template void Communicator::broadcast<T>(std::vector<Buffer<T>> const&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
LOCKSTEP_INSTANTIATE(std::int64_t)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::comm
