// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/messages.hpp"

#include <algorithm>

#include "kernels/kokkos_compat.hpp"

namespace lockstep::comm {
namespace {

constexpr bool host_accessible = Kokkos::SpaceAccessibility<Kokkos::HostSpace, Memory>::accessible;

using HostBytes   = Kokkos::View<char*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>;
using DeviceBytes = Kokkos::View<char*, Memory, Kokkos::MemoryUnmanaged>;

}  // namespace

Messages::Messages(World& world, std::vector<Space> const& spaces, CommunicatorOptions const& options)
    : m_world(world),
      m_spaces(spaces),
      m_max_bytes(options.max_message_bytes),
      m_host_staging(options.host_staging || !host_accessible) {}

void Messages::reserve(std::int64_t bytes) {
  if (!m_host_staging || std::int64_t(m_host.extent(0)) >= bytes) return;
  m_host = HostBuffer<char>();
  m_host =
      HostBuffer<char>(Kokkos::view_alloc(Kokkos::WithoutInitializing, "lockstep::comm::host"), std::size_t(bytes));
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
    if (!m_host_staging) return nullptr;
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
      Kokkos::deep_copy(space, HostBytes(host, std::size_t(bytes)), DeviceBytes(memory, std::size_t(bytes)));
      lockstep::fence(space, "lockstep::comm::before_send");
      memory = host;
    }
    m_sends.push_back(post(memory, bytes, process_of(move.destination), false));
  }
}

void Messages::finish(Message const& message, int peer) {
  m_world.wait(
      [&] {
        int done = 0;
        m_world.check(MPI_Testall(int(message.pieces), m_requests.data() + message.first, &done, MPI_STATUSES_IGNORE),
                      "MPI_Testall");
        return done != 0;
      },
      peer);
}

#else

void Messages::post(PlanStep const&, Addresses const&) {}
void Messages::finish(Message const&, int) {}

#endif

void Messages::finish_receive(PlanStep const& step, std::size_t i, Addresses const& addresses) {
  Move const& move = step.receives[i];
  finish(m_receives[i], process_of(move.source));
  if (!m_receives[i].host) return;
  auto const bytes = std::size_t(move.count * addresses.item);
  Kokkos::deep_copy(space_of(move.destination), DeviceBytes(addresses.landing(move), bytes),
                    HostBytes(m_receives[i].host, bytes));
}

void Messages::finish_sends(PlanStep const& step) {
  for (std::size_t i = 0; i < step.sends.size(); ++i) finish(m_sends[i], process_of(step.sends[i].destination));
}

}  // namespace lockstep::comm
