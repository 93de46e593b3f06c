// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/shared_memory.hpp"

#include <algorithm>
#include <new>

namespace lockstep::comm {
namespace {

constexpr std::int64_t page = 4096;
std::int64_t whole_pages(std::int64_t bytes) {
  return (bytes + page - 1) / page * page;
}

}  // namespace

SharedMemory::SharedMemory(World& world, int local_size, bool wanted) : m_world(world), m_local_size(local_size) {
  if (!wanted || world.processes() == 1) return;
  m_control = world.allocate_shared(
      whole_pages(std::int64_t(sizeof(Control)) + 2 * local_size * std::int64_t(sizeof(Descriptor))) +
      2 * local_size * inline_bytes);
  if (!usable()) return;
  new (m_control.bases[std::size_t(world.process())]) Control;
  Descriptor* const first = &descriptor(world.process() * local_size);
  for (int i = 0; i < 2 * local_size; ++i) new (first + i) Descriptor;
  m_windows.resize(1);
  world.barrier("start");
}

SharedMemory::~SharedMemory() {
  if (!usable() || !m_world.can_part()) return;
  m_world.barrier("end");
  for (auto& window : m_windows) m_world.release_shared(window.shared);
  m_world.release_shared(m_control);
}

bool SharedMemory::reserve(std::int64_t bytes_per_device) {
  if (bytes_per_device <= m_slot_bytes) return true;
  // Growing is slow, untouched memory costs nothing.
  bytes_per_device = std::max({bytes_per_device, 2 * m_slot_bytes, std::int64_t(1) << 20});
  m_world.barrier("reserve");
  Window slots;
  slots.bytes  = whole_pages(bytes_per_device) * m_local_size;
  slots.shared = m_world.allocate_shared(slots.bytes);
  if (slots.shared.bases.empty()) return false;  // what there was stays
  m_world.release_shared(m_windows[0].shared);
  m_windows[0] = std::move(slots);
  m_slot_bytes = whole_pages(bytes_per_device);
  return true;
}

char* SharedMemory::slot(int rank) const {
  if (m_slot_bytes == 0) return nullptr;
  auto* const base = reinterpret_cast<char*>(m_windows[0].shared.bases[std::size_t(rank / m_local_size)]);
  return base ? base + rank % m_local_size * m_slot_bytes : nullptr;
}

std::vector<char*> SharedMemory::allocate(std::int64_t bytes_per_device) {
  std::vector<char*> memory(std::size_t(m_local_size), nullptr);
  if (!usable()) return memory;
  m_world.barrier("allocate");
  Window window;
  std::int64_t const each = whole_pages(std::max<std::int64_t>(bytes_per_device, 1));
  window.bytes            = each * m_local_size;
  window.shared           = m_world.allocate_shared(window.bytes);
  if (window.shared.bases.empty()) return memory;
  for (int d = 0; d < m_local_size; ++d)
    memory[std::size_t(d)] = reinterpret_cast<char*>(window.shared.bases[std::size_t(m_world.process())]) + d * each;
  m_windows.push_back(std::move(window));
  return memory;
}

SharedMemory::Descriptor& SharedMemory::descriptor(int rank) const {
  auto* const base = m_control.bases[std::size_t(rank / m_local_size)] + sizeof(Control);
  return reinterpret_cast<Descriptor*>(base)[m_turn * m_local_size + rank % m_local_size];
}

char* SharedMemory::inline_area(int rank) const {
  auto* const base = reinterpret_cast<char*>(m_control.bases[std::size_t(rank / m_local_size)]) +
                     whole_pages(std::int64_t(sizeof(Control)) + 2 * m_local_size * std::int64_t(sizeof(Descriptor)));
  return base + (m_turn * m_local_size + rank % m_local_size) * inline_bytes;
}

SharedMemory::Place SharedMemory::find(void const* pointer, std::int64_t bytes) const {
  auto const* const first = static_cast<std::byte const*>(pointer);
  for (std::size_t w = 0; w < m_windows.size(); ++w) {
    if (m_windows[w].shared.bases.empty()) continue;
    auto const* const base = m_windows[w].shared.bases[std::size_t(m_world.process())];
    if (first >= base && first + bytes <= base + m_windows[w].bytes) return {std::int64_t(w), first - base};
  }
  return {};
}

char* SharedMemory::resolve(int rank, Place place) const {
  if (place.window < 0) return nullptr;
  auto* const base = m_windows[std::size_t(place.window)].shared.bases[std::size_t(rank / m_local_size)];
  return base ? reinterpret_cast<char*>(base) + place.offset : nullptr;
}

char* SharedMemory::counterpart(void const* pointer, int local, int rank) const {
  Place place = find(pointer, 1);
  if (place.window < 0) return nullptr;
  place.offset += (rank % m_local_size - local) * (m_windows[std::size_t(place.window)].bytes / m_local_size);
  return resolve(rank, place);
}

void SharedMemory::describe(int local, void const* input, void const* output, std::int64_t bytes) {
  Descriptor& mine = descriptor(m_world.process() * m_local_size + local);
  mine.input       = find(input, bytes);
  mine.output      = input == output ? mine.input : find(output, bytes);
}

}  // namespace lockstep::comm
