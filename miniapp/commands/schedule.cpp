// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <map>

#include "comm/prove.hpp"
#include "miniapp/commands/command.hpp"
#include "miniapp/commands/cost_options.hpp"
#include "miniapp/commands/quantities.hpp"
#include "miniapp/report.hpp"
#include "miniapp/runtime.hpp"

namespace lockstep {
namespace {

namespace po = boost::program_options;
using Json   = nlohmann::ordered_json;
using comm::Action;
using comm::Proof;
using comm::Schedule;
using comm::Side;
using comm::Slot;
using comm::Transfer;

constexpr std::size_t printed_transfers  = 400;
constexpr std::size_t recorded_transfers = 200'000;
constexpr int printed_ranks              = 16;  // of an association

std::string hex(std::uint64_t id) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(id));
  return text;
}

std::string what(Transfer const& t) {
  if (t.action == Action::copy) return "copy";
  return t.side == Side::left ? "arriving + own" : "own + arriving";
}

// "0->1 c2", "0->1 c0-3", "0->1 c2@1" into scratch place 1, "1 c2@1" from it, in the rank.
std::string text(Transfer const& t) {
  std::string chunks = " c" + std::to_string(t.chunk);
  if (t.count > 1) chunks += "-" + std::to_string(t.chunk + t.count - 1);
  if (t.source_slot == Slot::scratch || t.destination_slot == Slot::scratch) chunks += "@" + std::to_string(t.place);
  std::string const from = std::to_string(t.source);
  return (t.is_local() ? from : from + "->" + std::to_string(t.destination)) + chunks;
}

void print_steps(std::FILE* out, Schedule const& schedule) {
  if (schedule.transfers.size() > printed_transfers) {
    std::fprintf(out, "%d steps with %zu transfers: too many to print, --json records up to %zu\n", schedule.steps,
                 schedule.transfers.size(), recorded_transfers);
    return;
  }
  constexpr std::size_t width = 100;
  std::string line;
  auto const flush = [&] {
    if (!line.empty()) std::fprintf(out, "%s\n", line.c_str());
    line.clear();
  };
  Transfer const* previous = nullptr;
  for (Transfer const& t : schedule.transfers) {
    bool const new_step = !previous || t.step != previous->step;
    if (new_step || what(t) != what(*previous)) {
      flush();
      char begin[48];
      std::snprintf(begin, sizeof begin, "%-10s%-15s", new_step ? ("step " + std::to_string(t.step)).c_str() : "",
                    what(t).c_str());
      line = begin;
    } else if (line.size() + text(t).size() + 3 > width) {
      flush();
      line.assign(25, ' ');
    }
    line += "  " + text(t);
    previous = &t;
  }
  flush();
}

// Which of the associations the chunks have: "(0 + 1)" -> chunks.
std::vector<std::pair<std::int32_t, std::vector<std::int32_t>>> associations(Proof const& proof) {
  std::vector<std::pair<std::int32_t, std::vector<std::int32_t>>> found;
  std::map<std::uint64_t, std::size_t> index;
  for (std::int32_t chunk = 0; chunk < proof.chunks; ++chunk) {
    std::int32_t const expression = proof.result(0, chunk);
    auto const [entry, is_new]    = index.emplace(proof.expressions[expression].order, found.size());
    if (is_new) found.push_back({expression, {}});
    found[entry->second].second.push_back(chunk);
  }
  return found;
}

// The fewer ranks, from 1 on, whose association this one extends: all of them, or up to where it stops.
std::int64_t extends_up_to(Proof const& proof, std::string const& algorithm, comm::ScheduleRequest request) {
  for (request.ranks = 1; request.ranks < proof.ranks; ++request.ranks)
    if (!comm::extends(proof, comm::prove(comm::make_schedule(algorithm, request), request.elements)))
      return request.ranks - 1;
  return proof.ranks - 1;
}

void print_proof(std::FILE* out, Proof const& proof, std::int64_t extends, std::size_t transfers, int element_bytes) {
  auto const say = [&](char const* key, std::string const& value) {
    std::fprintf(out, "%-14s: %s\n", key, value.c_str());
  };
  if (!proof.correct) return say("fault", proof.fault);
  say("proved", "every rank ends with every contribution once, in every chunk");
  say("equal bits", proof.equal_bits ? "yes, on all ranks" : "no: ranks add in different orders");
  if (proof.orders == 1) {
    say("association", proof.ranks <= printed_ranks ? proof.text(proof.result(0, 0)) + ", for every element"
                                                    : "one, for every element");
    if (proof.ranks > 2)
      say("fewer ranks", extends == proof.ranks - 1
                             ? "the same association, with the absent ranks left out, for every smaller k"
                             : "another association from k = " + std::to_string(extends + 1) + " on");
  } else {
    say("associations", std::to_string(proof.orders) + ", which depend on the chunk");
    if (proof.ranks <= printed_ranks)
      for (auto const& [expression, chunks] : associations(proof))
        say("", proof.text(expression) + ", chunk " + std::to_string(chunks.front()) +
                    (chunks.size() > 1 ? " and " + std::to_string(chunks.size() - 1) + " more" : ""));
  }
  say("order id", hex(proof.order_id));
  say("steps", std::to_string(proof.steps) + " with " + std::to_string(transfers) + " transfers of " +
                   std::to_string(proof.chunks) + " chunks; up to " + std::to_string(proof.most_messages_in_step) +
                   " messages a rank and step");
  say("deadlock", std::string("none when a step's messages are posted together; with blocking sends ") +
                      (proof.blocking_deadlock_step < 0 ? "none either"
                                                        : "in step " + std::to_string(proof.blocking_deadlock_step)));
  say("staging", std::to_string(proof.staged_transfers) + " transfers write what their step reads");
  auto const bytes = [&](std::int64_t elements) { return bytes_text(double(elements) * element_bytes); };
  say("busiest rank", "sends " + bytes(proof.busiest.sent) + " in " + std::to_string(proof.busiest.messages_sent) +
                          " messages, receives " + bytes(proof.busiest.received) + " in " +
                          std::to_string(proof.busiest.messages_received) + ", adds " + bytes(proof.busiest.reduced));
}

Json transfers_json(Schedule const& schedule) {
  if (schedule.transfers.size() > recorded_transfers) return nullptr;
  Json list       = Json::array();
  auto const slot = [](Slot s) { return s == Slot::data ? "data" : "scratch"; };
  for (Transfer const& t : schedule.transfers)
    list.push_back({{"step", t.step},
                    {"source", t.source},
                    {"destination", t.destination},
                    {"chunk", t.chunk},
                    {"count", t.count},
                    {"action", t.action == Action::copy ? "copy" : "reduce"},
                    {"side", t.side == Side::left ? "left" : "right"},
                    {"source_slot", slot(t.source_slot)},
                    {"destination_slot", slot(t.destination_slot)},
                    {"place", t.place}});
  return list;
}

Json proof_json(Proof const& proof, std::int64_t extends, int element_bytes) {
  if (!proof.correct) return {{"ok", false}, {"fault", proof.fault}};
  Json json{
      {"ok", true},
      {"fault", nullptr},
      {"equal_bits", proof.equal_bits},
      {"orders", proof.orders},
      {"order_id", hex(proof.order_id)},
      {"same_for_fewer_ranks", extends == proof.ranks - 1},
      {"blocking_deadlock_step", proof.blocking_deadlock_step < 0 ? Json(nullptr) : Json(proof.blocking_deadlock_step)},
      {"staged_transfers", proof.staged_transfers},
      {"most_messages_in_step", proof.most_messages_in_step},
      {"bytes_sent_max", proof.busiest.sent * element_bytes},
      {"bytes_received_max", proof.busiest.received * element_bytes},
      {"bytes_reduced_max", proof.busiest.reduced * element_bytes},
      {"messages_sent_max", proof.busiest.messages_sent}};
  json["associations"] = nullptr;
  if (proof.ranks <= printed_ranks) {
    json["associations"] = Json::array();
    for (auto const& [expression, chunks] : associations(proof))
      json["associations"].push_back({{"sum", proof.text(expression)}, {"chunks", chunks}});
  }
  json["ranks"] = Json::array();
  for (auto const& t : proof.traffic)
    json["ranks"].push_back({{"bytes_sent", t.sent * element_bytes},
                             {"bytes_received", t.received * element_bytes},
                             {"bytes_reduced", t.reduced * element_bytes},
                             {"messages_sent", t.messages_sent},
                             {"messages_received", t.messages_received}});
  return json;
}

// Chrome's trace format, which Perfetto reads: one process per rank, with a row each for sending, receiving and
// computing.
Json trace(std::vector<comm::TimelineEvent> const& events, int ranks) {
  using Kind               = comm::TimelineEvent::Kind;
  char const* const rows[] = {"send", "receive", "compute"};
  Json list                = Json::array();
  for (int rank = 0; rank < ranks; ++rank) {
    list.push_back({{"name", "process_name"},
                    {"ph", "M"},
                    {"pid", rank},
                    {"tid", 0},
                    {"args", {{"name", "rank " + std::to_string(rank)}}}});
    for (int row = 0; row < 3; ++row)
      list.push_back(
          {{"name", "thread_name"}, {"ph", "M"}, {"pid", rank}, {"tid", row}, {"args", {{"name", rows[row]}}}});
  }
  for (auto const& event : events) {
    std::string const peer = std::to_string(event.peer);
    std::string const name = event.kind == Kind::send      ? "to " + peer
                             : event.kind == Kind::receive ? "from " + peer
                             : event.kind == Kind::reduce  ? "add"
                                                           : "copy";
    int const row          = event.kind == Kind::send ? 0 : event.kind == Kind::receive ? 1 : 2;
    list.push_back(
        {{"name", name},
         {"cat", rows[row]},
         {"ph", "X"},
         {"ts", event.start * 1e6},
         {"dur", (event.end - event.start) * 1e6},
         {"pid", event.rank},
         {"tid", row},
         {"args", {{"step", event.step}, {"chunk", event.chunk}, {"chunks", event.count}, {"bytes", event.bytes}}}});
  }
  return {{"displayTimeUnit", "ns"}, {"traceEvents", list}};
}

ExitCode run(Arguments const& arguments) {
  std::int64_t ranks, elements;
  std::string algorithm, json, trace_file;
  bool force = false;
  CostOptions cost;
  po::options_description options("Options");
  auto add = options.add_options();
  add("algorithm,a", po::value(&algorithm)->required(), "a name, such as ring; a wrong one lists all");
  add("ranks,k", po::value(&ranks)->required(), "number of ranks, up to 512");
  add("elements,n", po::value(&elements)->required(), "length of the vector");
  add("json", po::value(&json), "write a record to this file (-: standard output)");
  add("trace", po::value(&trace_file), "write the predicted timeline to this file, for Perfetto");
  add("force", po::bool_switch(&force), "replace existing files");
  cost.add_to(options);
  po::variables_map values;
  if (!parse(schedule_command, options, arguments, values)) return ExitCode::success;
  cost.check();
  in_range("--ranks", ranks, 1, 512);
  in_range("--elements", elements, 0, most_bytes / cost.element_bytes());
  auto const names = parse_algorithms("--algorithm", algorithm);
  LOCKSTEP_THROW_IF(names.size() != 1, ExitCode::usage, "--algorithm " + algorithm + "; expected one name");
  auto const request = cost.request(ranks, elements);
  LOCKSTEP_THROW_IF(!trace_file.empty() && !cost.is_network(), ExitCode::usage,
                    "--trace " + trace_file + "; expected --model network with it");
  check_targets({{"--json", json}, {"--trace", trace_file}}, force);

  Runtime const runtime;
  if (!runtime.is_root()) return ExitCode::success;
  std::FILE* const out       = json == "-" || trace_file == "-" ? stderr : stdout;
  Schedule const schedule    = comm::make_schedule(names[0], request);
  Proof const proof          = comm::prove(schedule, elements);
  int const element_bytes    = cost.element_bytes();
  bool const compare         = proof.correct && proof.orders == 1 && ranks <= 64;
  std::int64_t const extends = compare ? extends_up_to(proof, names[0], request) : 0;
  auto const time            = cost.predict(schedule, request);
  auto const bounds          = cost.lower_bounds(request);

  std::fprintf(out, "%s over %lld ranks, %lld elements of %d bytes, schedule %s\n\n", names[0].c_str(),
               static_cast<long long>(ranks), static_cast<long long>(elements), element_bytes,
               hex(schedule.hash()).c_str());
  print_steps(out, schedule);
  std::fprintf(out, "\n");
  print_proof(out, proof, extends, schedule.transfers.size(), element_bytes);
  std::fprintf(out, "\nmachine       : %s\n", cost.text().c_str());
  std::fprintf(out, "predicted     : %s = latency %s + link %s + memory %s + compute %s\n",
               seconds_text(time.sum()).c_str(), seconds_text(time.latency).c_str(), seconds_text(time.link).c_str(),
               seconds_text(time.memory).c_str(), seconds_text(time.compute).c_str());
  if (time.sum() > 0)
    std::fprintf(out, "lower bound   : %s by %s, %.0f %% of the predicted time\n", seconds_text(bounds.max()).c_str(),
                 comm::name(bounds.largest()), 100 * bounds.max() / time.sum());
  std::fprintf(out, "VERIFICATION: %s\n", proof.correct && proof.equal_bits ? "PASSED" : "FAILED");

  if (!json.empty()) {
    Json record        = new_record("schedule", runtime);
    record["algo"]     = names[0];
    record["ranks"]    = ranks;
    record["count"]    = elements;
    record["bytes"]    = elements * element_bytes;
    record["schedule"] = {{"hash", hex(schedule.hash())},
                          {"steps", schedule.steps},
                          {"chunks", schedule.chunks},
                          {"places", schedule.places},
                          {"transfers", schedule.transfers.size()},
                          {"list", transfers_json(schedule)}};
    record["proof"]    = proof_json(proof, extends, element_bytes);
    record["machine"]  = cost.json();
    record["model"]    = cost_json(time, bounds);
    write_json(json, record);
  }
  if (!trace_file.empty())
    write_json(trace_file, trace(comm::timeline(schedule, request, element_bytes, cost.network()), int(ranks)));
  return proof.correct && proof.equal_bits ? ExitCode::success : ExitCode::wrong_result;
}

}  // namespace

Command const schedule_command{"schedule", "print an allreduce schedule's steps, its proof and its predicted time",
                               run};

}  // namespace lockstep
