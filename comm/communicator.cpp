// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "comm/algorithms.hpp"
#include "comm/transports/choice.hpp"
#include "comm/transports/messages.hpp"
#include "comm/transports/nccl.hpp"
#include "comm/transports/plan.hpp"
#include "comm/transports/reduce.hpp"
#include "comm/transports/shared_memory.hpp"
#include "comm/transports/world.hpp"
#include "kernels/error.hpp"
#include "kernels/kokkos_compat.hpp"

namespace lockstep::comm {
namespace {

constexpr bool host_accessible = Kokkos::SpaceAccessibility<Kokkos::HostSpace, Memory>::accessible;

enum class Call { allreduce, broadcast, exchange };
enum class Way { schedule, fused, mpi, nccl };

// A call as ranks must agree on it, and what was worked out for it once.
struct Shape {
  Call call = Call::allreduce;
  std::string algorithm;  // of an allreduce
  Op op              = Op::sum;
  Type type          = Type::float32;
  std::int64_t count = 0;
  std::string label;
  std::uint64_t signature = 0;
  Way way                 = Way::schedule;
  Plan plan;
  Nccl::SchedulePlan nccl_plan;
  std::int64_t scratch_offset = 0;  // bytes, in a slot of shared memory
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

// Neighbours are the ranks of a pair; they read the half that the other does not write. Of an odd number the last rank
// reads from the one before it.
Schedule exchange_schedule(int ranks) {
  Schedule schedule;
  schedule.algorithm = "exchange";
  schedule.ranks     = ranks;
  schedule.chunks    = 2;
  schedule.steps     = 1;
  for (int r = 0; r < ranks && ranks > 1; ++r) {
    Transfer transfer;
    transfer.source      = (r ^ 1) < ranks ? r ^ 1 : r - 1;
    transfer.destination = r;
    transfer.chunk       = r % 2 == 0 ? 1 : 0;
    transfer.action      = Action::reduce;
    schedule.transfers.push_back(transfer);
  }
  return schedule;
}

}  // namespace

struct Communicator::Impl {
  Impl(std::vector<Space> instances, CommunicatorOptions const& given)
      : options(given),
        spaces(std::move(instances)),
        world(given, int(spaces.size())),
        shared(world, int(spaces.size()), host_accessible && given.transport != Transport::messages),
        messages(world, spaces, given),
        setup(given.devices ? *given.devices : device_setup(spaces)) {
    LOCKSTEP_THROW_IF(given.transport == Transport::shared_memory && world.processes() > 1 && !shared.usable(),
                      ExitCode::environment,
                      "the processes of a node cannot share memory; expected a shared MPI window");
    placement.process    = world.process();
    placement.processes  = world.processes();
    placement.local_size = int(spaces.size());
    for (int p = 0; p < world.processes(); ++p)
      placement.readable.push_back(p == world.process() || (shared.usable() && world.on_node(p)));
    join_devices();
    scratch.resize(spaces.size());
    staging.resize(spaces.size());
    inputs.resize(spaces.size());
    outputs.resize(spaces.size());
    addresses.data.resize(std::size_t(size()));
    addresses.scratch.resize(std::size_t(size()));
    addresses.staging.resize(spaces.size());
    all_inputs.resize(std::size_t(size()));
    all_outputs.resize(std::size_t(size()));
  }

  // Peer access, and NCCL where it is of use: all processes decide alike.
  void join_devices() {
    TransportFacts facts;
    facts.asked     = options.transport;
    facts.processes = placement.processes;
    facts.ranks     = size();
    facts.on_gpus   = setup.device != nullptr;
    if (facts.on_gpus) {
      bool const peers = enable_peer_access(*setup.device, setup.gpus);
      facts.peers      = world.everywhere(peers, "devices");
      facts.nccl_missing =
          setup.nccl ? nccl_obstacle(gpu_of_each_rank(), several_ranks_per_gpu()) : "this program was built without it";
    }
    choice = choose_transport(facts);
    if (choice.nccl) {
      try {
        nccl = std::make_unique<Nccl>(setup, spaces, nccl_job());
      } catch (Error const& error) {
        facts.nccl_missing = error.what();
      }
      if (!world.everywhere(nccl != nullptr, "devices")) {
        nccl.reset();
        if (facts.nccl_missing.empty()) facts.nccl_missing = "another process could not start it";
        choice = choose_transport(facts);
      }
    }
    placement.direct = choice.direct;
    if (facts.on_gpus && placement.processes == 1)
      order = std::make_unique<StreamOrder>(*setup.device, setup.gpus, setup.streams);
  }

  bool several_ranks_per_gpu() {
    char const* const permitted = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    int version                 = 0;
    return world.everywhere(
        permitted && std::strcmp(permitted, "1") == 0 && setup.nccl->version(version) == 0 && version >= 23000,
        "devices");
  }

  std::vector<std::string> gpu_of_each_rank() {
    struct Name {
      char text[104];
    };
    std::vector<Name> mine(spaces.size()), all(static_cast<std::size_t>(size()));
    char host[48] = {};
    gethostname(host, sizeof host - 1);
    for (std::size_t d = 0; d < mine.size(); ++d) {
      Gpu gpu;
      check(*setup.device, setup.device->describe(setup.gpus[d], gpu), "properties of a GPU");
      std::snprintf(mine[d].text, sizeof mine[d].text, "%s on %s", gpu.bus.c_str(), host);
    }
    world.allgather(mine.data(), mine.size() * sizeof(Name), all.data(), "devices");
    std::vector<std::string> names;
    for (auto const& name : all) names.emplace_back(name.text);
    return names;
  }

  Nccl::Job nccl_job() {
    Nccl::Job job;
    job.process   = placement.process;
    job.processes = placement.processes;
    job.broadcast = [this](NcclId& id) {
      std::vector<NcclId> all(static_cast<std::size_t>(placement.processes));
      world.allgather(&id, sizeof id, all.data(), "NCCL's id");
      id = all[0];
    };
    job.complaint = [this](std::int64_t nanoseconds) { return world.complaint(nanoseconds); };
    job.end       = [this](std::string const& message) { world.end(message); };
    job.blocking  = [this] { return std::make_shared<World::Blocking>(world); };
    return job;
  }

  int size() const { return placement.processes * placement.local_size; }
  int rank(std::size_t local) const { return placement.process * placement.local_size + int(local); }
  Space const& space_of(int rank) const { return spaces[std::size_t(rank) % spaces.size()]; }
  bool one_memory() const {
    if (placement.processes == 1) return choice.direct;
    return shared.usable() && world.processes_per_node() == placement.processes;
  }

  // Kernels of one device read other devices' memory, so all must have got here. Within a process the streams see to
  // it; messages need the host. Host spaces always have.
  void fence_all() const {
    if (order)
      order->join();
    else if constexpr (!runs_on_host)
      for (auto const& space : spaces) lockstep::fence(space, "lockstep::comm::step");
  }

  Shape& shape_of(Call call, std::string_view algorithm, Op op, Type type, std::int64_t count) {
    for (auto& known : shapes)
      if (known->count == count && known->type == type && known->op == op && known->call == call &&
          known->algorithm == algorithm) {
        if (options.check_every_call) agree(*known);
        return *known;
      }
    auto shape       = std::make_unique<Shape>();
    shape->call      = call;
    shape->algorithm = algorithm;
    shape->op        = op;
    shape->type      = type;
    shape->count     = count;
    shape->label     = (call == Call::broadcast  ? "broadcast"
                        : call == Call::exchange ? "exchange"
                                                 : "allreduce " + shape->algorithm + " " + name_of(op)) +
                   " " + name_of(type) + "[" + std::to_string(count) + "]";
    Schedule schedule;
    if (call == Call::broadcast) {
      schedule = broadcast_schedule(size());
    } else if (call == Call::exchange) {
      schedule = exchange_schedule(size());
    } else if (algorithm == "mpi") {
      LOCKSTEP_THROW_IF(placement.processes == 1, ExitCode::usage,
                        "algorithm 'mpi' in a world of one process; expected several");
      shape->way = Way::mpi;
    } else if (algorithm == "nccl") {
      LOCKSTEP_THROW_IF(!nccl, ExitCode::usage,
                        "algorithm 'nccl' in a world without NCCL; expected several GPUs, one a rank, and a program "
                        "built with it (now: " +
                            transport() + (choice.note.empty() ? "" : ", " + choice.note) + ")");
      shape->way = Way::nccl;
    } else if (algorithm == "fused") {
      LOCKSTEP_THROW_IF(
          !one_memory(), ExitCode::usage,
          "algorithm 'fused' needs all ranks on one shared memory; this world's transport is " + transport());
      shape->way = Way::fused;
    } else {
      schedule = make_schedule(algorithm, {size(), count, world.processes_per_node() * placement.local_size});
      if (options.alter_schedule) options.alter_schedule(schedule);
    }
    shape->signature = hash_bytes(shape->label.data(), shape->label.size(), schedule.hash());
    agree(*shape);
    prepare(*shape, schedule);
    shapes.push_back(std::move(shape));
    return *shapes.back();
  }

  std::string_view chosen(std::string_view algorithm, std::int64_t bytes) const {
    if (algorithm != "auto") return algorithm;
    LOCKSTEP_THROW_IF(choices.empty(), ExitCode::usage, "algorithm 'auto' without a table; expected one set before");
    for (auto const& choice : choices)
      if (bytes <= choice.bytes) return choice.algorithm;
    return choices.back().algorithm;
  }

  // All memory that the shape needs.
  void prepare(Shape& shape, Schedule const& schedule) {
    std::int64_t const item = size_of(shape.type);
    if (shape.way == Way::mpi) {
      if constexpr (!host_accessible)
        if (std::int64_t(host.extent(0)) < shape.count * item)
          host = Kokkos::View<char*, PinnedMemory>(
              Kokkos::view_alloc(Kokkos::WithoutInitializing, "lockstep::comm::host"), std::size_t(shape.count * item));
      return;
    }
    if (shape.way == Way::nccl) return;
    bool enough = true;
    if (shape.way == Way::schedule && choice.schedules) {
      shape.nccl_plan = nccl->plan(schedule, shape.count, shape.type);
    } else if (shape.way == Way::fused) {
      if (shared.usable()) enough = shared.reserve(2 * segment_bytes);
    } else {
      shape.plan           = make_plan(schedule, shape.count, placement);
      auto const& plan     = shape.plan;
      shape.scratch_offset = (shape.count * item + 255) / 256 * 256;
      if (shared.usable()) enough = shared.reserve(shape.scratch_offset + plan.scratch * item);
      for (std::size_t d = 0; enough && d < spaces.size(); ++d) {
        if (!shared.usable()) grow(spaces[d], scratch[d], plan.scratch * item, "lockstep::comm::scratch");
        grow(spaces[d], staging[d], plan.staging[d] * item, "lockstep::comm::staging");
      }
      if (enough) messages.reserve(plan.messages * item);
    }
    LOCKSTEP_THROW_IF(!enough, ExitCode::environment,
                      "not enough shared memory for '" + shape.label +
                          "'; expected room in the system's shared memory "
                          "(or --transport messages)");
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

  // inputs and outputs are set.
  void run(Shape const& shape) {
    DetailedRegion const track = device_region(rank(0), rank(spaces.size() - 1));
    DetailedRegion const region([&] { return "lockstep::comm::" + shape.label; });
    world.enter(shape.label.c_str(), shape.signature);
    switch (shape.way) {
      case Way::schedule:
        if (choice.schedules)
          run_schedule_over_nccl(shape);
        else
          run_schedule(shape);
        break;
      case Way::fused:
        run_fused(shape);
        break;
      case Way::mpi:
        run_mpi(shape);
        break;
      case Way::nccl:
        nccl->allreduce(shape.type, shape.op, shape.count, inputs, outputs);
        break;
    }
    world.leave();
  }

  void run_schedule(Shape const& shape) {
    auto const& plan         = shape.plan;
    addresses.item           = size_of(shape.type);
    std::int64_t const bytes = shape.count * addresses.item;
    bool const sharing       = shared.usable();
    // Counters: base + 1 + s once step s may be read here, base + s + 1 once its reads are done.
    std::int64_t const base = sharing ? shared.begin(std::int64_t(plan.steps.size()) + 2) : 0;
    std::fill(resolved.begin(), resolved.end(), false);
    resolved.resize(std::size_t(placement.processes));
    for (std::size_t d = 0; d < spaces.size(); ++d) {
      auto const r         = std::size_t(rank(d));
      addresses.staging[d] = staging[d].data();
      addresses.scratch[r] = sharing ? shared.slot(int(r)) + shape.scratch_offset : scratch[d].data();
      addresses.data[r]    = outputs[d];
      if (sharing) {
        shared.describe(int(d), outputs[d], outputs[d], bytes);
        if (!shared.output_of(int(r))) addresses.data[r] = shared.slot(int(r));
      }
      copy(spaces[d], addresses.data[r], inputs[d], bytes);
    }
    if (sharing) {
      fence_all();
      shared.publish_ready(base + 1);
    }
    auto const describe = [&](char const* what, Move const& move) {
      return std::string(what) + " rank " + std::to_string(move.source) + " to " + std::to_string(move.destination) +
             ", " + std::to_string(move.count * addresses.item) + " bytes";
    };
    auto const apply = [&](Move const& move, char const* from) {
      DetailedRegion const track = device_region(move.destination);
      DetailedRegion const region(
          [&] { return describe(move.reduce ? "lockstep::comm::reduce_from" : "lockstep::comm::copy_from", move); });
      if (move.reduce)
        reduce(space_of(move.destination), shape.type, shape.op, addresses.destination(move), from, move.count);
      else
        copy(space_of(move.destination), addresses.destination(move), from, move.count * addresses.item);
    };
    auto const fetch = [&](Move const& move, char* to) {
      std::int64_t const length = move.count * addresses.item;
      if (placement.direct || move.source == move.destination)
        copy(space_of(move.destination), to, addresses.source(move), length);
      else
        check(*setup.device,
              setup.device->copy(setup.streams[std::size_t(move.destination % placement.local_size)], to,
                                 addresses.source(move), std::size_t(length)),
              "copying between GPUs");
    };

    for (std::size_t s = 0; s < plan.steps.size(); ++s) {
      auto const& step        = plan.steps[s];
      std::int64_t const here = base + std::int64_t(s);
      world.at_step(std::int64_t(s));
      fence_all();
      for (int source : step.sources) {
        shared.wait_ready(source, here + 1);
        if (!resolved[std::size_t(source)]) resolve(source, shape);
      }
      for (Reader const& reader : step.before_early) shared.wait_read(reader.process, base + reader.step);
      if (!step.sends.empty() || !step.receives.empty()) messages.post(step, addresses);
      for (Move const& move : step.pulls)
        if (move.late) fetch(move, addresses.staged(move));
      for (Move const& move : step.pulls) {
        if (move.late) continue;
        if (placement.direct || move.source == move.destination) {
          apply(move, addresses.source(move));
        } else if (move.reduce) {
          fetch(move, addresses.staged(move));
          apply(move, addresses.staged(move));
        } else {
          fetch(move, addresses.destination(move));
        }
      }
      fence_all();
      if (sharing) shared.publish_read(here + 1);
      for (std::size_t i = 0; i < step.receives.size(); ++i) {
        Move const& move = step.receives[i];
        {
          DetailedRegion const track = device_region(move.destination);
          DetailedRegion const region([&] { return describe("lockstep::comm::receive", move); });
          messages.finish_receive(step, i, addresses);
        }
        if (move.staging >= 0 && !move.late) apply(move, addresses.staged(move));
      }
      messages.finish_sends(step);
      for (Reader const& reader : step.before_late) shared.wait_read(reader.process, base + reader.step);
      for (auto const* moves : {&step.pulls, &step.receives})
        for (Move const& move : *moves)
          if (move.late) apply(move, addresses.staged(move));
      if (sharing) {
        fence_all();
        shared.publish_ready(here + 2);
      }
    }
    for (Reader const& reader : plan.before_leaving) shared.wait_read(reader.process, base + reader.step);
    for (std::size_t d = 0; d < spaces.size(); ++d)
      copy(spaces[d], outputs[d], addresses.data[std::size_t(rank(d))], bytes);
    fence_all();
    traffic.bytes_sent += plan.elements_sent * addresses.item;
    traffic.messages_sent += plan.messages_sent;
    traffic.bytes_reduced += plan.elements_reduced * addresses.item;
  }

  void run_schedule_over_nccl(Shape const& shape) {
    auto const& plan        = shape.nccl_plan;
    std::int64_t const item = size_of(shape.type);
    nccl->run(plan, shape.type, shape.op, shape.count, inputs, outputs);
    traffic.bytes_sent += plan.elements_sent * item;
    traffic.messages_sent += plan.messages_sent;
    traffic.bytes_reduced += plan.elements_reduced * item;
  }

  // Where another process of the node keeps its data in this call.
  void resolve(int process, Shape const& shape) {
    resolved[std::size_t(process)] = true;
    for (int r = process * placement.local_size; r < (process + 1) * placement.local_size; ++r) {
      char* const registered            = shared.output_of(r);
      addresses.data[std::size_t(r)]    = registered ? registered : shared.slot(r);
      addresses.scratch[std::size_t(r)] = shared.slot(r) + shape.scratch_offset;
    }
  }

  void run_fused(Shape const& shape) {
    std::int64_t const item = size_of(shape.type);
    bool const inlined      = placement.processes > 1 && shape.count * item <= SharedMemory::inline_bytes;
    fence_all();
    if (placement.processes == 1)
      fuse_in_process(shape);
    else if (inlined)
      fuse_inline(shape);
    else
      fuse_shared(shape);
    fence_all();
    // Inlined, every rank's vector goes to all others, and every process sums all of them; else each its part.
    std::int64_t const mine =
        inlined ? shape.count * item : chunk_range(shape.count, placement.processes, placement.process).size() * item;
    std::int64_t const ways = inlined ? placement.local_size : 2;
    traffic.bytes_sent += ways * (size() - 1) * mine;
    traffic.messages_sent += (inlined ? 1 : 2) * (size() - 1) * placement.local_size;
    traffic.bytes_reduced += (size() - 1) * mine;
  }

  void fuse_in_process(Shape const& shape) {
    // Devices of one process take a part each; on a host they share the cores anyway.
    int const parts = runs_on_host ? 1 : placement.local_size;
    for (int d = 0; d < parts; ++d) {
      ChunkRange const part = chunk_range(shape.count, parts, d);
      fuse(spaces[std::size_t(d)], shape.type, shape.op, inputs, outputs, part.begin, part.size());
    }
  }

  // One exchange: everybody shows its vector and sums all of them.
  void fuse_inline(Shape const& shape) {
    std::int64_t const bytes = shape.count * size_of(shape.type);
    std::int64_t const base  = shared.begin(1);
    for (std::size_t d = 0; d < spaces.size(); ++d) copy(spaces[d], shared.inline_area(rank(d)), inputs[d], bytes);
    shared.publish_ready(base + 1);
    shared.wait_all_ready(base + 1);
    for (int r = 0; r < size(); ++r) all_inputs[std::size_t(r)] = shared.inline_area(r);
    fuse(spaces[0], shape.type, shape.op, all_inputs, outputs, 0, shape.count);
  }

  void fuse_shared(Shape const& shape) {
    std::int64_t const item     = size_of(shape.type);
    std::int64_t const bytes    = shape.count * item;
    std::int64_t const segments = (bytes + segment_bytes - 1) / segment_bytes;
    std::int64_t const base     = shared.begin(2 + 3 * segments);
    for (std::size_t d = 0; d < spaces.size(); ++d) shared.describe(int(d), inputs[d], outputs[d], bytes);
    shared.publish_ready(base + 1);
    shared.wait_all_ready(base + 1);
    bool in_place = true;
    for (int r = 0; r < size(); ++r) {
      all_inputs[std::size_t(r)]  = shared.input_of(r);
      all_outputs[std::size_t(r)] = shared.output_of(r);
      in_place                    = in_place && all_inputs[std::size_t(r)] && all_outputs[std::size_t(r)];
    }
    if (in_place) {
      world.at_step(1);
      auto const fuse_part = [&](std::int64_t part) {
        ChunkRange const range = chunk_range(shape.count, placement.processes, part);
        fuse(spaces[0], shape.type, shape.op, all_inputs, all_outputs, range.begin, range.size());
      };
      if (world.oversubscribed()) {
        shared.share_out(placement.processes, fuse_part);
        return;
      }
      fuse_part(placement.process);
      shared.publish_ready(base + 2);
      shared.wait_all_ready(base + 2);
      return;
    }
    fuse_segments(shape, segments, base + 2);
  }

  // Through slots that stay in cache: copy a segment in, sum a part of it, copy all parts out; the next segment is
  // copied in before the wait for this one.
  void fuse_segments(Shape const& shape, std::int64_t segments, std::int64_t base) {
    std::int64_t const item    = size_of(shape.type);
    std::int64_t const longest = segment_bytes / item;
    auto const range           = [&](std::int64_t segment) {
      return ChunkRange{segment * longest, std::min(shape.count, (segment + 1) * longest)};
    };
    auto const area    = [&](int r, std::int64_t segment) { return shared.slot(r) + segment % 2 * segment_bytes; };
    auto const copy_in = [&](std::int64_t segment) {
      ChunkRange const part = range(segment);
      for (std::size_t d = 0; d < spaces.size(); ++d)
        copy(spaces[d], area(rank(d), segment), inputs[d] + part.begin * item, part.size() * item);
    };
    // Values of the counter: base + 3i segment i is copied in and i - 1 is copied out; base + 3i + 1 its sums are made.
    copy_in(0);
    shared.publish_ready(base);
    for (std::int64_t i = 0; i < segments; ++i) {
      world.at_step(i);
      ChunkRange const part = range(i);
      for (int r = 0; r < size(); ++r) all_inputs[std::size_t(r)] = area(r, i);
      shared.wait_all_ready(base + 3 * i);
      ChunkRange const mine = chunk_range(part.size(), placement.processes, placement.process);
      own_area.assign(1, all_inputs[std::size_t(rank(0))]);
      fuse(spaces[0], shape.type, shape.op, all_inputs, own_area, mine.begin, mine.size());
      shared.publish_ready(base + 3 * i + 1);
      // The other area is free: all had copied out of it before they published this segment.
      if (i + 1 < segments) copy_in(i + 1);
      shared.wait_all_ready(base + 3 * i + 1);
      for (std::size_t d = 0; d < spaces.size(); ++d)
        for (int p = 0; p < placement.processes; ++p) {
          ChunkRange const theirs = chunk_range(part.size(), placement.processes, p);
          copy(spaces[d], outputs[d] + (part.begin + theirs.begin) * item,
               area(p * placement.local_size, i) + theirs.begin * item, theirs.size() * item);
        }
      shared.publish_ready(base + 3 * i + 3);
    }
    shared.wait_all_ready(base + 3 * segments);
  }
#ifdef LOCKSTEP_HAVE_MPI
  void run_mpi(Shape const& shape) {
    std::int64_t const item = size_of(shape.type);
    fence_all();
    // Devices of this process first, by the one-pass sum.
    std::vector<char*>& first = own_area;
    first.assign(1, outputs[0]);
    char* from = inputs[0];
    if (spaces.size() > 1) {
      fuse(spaces[0], shape.type, shape.op, inputs, first, 0, shape.count);
      from = outputs[0];
      fence_all();
    }
    using HostBytes   = Kokkos::View<char*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>;
    using DeviceBytes = Kokkos::View<char*, Memory, Kokkos::MemoryUnmanaged>;
    auto const bytes  = std::size_t(shape.count * item);
    char* to          = outputs[0];
    if (!host_accessible) {  // device pointers are never given to MPI's reductions
      Kokkos::deep_copy(spaces[0], HostBytes(host.data(), bytes), DeviceBytes(from, bytes));
      lockstep::fence(spaces[0], "lockstep::comm::before_mpi");
      from = to = host.data();
    }
    MPI_Datatype const type = shape.type == Type::float32   ? MPI_FLOAT
                              : shape.type == Type::float64 ? MPI_DOUBLE
                                                            : MPI_INT64_T;
    MPI_Op const op         = shape.op == Op::sum ? MPI_SUM : shape.op == Op::max ? MPI_MAX : MPI_MIN;
    {
      World::Blocking const deadline(world);
      std::int64_t done = 0;
      do {
        int const piece =
            int(std::min(shape.count - done, std::max<std::int64_t>(1, options.max_message_bytes / item)));
        world.check(MPI_Allreduce(from == to ? MPI_IN_PLACE : from + done * item, to + done * item, piece, type, op,
                                  world.comm()),
                    "MPI_Allreduce");
        done += piece;
      } while (done < shape.count);
    }
    if (!host_accessible) Kokkos::deep_copy(spaces[0], DeviceBytes(outputs[0], bytes), HostBytes(host.data(), bytes));
    fence_all();
    for (std::size_t d = 1; d < spaces.size(); ++d) copy(spaces[d], outputs[d], outputs[0], shape.count * item);
    fence_all();
  }
#else
  void run_mpi(Shape const&) {}
#endif

  // Longer vectors than this that are not in shared memory pass through it in pieces, twice per device so that copying
  // and summing overlap; they should stay in the second-level cache.
  static constexpr std::int64_t segment_bytes = 128 * 1024;

  std::string transport() const {
    if (choice.schedules) return "NCCL";
    if (placement.processes == 1) return "in-process";
    if (!shared.usable()) return "messages";
    return one_memory() ? "shared memory" : "shared memory and messages";
  }

  std::string notes() const {
    std::string text = choice.note;
    if (placement.processes > 1 && !choice.schedules && !messages.staging().note.empty())
      text += (text.empty() ? "" : "; ") + messages.staging().note;
    return text;
  }

  CommunicatorOptions options;
  std::vector<Space> spaces;
  World world;
  SharedMemory shared;
  Messages messages;
  DeviceSetup setup;
  TransportChoice choice;
  Placement placement;
  std::unique_ptr<Nccl> nccl;
  std::unique_ptr<StreamOrder> order;  // of GPUs that are the whole world
  std::vector<std::unique_ptr<Shape>> shapes;
  std::vector<Buffer<char>> scratch, staging;  // by local device
  Kokkos::View<char*, PinnedMemory> host;      // for MPI_Allreduce, which is never given device memory
  // Of the call in progress.
  std::vector<char*> inputs, outputs;  // by local device
  Addresses addresses;
  std::vector<bool> resolved;                  // by process
  std::vector<char*> all_inputs, all_outputs;  // by rank
  std::vector<char*> own_area;
  std::vector<Choice> choices;
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
  auto names = algorithm_names();
  if (m_impl->one_memory()) names.emplace_back("fused");
  if (processes() > 1) names.emplace_back("mpi");
  if (m_impl->nccl) names.emplace_back("nccl");
  return names;
}

std::string Communicator::transport() const {
  return m_impl->transport();
}

std::string Communicator::notes() const {
  return m_impl->notes();
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
    impl.inputs[d]  = reinterpret_cast<char*>(in);
    impl.outputs[d] = reinterpret_cast<char*>(out);
  }
  impl.run(
      impl.shape_of(Call::allreduce, impl.chosen(algorithm, count * std::int64_t(sizeof(T))), op, type_of<T>, count));
}

template <class T>
void Communicator::prepare(std::string_view algorithm, Op op, std::int64_t count) {
  m_impl->shape_of(Call::allreduce, m_impl->chosen(algorithm, count * std::int64_t(sizeof(T))), op, type_of<T>, count);
}

bool Communicator::serves_side_threads() {
  bool here = runs_on_host;
#ifdef LOCKSTEP_HAVE_MPI
  if (processes() > 1) {
    int level = MPI_THREAD_SINGLE;
    m_impl->world.check(MPI_Query_thread(&level), "MPI_Query_thread");
    here = here && level >= MPI_THREAD_SERIALIZED;
  }
#endif
  return m_impl->world.everywhere(here, "threads");
}

std::string Communicator::graph_obstacle(std::string_view algorithm) const {
  auto const& impl = *m_impl;
  if (!impl.setup.device) return std::string("found devices on ") + Space::name() + ", expected GPUs";
  if (processes() > 1)
    return "found " + std::to_string(processes()) +
           " processes, expected one: what passes between processes passes the host";
  bool const auto_nccl = algorithm == "auto" && std::any_of(impl.choices.begin(), impl.choices.end(),
                                                            [](Choice const& c) { return c.algorithm == "nccl"; });
  if (impl.choice.schedules || algorithm == "nccl" || auto_nccl)
    return "found sums over NCCL, whose calls the host watches; expected the in-process transport";
  return "";
}

std::unique_ptr<DeviceGraph> Communicator::make_graph() const {
  auto const& setup = m_impl->setup;
  return std::make_unique<DeviceGraph>(*setup.device, setup.gpus, setup.streams);
}

template <class T>
void Communicator::broadcast(std::vector<Buffer<T>> const& buffers) {
  auto& impl = *m_impl;
  Stopwatch const watch(impl.seconds);
  std::int64_t const count = common_length(buffers, local_size());
  for (std::size_t d = 0; d < impl.spaces.size(); ++d)
    impl.inputs[d] = impl.outputs[d] = reinterpret_cast<char*>(buffers[d].data());
  impl.run(impl.shape_of(Call::broadcast, "", Op::sum, type_of<T>, count));
}

template <class T>
std::vector<Buffer<T>> Communicator::allocate(std::string const& label, std::int64_t count) {
  auto& impl                      = *m_impl;
  std::int64_t const bytes        = count * std::int64_t(sizeof(T));
  std::vector<char*> const memory = impl.shared.allocate(bytes);
  std::vector<Buffer<T>> buffers;
  for (std::size_t d = 0; d < memory.size(); ++d) {
    if (memory[d])
      buffers.emplace_back(reinterpret_cast<T*>(memory[d]), std::size_t(count));
    else
      buffers.emplace_back(Kokkos::view_alloc(impl.spaces[d], Kokkos::WithoutInitializing, label), std::size_t(count));
  }
  return buffers;
}

template <class T>
std::vector<T*> Communicator::everywhere(std::vector<Buffer<T>> const& buffers) const {
  auto& impl = *m_impl;
  std::vector<T*> addresses;
  if (!impl.one_memory()) return addresses;
  for (int r = 0; r < size(); ++r)
    addresses.push_back(processes() == 1 ? buffers[std::size_t(r)].data()
                                         : reinterpret_cast<T*>(impl.shared.counterpart(buffers[0].data(), 0, r)));
  if (std::count(addresses.begin(), addresses.end(), nullptr)) addresses.clear();
  return addresses;
}

void Communicator::set_stage(std::string const& stage) {
  m_impl->world.set_stage(stage);
}

void Communicator::set_choices(std::vector<Choice> choices) {
  auto const known   = algorithms();
  std::uint64_t hash = choices.size();
  for (auto const& choice : choices) {
    LOCKSTEP_THROW_IF(
        std::find(known.begin(), known.end(), choice.algorithm) == known.end(), ExitCode::usage,
        "table of algorithms: found '" + choice.algorithm + "', which this world (" + transport() + ") does not have");
    hash = hash_bytes(&choice.bytes, sizeof choice.bytes, hash);
    hash = hash_bytes(choice.algorithm.data(), choice.algorithm.size(), hash);
  }
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  agree("the table of algorithms", text);
  m_impl->choices = std::move(choices);
}

void Communicator::exchange(std::vector<Buffer<float>> const& buffers) {
  auto& impl               = *m_impl;
  std::int64_t const count = common_length(buffers, local_size());
  for (std::size_t d = 0; d < impl.spaces.size(); ++d)
    impl.inputs[d] = impl.outputs[d] = reinterpret_cast<char*>(buffers[d].data());
  impl.run(impl.shape_of(Call::exchange, "", Op::sum, Type::float32, count));
}

void Communicator::agree(std::string_view what, std::string const& value) {
  World::Statement mine{hash_bytes(value.data(), value.size()), {}};
  std::snprintf(mine.text, sizeof mine.text, "%s", value.c_str());
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

std::vector<std::string> Communicator::gather(std::string const& text) {
  return m_impl->world.gather(text);
}

void Communicator::barrier() {
  m_impl->world.barrier("barrier");
}

void Communicator::fence() const {
  if constexpr (!runs_on_host)
    for (auto const& space : m_impl->spaces) lockstep::fence(space, "lockstep::comm::fence");
}

void Communicator::align() {
  auto& impl = *m_impl;
  if (impl.placement.processes == 1 || !impl.one_memory()) return;
  std::int64_t const base = impl.shared.begin(1);
  impl.world.enter("align", 0);
  impl.shared.publish_ready(base + 1);
  impl.shared.wait_all_ready(base + 1);
  impl.world.leave();
}

int Communicator::usable_cores() const {
  return processes() == 1 ? 1 : m_impl->world.cores();
}
bool Communicator::oversubscribed() const {
  return m_impl->world.oversubscribed();
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
  template void Communicator::prepare<T>(std::string_view, Op, std::int64_t);                    \
  template void Communicator::broadcast<T>(std::vector<Buffer<T>> const&);                       \
  template std::vector<Buffer<T>> Communicator::allocate<T>(std::string const&, std::int64_t);   \
  template std::vector<T*> Communicator::everywhere<T>(std::vector<Buffer<T>> const&) const;
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
LOCKSTEP_INSTANTIATE(std::int64_t)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::comm
