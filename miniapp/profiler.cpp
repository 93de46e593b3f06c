// SPDX-License-Identifier: Apache-2.0
#include "miniapp/profiler.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <unordered_map>

#include "kernels/error.hpp"
#include "kernels/kokkos_compat.hpp"
#include "miniapp/report.hpp"

namespace lockstep {
namespace {

namespace Tools = Kokkos::Tools::Experimental;
using Json      = nlohmann::ordered_json;

constexpr std::size_t most_events = 4 << 20;
constexpr int host                = -1;  // a track; the others are devices by their rank
constexpr char device_prefix[]    = "lockstep::device ";

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Open {
  int label, first, last;  // tracks
  std::int64_t begin, inside = 0;
  bool is_device        = false;
  std::int64_t launches = 0;
};

struct Event {
  int label, track;
  std::int64_t begin, duration;
};

// What one thread does.
struct Recorder {
  bool keep_events = false;
  std::unordered_map<std::string, int> numbers;
  std::vector<std::string> labels;
  std::vector<Open> open;
  std::vector<Event> events;
  std::int64_t dropped = 0;
  std::map<std::string, Timer> totals;

  int number_of(char const* label) {
    auto const [place, fresh] = numbers.try_emplace(label, int(labels.size()));
    if (fresh) labels.push_back(label);
    return place->second;
  }

  // A label's first word; details follow it.
  static std::string name_of(std::string const& label) {
    return label.rfind("lockstep::", 0) == 0 ? label.substr(0, label.find(' ')) : label;
  }

  void begin(char const* label) {
    Open entry{number_of(label), host, host, now_ns()};
    entry.is_device = std::string(label).rfind(device_prefix, 0) == 0;
    if (entry.is_device) {  // "lockstep::device 2 to 5"
      char* rest  = nullptr;
      entry.first = int(std::strtol(label + sizeof device_prefix - 1, &rest, 10));
      entry.last  = int(std::strtol(rest + 4, nullptr, 10));
    } else if (!open.empty()) {
      entry.first = open.back().first;
      entry.last  = open.back().last;
    }
    open.push_back(entry);
  }

  void begin_kernel(char const* label) {
    begin(label);
    open.back().launches = 1;
  }

  void end() {
    if (open.empty()) return;  // begun before the profiler was there
    Open const entry            = open.back();
    std::int64_t const duration = now_ns() - entry.begin;
    open.pop_back();
    if (!open.empty()) open.back().launches += entry.launches;
    if (entry.is_device) {  // no work of its own, but that of what ran inside
      if (!open.empty()) open.back().inside += entry.inside;
      return;
    }
    if (!open.empty()) open.back().inside += duration;
    auto const name = name_of(labels[std::size_t(entry.label)]);
    auto& total     = totals[name];
    total.own += double(duration - entry.inside) * 1e-9;
    // A region around the one kernel that has its name is the same call.
    if (std::none_of(open.begin(), open.end(),
                     [&](Open const& outer) { return name_of(labels[std::size_t(outer.label)]) == name; })) {
      ++total.calls;
      total.launches += entry.launches;
      total.seconds += double(duration) * 1e-9;
    }
    if (!keep_events) return;
    for (int track = entry.first; track <= entry.last; ++track)
      if (events.size() < most_events)
        events.push_back({entry.label, track, entry.begin, duration});
      else
        ++dropped;
  }

  void add_events(int process, std::int64_t origin, bool side, Json& all) const {
    auto const id      = [&](int track) { return 2 * (track + 1) + side; };
    auto const name_it = [&](char const* what, int track, std::string const& name) {
      all.push_back({{"ph", "M"}, {"pid", process}, {"tid", id(track)}, {"name", what}, {"args", {{"name", name}}}});
    };
    std::vector<int> tracks;
    if (!side) {
      name_it("process_name", host, "process " + std::to_string(process));
      tracks.push_back(host);
    }
    for (auto const& event : events) tracks.push_back(event.track);
    std::sort(tracks.begin(), tracks.end());
    tracks.erase(std::unique(tracks.begin(), tracks.end()), tracks.end());
    for (int const track : tracks)
      name_it("thread_name", track,
              (track == host ? "host" : "device " + std::to_string(track)) + (side ? ", communication" : ""));
    for (auto const& event : events) {
      auto const& label = labels[std::size_t(event.label)];
      auto const name   = name_of(label);
      Json entry        = {{"ph", "X"},
                           {"pid", process},
                           {"tid", id(event.track)},
                           {"name", name},
                           {"ts", double(event.begin - origin) * 1e-3},
                           {"dur", double(event.duration) * 1e-3}};
      if (name.size() < label.size()) entry["args"] = {{"detail", label.substr(name.size() + 1)}};
      all.push_back(std::move(entry));
    }
  }
};

}  // namespace

struct Profiler::Impl {
  static Impl* active;

  decltype(Tools::get_callbacks()) before = Tools::get_callbacks();
  std::int64_t origin                     = now_ns();
  Recorder main, side;  // the side thread's is read while that thread is idle

  void begin(char const* label) { main.begin(label); }
  void begin_kernel(char const* label) { main.begin_kernel(label); }
  void end() { main.end(); }

  // Callbacks. Those that were there before come first at begin and last at end.
  static void begin_for(char const* label, std::uint32_t device, std::uint64_t* id) {
    if (active->before.begin_parallel_for) active->before.begin_parallel_for(label, device, id);
    active->begin_kernel(label);
  }
  static void end_for(std::uint64_t id) {
    active->end();
    if (active->before.end_parallel_for) active->before.end_parallel_for(id);
  }
  static void begin_reduce(char const* label, std::uint32_t device, std::uint64_t* id) {
    if (active->before.begin_parallel_reduce) active->before.begin_parallel_reduce(label, device, id);
    active->begin_kernel(label);
  }
  static void end_reduce(std::uint64_t id) {
    active->end();
    if (active->before.end_parallel_reduce) active->before.end_parallel_reduce(id);
  }
  static void begin_scan(char const* label, std::uint32_t device, std::uint64_t* id) {
    if (active->before.begin_parallel_scan) active->before.begin_parallel_scan(label, device, id);
    active->begin_kernel(label);
  }
  static void end_scan(std::uint64_t id) {
    active->end();
    if (active->before.end_parallel_scan) active->before.end_parallel_scan(id);
  }
  static void push(char const* label) {
    if (active->before.push_region) active->before.push_region(label);
    active->begin(label);
  }
  static void pop() {
    active->end();
    if (active->before.pop_region) active->before.pop_region();
  }
  static void begin_copy(Kokkos_Profiling_SpaceHandle to_space, char const* to, void const* to_data,
                         Kokkos_Profiling_SpaceHandle from_space, char const* from, void const* from_data,
                         std::uint64_t bytes) {
    if (active->before.begin_deep_copy)
      active->before.begin_deep_copy(to_space, to, to_data, from_space, from, from_data, bytes);
    active->begin("Kokkos::deep_copy");
  }
  static void end_copy() {
    active->end();
    if (active->before.end_deep_copy) active->before.end_deep_copy();
  }

  static constexpr SideListener side_listener{[](char const* label) { active->side.begin(label); },
                                              [] { active->side.end(); }};
};

Profiler::Impl* Profiler::Impl::active = nullptr;

Profiler::Profiler(bool keep_events) : m_impl(std::make_unique<Impl>()) {
  LOCKSTEP_THROW_IF(Impl::active, ExitCode::usage, "two profilers at once; expected one");
  m_impl->main.keep_events = m_impl->side.keep_events = keep_events;
  Impl::active                                        = m_impl.get();
  side_listener                                       = &Impl::side_listener;
  Tools::set_begin_parallel_for_callback(Impl::begin_for);
  Tools::set_end_parallel_for_callback(Impl::end_for);
  Tools::set_begin_parallel_reduce_callback(Impl::begin_reduce);
  Tools::set_end_parallel_reduce_callback(Impl::end_reduce);
  Tools::set_begin_parallel_scan_callback(Impl::begin_scan);
  Tools::set_end_parallel_scan_callback(Impl::end_scan);
  Tools::set_push_region_callback(Impl::push);
  Tools::set_pop_region_callback(Impl::pop);
  Tools::set_begin_deep_copy_callback(Impl::begin_copy);
  Tools::set_end_deep_copy_callback(Impl::end_copy);
}

Profiler::~Profiler() {
  side_listener = nullptr;
  Tools::set_callbacks(m_impl->before);
  Impl::active = nullptr;
}

std::vector<Timer> Profiler::timers() const {
  auto totals = m_impl->main.totals;
  for (auto const& [name, timer] : m_impl->side.totals) {
    totals[name].calls += timer.calls;
    totals[name].launches += timer.launches;
    totals[name].seconds += timer.seconds;
    totals[name].own += timer.own;
  }
  std::vector<Timer> all;
  for (auto const& [name, timer] : totals) {
    all.push_back(timer);
    all.back().name = name;
  }
  std::stable_sort(all.begin(), all.end(), [](Timer const& a, Timer const& b) { return a.own > b.own; });
  return all;
}

Json Profiler::timeline(comm::Communicator& world) const {
  Json own = Json::array();
  m_impl->main.add_events(world.process(), m_impl->origin, false, own);
  m_impl->side.add_events(world.process(), m_impl->origin, true, own);
  Json mine          = {{"events", own}, {"dropped", m_impl->main.dropped + m_impl->side.dropped}};
  auto const texts   = world.gather(as_text(mine));
  Json events        = Json::array();
  std::int64_t drops = 0;
  for (auto const& text : texts) {
    auto const part = Json::parse(text);
    for (auto const& event : part["events"]) events.push_back(event);
    drops += part["dropped"].get<std::int64_t>();
  }
  return {{"traceEvents", events}, {"displayTimeUnit", "ms"}, {"otherData", {{"events_dropped", drops}}}};
}

double launches_of(std::vector<Timer> const& timers, std::string const& name) {
  for (auto const& timer : timers)
    if (timer.name == name && timer.calls > 0) return double(timer.launches) / double(timer.calls);
  return 0;
}

std::string as_table(std::vector<Timer> const& timers) {
  double whole = 0;
  for (auto const& timer : timers) whole += timer.own;
  std::string text = "own seconds   share     seconds     calls  what\n";
  for (auto const& timer : timers) {
    char line[128];
    std::snprintf(line, sizeof line, "%11.4f  %5.1f %%  %10.4f  %8lld  ", timer.own,
                  whole > 0 ? 100 * timer.own / whole : 0, timer.seconds, static_cast<long long>(timer.calls));
    text += line + timer.name + "\n";
  }
  return text;
}

Json as_json(std::vector<Timer> const& timers) {
  Json all = Json::array();
  for (auto const& timer : timers)
    all.push_back({{"name", timer.name},
                   {"calls", timer.calls},
                   {"launches", timer.launches},
                   {"seconds", timer.seconds},
                   {"own_seconds", timer.own}});
  return all;
}

}  // namespace lockstep
