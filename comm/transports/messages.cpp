// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/messages.hpp"

#include <algorithm>

#include "comm/transports/reduce.hpp"
#include "kernels/kokkos_compat.hpp"

namespace lockstep::comm {
namespace {

constexpr bool host_accessible = Kokkos::SpaceAccessibility<Kokkos::HostSpace, Memory>::accessible;

using HostBytes   = Kokkos::View<char*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>;
using DeviceBytes = Kokkos::View<char*, Memory, Kokkos::MemoryUnmanaged>;

// Between the host's memory and a device's.
void stage(Space const& space, char* to, char const* from, std::int64_t bytes, bool to_host) {
  auto const size = std::size_t(bytes);
  if constexpr (runs_on_host) {
    copy(space, to, from, bytes);
  } else if (to_host) {
    Kokkos::deep_copy(space, HostBytes(to, size), DeviceBytes(const_cast<char*>(from), size));
  } else {
    Kokkos::deep_copy(space, DeviceBytes(to, size), HostBytes(const_cast<char*>(from), size));
  }
}

}  // namespace

// Bytes from each process's device memory to the next one's.
bool probe_message(World& world, Space const& space) {
  if (world.processes() == 1) return true;
#ifdef LOCKSTEP_HAVE_MPI
  constexpr int count = 64, tag = 0x7ffe;
  int const next = (world.process() + 1) % world.processes(),
            last = (world.process() + world.processes() - 1) % world.processes();
  std::vector<char> sent(count), received(count, 0), expected(count);
  for (int i = 0; i < count; ++i) {
    sent[std::size_t(i)]     = char(1 + (world.process() + i) % 100);
    expected[std::size_t(i)] = char(1 + (last + i) % 100);
  }
  auto const make = [&] {
    return Buffer<char>(Kokkos::view_alloc(space, "lockstep::comm::probe"), std::size_t(count));
  };
  Buffer<char> const from = make(), to = make();
  Kokkos::deep_copy(space, from, HostBytes(sent.data(), count));
  lockstep::fence(space, "lockstep::comm::probe");
  MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  world.check(MPI_Irecv(to.data(), count, MPI_BYTE, last, tag, world.comm(), &requests[0]), "MPI_Irecv");
  world.check(MPI_Isend(from.data(), count, MPI_BYTE, next, tag, world.comm(), &requests[1]), "MPI_Isend");
  world.wait(requests, 2, last);
  Kokkos::deep_copy(space, HostBytes(received.data(), count), to);
  lockstep::fence(space, "lockstep::comm::probe");
  return received == expected;
#else
  (void)space;
  return false;
#endif
}

Messages::Messages(World& world, std::vector<Space> const& spaces, CommunicatorOptions const& options)
    : m_world(world),
      m_spaces(spaces),
      m_max_bytes(options.max_message_bytes),
      m_staging(find_staging(options.host_staging)) {}

// The processes decide alike: MPI reads device memory only where it does for all.
Staging Messages::find_staging(bool asked) {
  StagingFacts facts;
  facts.on_host = host_accessible;
  facts.asked   = asked;
  if (host_accessible || asked || m_world.processes() == 1) return choose_staging(facts, false);
  facts.library    = mpi_claim();
  facts.promise    = mpi_promise();
  bool const worth = m_world.everywhere(worth_probing(facts), "device memory");
  if (!worth && worth_probing(facts)) facts.library = Claim::does_not;
  return choose_staging(facts, worth && m_world.everywhere(probe_message(m_world, m_spaces[0]), "device memory"));
}

void Messages::reserve(std::int64_t bytes) {
  if (!m_staging.through_host || std::int64_t(m_host.extent(0)) >= bytes) return;
  m_host = {};
  m_host = Kokkos::View<char*, PinnedMemory>(Kokkos::view_alloc(Kokkos::WithoutInitializing, "lockstep::comm::host"),
                                             std::size_t(bytes));
}

#ifdef LOCKSTEP_HAVE_MPI

Messages::Message Messages::post(char* memory, std::int64_t bytes, int peer, bool receive) {
  // Both sides post a pair's messages in the schedule's order, and MPI keeps that order; the tag tells calls apart.
  int const tag = int(m_world.call() & 0x7fff);
  Message message{m_requests.size(), 0, nullptr};
  for (std::int64_t done = 0; done < bytes; ++message.pieces) {
    int const piece     = int(std::min(bytes - done, m_max_bytes));
    MPI_Request request = MPI_REQUEST_NULL;
    if (receive)
      m_world.check(MPI_Irecv(memory + done, piece, MPI_BYTE, peer, tag, m_world.comm(), &request), "MPI_Irecv");
    else
      m_world.check(MPI_Isend(memory + done, piece, MPI_BYTE, peer, tag, m_world.comm(), &request), "MPI_Isend");
    m_requests.push_back(request);
    done += piece;
  }
  return message;
}

void Messages::post(PlanStep const& step, Addresses const& addresses) {
  m_requests.clear();
  m_sends.clear();
  m_receives.clear();
  std::int64_t used   = 0;
  auto const host_for = [&](Move const& move) -> char* {
    if (!m_staging.through_host) return nullptr;
    char* const place = m_host.data() + used;
    used += move.count * addresses.item;
    return place;
  };
  for (Move const& move : step.receives) {
    char* const host = host_for(move);
    m_receives.push_back(
        post(host ? host : addresses.landing(move), move.count * addresses.item, process_of(move.source), true));
    m_receives.back().host = host;
  }
  for (Move const& move : step.sends) {
    std::int64_t const bytes = move.count * addresses.item;
    char* memory             = addresses.source(move);
    if (char* const host = host_for(move)) {
      auto const& space = space_of(move.source);
      stage(space, host, memory, bytes, true);
      if constexpr (!runs_on_host) lockstep::fence(space, "lockstep::comm::before_send");
      memory = host;
    }
    m_sends.push_back(post(memory, bytes, process_of(move.destination), false));
  }
}

void Messages::finish(Message const& message, int peer) {
  m_world.wait(m_requests.data() + message.first, int(message.pieces), peer);
}

#else

void Messages::post(PlanStep const&, Addresses const&) {}
void Messages::finish(Message const&, int) {}

#endif

void Messages::finish_receive(PlanStep const& step, std::size_t i, Addresses const& addresses) {
  Move const& move = step.receives[i];
  finish(m_receives[i], process_of(move.source));
  if (!m_receives[i].host) return;
  stage(space_of(move.destination), addresses.landing(move), m_receives[i].host, move.count * addresses.item, false);
}

void Messages::finish_sends(PlanStep const& step) {
  for (std::size_t i = 0; i < step.sends.size(); ++i) finish(m_sends[i], process_of(step.sends[i].destination));
}

}  // namespace lockstep::comm
