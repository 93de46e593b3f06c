// SPDX-License-Identifier: Apache-2.0
// A recorded fake of the few calls of CUDA's runtime and of NCCL that Lockstep makes, for machines without a GPU. It
// records every call, and really moves data between the ranks' host memory. Work waits on its stream until execute(),
// which lets the streams run in a random order and so finds order that the code under test wrongly takes for granted: a
// send and its receive meet when both are at the head of their streams, within their groups in any order. A graph keeps
// the function that enqueues its work and calls it at each launch, since kernels of the host cannot be held back: what
// a real capture makes of kernels and their arguments is not tested by it.
#pragma once
#include "comm/transports/nccl.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::comm {

class FakeGpus final : public DeviceCalls, public NcclCalls {
 public:
  // Which calls fail, by name, and with which result; names of streams are "s0", "s1" ... in the order of their making.
  std::map<std::string, int> failures;
  std::map<int, int> async_errors;  // by rank
  std::vector<std::string> log;
  bool peers          = true;
  int gpu_count       = 8;
  int nccl_version    = 22203;
  bool run_at_once    = false;  // copies of the device runtime do not wait on their stream
  bool same_bus       = false;  // every GPU is the same one
  bool capture_throws = false;
  int open_streams    = 0;
  int live_comms      = 0;
  int live_graphs = 0, live_programs = 0, live_events = 0;
  std::string device = "fake";

  std::string text(int result) override { return "fake error " + std::to_string(result); }

  // DeviceCalls
  std::string version() override { return device; }
  int count(int& gpus) override {
    gpus = gpu_count;
    return failed("count");
  }
  int describe(int gpu, Gpu& found) override {
    found = {"Fake GPU", "bus " + std::to_string(same_bus ? 0 : gpu)};
    return failed("describe");
  }
  int use(int gpu) override {
    m_gpu = gpu;
    return failed("use");
  }
  int create_stream(Stream& stream) override {
    auto const lock = locked();
    m_streams.push_back(std::make_unique<Queue>());
    m_streams.back()->name = "s" + std::to_string(m_streams.size() - 1);
    m_streams.back()->gpu  = m_gpu;
    stream                 = m_streams.back().get();
    ++open_streams;
    note("create " + m_streams.back()->name + " on GPU " + std::to_string(m_gpu));
    return failed("create_stream");
  }
  int destroy_stream(Stream stream) override {
    auto const lock = locked();
    --open_streams;
    note("destroy " + queue(stream).name);
    return 0;
  }
  int capturing_streams() const {
    return int(std::count_if(m_streams.begin(), m_streams.end(), [](auto const& stream) { return stream->capturing; }));
  }
  int can_access(int, int, bool& can) override {
    can = peers;
    return failed("can_access");
  }
  int enable_access(int peer) override {
    note("access GPU " + std::to_string(m_gpu) + " to " + std::to_string(peer));
    return failed("enable_access");
  }
  int copy(Stream stream, void* to, void const* from, std::size_t bytes) override {
    auto const lock = locked();
    note(queue(stream).name + ": copy between GPUs, " + std::to_string(bytes) + " bytes");
    auto const work = [=] { std::memcpy(to, from, bytes); };
    if (run_at_once || m_replays)
      work();
    else
      enqueue(stream, work);
    return failed("copy");
  }
  int create_event(Event& event) override {
    event = new std::shared_ptr<Mark>(std::make_shared<Mark>());
    ++live_events;
    return failed("create_event");
  }
  int destroy_event(Event event) override {
    auto const lock = locked();
    --live_events;
    delete static_cast<std::shared_ptr<Mark>*>(event);
    return 0;
  }
  int record(Event event, Stream stream) override {
    auto const lock = locked();
    if (m_replays) return 0;
    auto const mark = mark_of(event);
    mark->source    = &queue(stream);
    mark->captured  = mark->source->capturing;
    if (!mark->captured) enqueue(stream, [mark, number = ++mark->recorded] { mark->done = number; });
    return failed("record");
  }
  int query(Event event, bool& done) override {
    auto const lock = locked();
    auto const mark = mark_of(event);
    done            = mark->done == mark->recorded;
    return failed("query");
  }
  int wait(Stream stream, Event event) override {
    auto const lock = locked();
    if (m_replays) return 0;
    Queue& waiting  = queue(stream);
    auto const mark = mark_of(event);
    note(waiting.name + ": wait for " + (mark->source ? mark->source->name : "nothing"));
    if (int const result = failed("wait")) return result;
    if (waiting.capturing && !mark->captured) return 905;  // for work that is not in the capture
    if (mark->captured) {
      waiting.capturing = true;
      if (&waiting == m_origin) mark->source->came_back = true;
    } else {
      Entry entry;
      entry.run   = [] {};
      entry.ready = [mark, number = mark->recorded] { return mark->done >= number; };
      waiting.work.push_back(std::move(entry));
    }
    return 0;
  }
  int begin_capture(Stream stream) override {
    auto const lock = locked();
    note(queue(stream).name + ": begin capture");
    if (int const result = failed("begin_capture")) return result;
    m_origin            = &queue(stream);
    m_origin->capturing = m_origin->came_back = true;
    m_kept                                    = nullptr;
    return 0;
  }
  void capture(std::function<void()> const& enqueue) override {
    if (!m_origin) throw std::logic_error("a capture that was not begun");
    if (capture_throws) throw std::runtime_error("a kernel that cannot be captured");
    m_kept = enqueue;
  }
  int end_capture(Stream stream, Graph& graph) override {
    auto const lock = locked();
    note(queue(stream).name + ": end capture");
    if (&queue(stream) != m_origin) throw std::logic_error("the end of another stream's capture");
    m_origin   = nullptr;
    int result = failed("end_capture");
    for (auto const& each : m_streams) {
      if (each->capturing && !each->came_back) result = 904;
      each->capturing = each->came_back = false;
    }
    if (result) return result;
    ++live_graphs;
    graph = new std::function<void()>(m_kept);
    return 0;
  }
  int instantiate(Graph graph, Program& program) override {
    note("instantiate");
    if (int const result = failed("instantiate")) return result;
    ++live_programs;
    program = new std::function<void()>(*static_cast<std::function<void()>*>(graph));
    return 0;
  }
  int launch(Program program, Stream stream) override {
    auto const lock = locked();
    note(queue(stream).name + ": launch");
    if (int const result = failed("launch")) return result;
    auto const work = [this, enqueue = *static_cast<std::function<void()>*>(program)] {
      m_replays = true;
      try {
        enqueue();
      } catch (std::exception const& error) {  // no graph could stop there
        throw std::logic_error(std::string("the host looked at a graph's work: ") + error.what());
      }
      m_replays = false;
    };
    if (run_at_once)
      work();
    else
      enqueue(stream, work);
    return 0;
  }
  int destroy_graph(Graph graph) override {
    note("destroy graph");
    --live_graphs;
    delete static_cast<std::function<void()>*>(graph);
    return 0;
  }
  int destroy_program(Program program) override {
    note("destroy program");
    --live_programs;
    delete static_cast<std::function<void()>*>(program);
    return 0;
  }

  // NcclCalls
  int version(int& code) override {
    code = nccl_version;
    return failed("ncclGetVersion");
  }
  int unique_id(NcclId& id) override {
    std::snprintf(id.bytes, sizeof id.bytes, "the id");
    note("ncclGetUniqueId");
    return failed("ncclGetUniqueId");
  }
  int init_all(NcclComm* comms, int count, int const* gpus) override {
    std::string text = "ncclCommInitAll";
    for (int r = 0; r < count; ++r) text += " " + std::to_string(gpus[r]);
    note(text);
    if (int const result = failed("ncclCommInitAll")) return result;
    for (int r = 0; r < count; ++r) comms[r] = make_comm(r, count);
    return 0;
  }
  int init_rank(NcclComm& comm, int ranks, NcclId const& id, int rank) override {
    note("ncclCommInitRank " + std::to_string(rank) + " of " + std::to_string(ranks) + " on GPU " +
         std::to_string(m_gpu) + ", " + id.bytes);
    if (int const result = failed("ncclCommInitRank")) return result;
    comm = make_comm(rank, ranks);
    return 0;
  }
  int group_start() override {
    note("ncclGroupStart");
    if (m_group_open) throw std::logic_error("a group in a group");
    m_group_open = true;
    return failed("ncclGroupStart");
  }
  int group_end() override {
    auto const lock = locked();
    note("ncclGroupEnd");
    if (!m_group_open) throw std::logic_error("the end of no group");
    m_group_open = false;
    for (auto& [stream, entry] : m_open) queue(stream).work.push_back(std::move(entry));
    m_open.clear();
    return failed("ncclGroupEnd");
  }
  int send(void const* from, std::size_t count, Type type, int peer, NcclComm comm, Stream stream) override {
    note(describe_call("ncclSend", comm, "to", peer, count, type, stream));
    add({false, rank_of(comm), peer, const_cast<void*>(from), count, type}, stream);
    return failed("ncclSend");
  }
  int recv(void* to, std::size_t count, Type type, int peer, NcclComm comm, Stream stream) override {
    note(describe_call("ncclRecv", comm, "from", peer, count, type, stream));
    add({true, rank_of(comm), peer, to, count, type}, stream);
    return failed("ncclRecv");
  }
  int allreduce(void const* from, void* to, std::size_t count, Type type, Op op, NcclComm comm,
                Stream stream) override {
    note(describe_call("ncclAllReduce", comm, name_of(op), rank_of(comm), count, type, stream));
    auto& group = m_open_group(stream);
    group.whole = {rank_of(comm), static_cast<Comm*>(comm)->ranks, const_cast<void*>(from), to, count, type, op};
    return failed("ncclAllReduce");
  }
  int async_error(NcclComm comm, int& error) override {
    auto const lock  = locked();
    auto const found = async_errors.find(rank_of(comm));
    error            = found == async_errors.end() ? 0 : found->second;
    return failed("ncclCommGetAsyncError");
  }
  int abort(NcclComm comm) override {
    end_comm("ncclCommAbort ", comm);
    return 0;
  }
  int destroy(NcclComm comm) override {
    end_comm("ncclCommDestroy ", comm);
    return 0;
  }

  // A setup of these GPUs, one logical device each.
  DeviceSetup setup(std::vector<int> const& gpus) {
    DeviceSetup made;
    made.device = this;
    made.nccl   = this;
    made.gpus   = gpus;
    for (int const gpu : gpus) {
      use(gpu);
      made.streams.emplace_back();
      create_stream(made.streams.back());
    }
    auto const streams = made.streams;
    made.copy          = [this, streams](int local, void* to, void const* from, std::int64_t bytes) {
      auto const lock = locked();
      note(queue(streams[std::size_t(local)]).name + ": copy " + std::to_string(bytes) + " bytes");
      enqueue(streams[std::size_t(local)], [=] { std::memcpy(to, from, std::size_t(bytes)); });
    };
    made.reduce = [this, streams](int local, Type type, Op op, void* into, void const* from, std::int64_t count) {
      auto const lock = locked();
      note(queue(streams[std::size_t(local)]).name + ": reduce " + std::to_string(count));
      enqueue(streams[std::size_t(local)], [=] { comm::reduce(Space(), type, op, into, from, count); });
    };
    return made;
  }

  // Runs all that waits, streams in an order made from the seed. False: what is left waits for ever.
  bool execute(unsigned seed) {
    auto const lock = locked();
    std::mt19937 random(seed);
    std::vector<Queue*> waiting;
    for (auto const& stream : m_streams) waiting.push_back(stream.get());
    for (bool moved = true; moved;) {
      moved = false;
      std::shuffle(waiting.begin(), waiting.end(), random);
      for (Queue* const stream : waiting) {
        if (stream->work.empty()) continue;
        Entry& entry = stream->work.front();
        if (entry.is_group()) {
          moved = advance(entry, random) || moved;
          if (!entry.finished()) continue;
        } else {
          if (entry.ready && !entry.ready()) continue;
          entry.run();
        }
        stream->work.pop_front();
        moved = true;
      }
    }
    return std::all_of(waiting.begin(), waiting.end(), [](Queue const* stream) { return stream->work.empty(); });
  }

 private:
  struct Message {
    bool receives;
    int rank, peer;
    void* memory;
    std::size_t count;
    Type type;
    bool done = false;
  };
  struct Whole {  // an ncclAllReduce
    int rank, ranks = 0;
    void *from, *to;
    std::size_t count;
    Type type;
    Op op;
    bool done = false;
  };
  struct Entry {
    std::function<void()> run;  // else a group
    std::function<bool()> ready;
    std::vector<Message> messages;
    Whole whole{};
    bool is_group() const { return !run; }
    bool finished() const {
      return (whole.ranks == 0 || whole.done) &&
             std::all_of(messages.begin(), messages.end(), [](Message const& m) { return m.done; });
    }
  };
  struct Queue {
    std::string name;
    int gpu = 0;
    std::deque<Entry> work;
    bool capturing = false, came_back = false;  // the capture's first stream has waited for it
  };
  struct Mark {
    Queue* source = nullptr;
    int recorded = 0, done = 0;
    bool captured = false;
  };
  struct Comm {
    int rank, ranks;
  };

  std::unique_lock<std::recursive_mutex> locked() { return std::unique_lock<std::recursive_mutex>(m_mutex); }
  void note(std::string const& text) {
    auto const lock = locked();
    if (!m_replays) log.push_back(text);
  }
  int failed(std::string const& call) {
    auto const lock  = locked();
    auto const found = failures.find(call);
    return found == failures.end() ? 0 : found->second;
  }
  static Queue& queue(Stream stream) { return *static_cast<Queue*>(stream); }
  static std::shared_ptr<Mark> mark_of(Event event) { return *static_cast<std::shared_ptr<Mark>*>(event); }
  static int rank_of(NcclComm comm) { return static_cast<Comm*>(comm)->rank; }
  NcclComm make_comm(int rank, int ranks) {
    auto const lock = locked();
    m_comms.push_back(std::make_unique<Comm>(Comm{rank, ranks}));
    ++live_comms;
    return m_comms.back().get();
  }
  void end_comm(std::string const& what, NcclComm comm) {
    auto const lock = locked();
    note(what + std::to_string(rank_of(comm)));
    --live_comms;
  }
  std::string describe_call(std::string const& call, NcclComm comm, std::string const& how, int peer, std::size_t count,
                            Type type, Stream stream) {
    return queue(stream).name + ": " + call + " rank " + std::to_string(rank_of(comm)) + " " + how + " " +
           std::to_string(peer) + ", " + std::to_string(count) + " " + name_of(type);
  }
  void enqueue(Stream stream, std::function<void()> run) {
    Entry entry;
    entry.run = std::move(run);
    queue(stream).work.push_back(std::move(entry));
  }
  Entry& m_open_group(Stream stream) {
    if (!m_group_open) throw std::logic_error("a call outside of a group");
    return m_open[stream];
  }
  void add(Message const& message, Stream stream) { m_open_group(stream).messages.push_back(message); }

  // The group of messages that is at the head of this rank's stream.
  Entry* head_of(int rank) {
    for (auto const& stream : m_streams)
      if (!stream->work.empty() && stream->work.front().is_group()) {
        Entry& entry = stream->work.front();
        if (!entry.messages.empty() && entry.messages.front().rank == rank) return &entry;
        if (entry.whole.ranks > 0 && entry.whole.rank == rank) return &entry;
      }
    return nullptr;
  }

  static Message* first_of(Entry& entry, bool receives, int peer) {
    for (auto& message : entry.messages)
      if (!message.done && message.receives == receives && message.peer == peer) return &message;
    return nullptr;
  }

  bool advance(Entry& entry, std::mt19937& random) {
    if (entry.whole.ranks > 0) return advance_whole(entry);
    std::vector<std::size_t> order(entry.messages.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    bool moved = false;
    for (std::size_t const i : order) {
      Message& mine = entry.messages[i];
      if (mine.done || first_of(entry, mine.receives, mine.peer) != &mine) continue;
      Entry* const there = head_of(mine.peer);
      if (!there) continue;
      Message* const other = first_of(*there, !mine.receives, mine.rank);
      if (!other) continue;
      if (other->count != mine.count || other->type != mine.type)
        throw std::logic_error("a send of " + std::to_string(mine.count) + " meets a receive of " +
                               std::to_string(other->count));
      Message const &from = mine.receives ? *other : mine, &to = mine.receives ? mine : *other;
      std::memcpy(to.memory, from.memory, from.count * std::size_t(size_of(from.type)));
      mine.done = other->done = moved = true;
    }
    return moved;
  }

  // All ranks' calls are at the heads of their streams: rank by rank from 0 up.
  bool advance_whole(Entry& entry) {
    if (entry.whole.done) return false;
    std::vector<Whole*> all;
    for (int r = 0; r < entry.whole.ranks; ++r) {
      Entry* const there = head_of(r);
      if (!there || there->whole.ranks != entry.whole.ranks || there->whole.done) return false;
      all.push_back(&there->whole);
    }
    std::size_t const bytes = entry.whole.count * std::size_t(size_of(entry.whole.type));
    std::vector<char> sum(bytes);
    std::memcpy(sum.data(), all[0]->from, bytes);
    for (std::size_t r = 1; r < all.size(); ++r) {
      if (all[r]->count != entry.whole.count || all[r]->type != entry.whole.type || all[r]->op != entry.whole.op)
        throw std::logic_error("ncclAllReduce calls that differ");
      comm::reduce(Space(), entry.whole.type, entry.whole.op, sum.data(), all[r]->from,
                   std::int64_t(entry.whole.count));
    }
    for (Whole* const call : all) {
      std::memcpy(call->to, sum.data(), bytes);
      call->done = true;
    }
    return true;
  }

  std::recursive_mutex m_mutex;
  int m_gpu         = 0;
  bool m_group_open = false;
  bool m_replays    = false;    // a graph's work
  Queue* m_origin   = nullptr;  // of the capture
  std::function<void()> m_kept;
  std::vector<std::unique_ptr<Queue>> m_streams;
  std::vector<std::unique_ptr<Comm>> m_comms;
  std::map<Stream, Entry> m_open;  // groups being made
};

}  // namespace lockstep::comm
