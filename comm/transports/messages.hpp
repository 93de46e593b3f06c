// SPDX-License-Identifier: Apache-2.0
// The messages of a step over MPI point to point, through host memory where MPI cannot read the device's.
#pragma once
#include "comm/communicator.hpp"
#include "comm/transports/choice.hpp"
#include "comm/transports/plan.hpp"
#include "comm/transports/world.hpp"

#include <cstddef>
#include <vector>

namespace lockstep::comm {

// Collective: whether a tiny message went whole from this memory to another process's. What MPI makes of memory that it
// cannot read is up to MPI.
bool probe_message(World& world, Space const& space);

class Messages {
 public:
  Messages(World& world, std::vector<Space> const& spaces, CommunicatorOptions const& options);

  // Whether they pass through host memory, and why.
  Staging const& staging() const { return m_staging; }

  // Call before the first step of a plan whose steps exchange up to `bytes`.
  void reserve(std::int64_t bytes);

  // Sources must be ready to be read; destinations and staging to be written.
  void post(PlanStep const& step, Addresses const& addresses);
  // Returns when receive i of the step is where Addresses::landing says (enqueued on the destination's instance).
  void finish_receive(PlanStep const& step, std::size_t i, Addresses const& addresses);
  // Returns when the sources may be overwritten.
  void finish_sends(PlanStep const& step);

 private:
  struct Message {  // in pieces that MPI's int counts can hold
    std::size_t first = 0, pieces = 0;
    char* host = nullptr;  // where it passes through host memory
  };
  Staging find_staging(bool asked);
  Message post(char* memory, std::int64_t bytes, int peer, bool receive);
  void finish(Message const& message, int peer);
  int process_of(int rank) const { return rank / int(m_spaces.size()); }
  Space const& space_of(int rank) const { return m_spaces[std::size_t(rank) % m_spaces.size()]; }

  World& m_world;
  std::vector<Space> const& m_spaces;
  std::int64_t m_max_bytes;
  Staging m_staging;
  Kokkos::View<char*, PinnedMemory> m_host;
  std::vector<Message> m_sends, m_receives;
#ifdef LOCKSTEP_HAVE_MPI
  std::vector<MPI_Request> m_requests;
#endif
};

}  // namespace lockstep::comm
