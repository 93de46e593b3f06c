// SPDX-License-Identifier: Apache-2.0
#include "comm/prove.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "comm/algorithms.hpp"
#include "tests/comm/oracle.hpp"

namespace {

using namespace lockstep::comm;
using testing::HasSubstr;

std::set<std::int64_t> lengths(std::int64_t k) {
  return {0, 1, k - 1, k, k + 1, 3 * k + 2, (std::int64_t(1) << 32) + 12345};
}

std::vector<int> node_sizes(int k) {
  std::vector<int> sizes;
  for (int g = 1; g <= k; ++g)
    if (k % g == 0) sizes.push_back(g);
  return sizes;
}

// Every schedule that the registry gives for k ranks and n elements: names, and what else they may depend on.
std::vector<std::pair<std::string, ScheduleRequest>> requests(int k, std::int64_t n) {
  std::vector<std::pair<std::string, ScheduleRequest>> all;
  for (auto const& name : algorithm_names()) {
    ScheduleRequest request;
    request.ranks    = k;
    request.elements = n;
    all.emplace_back(name, request);
    if (name == "hierarchical")
      for (int g : node_sizes(k)) {
        request.ranks_per_node = g;
        if (g < k) all.emplace_back(name, request);
      }
    if (name == "double_tree")
      for (int chunks : {2, 3, 7}) {
        request.pipeline = chunks;
        all.emplace_back(name, request);
      }
  }
  return all;
}

std::string describe(std::string const& name, ScheduleRequest const& r) {
  return name + ", " + std::to_string(r.ranks) + " ranks, " + std::to_string(r.elements) + " elements, " +
         std::to_string(r.ranks_per_node) + " per node, pipeline " + std::to_string(r.pipeline);
}

int levels(int k) {
  int l = 0;
  while (1 << l < k) ++l;
  return l;
}

TEST(Prove, EveryAlgorithmForUpTo64Ranks) {
  int proofs = 0;
  for (int k = 1; k <= 64; ++k)
    for (std::int64_t n : lengths(k))
      for (auto const& [name, request] : requests(k, n)) {
        auto const schedule = make_schedule(name, request);
        auto const proof    = prove(schedule, n);
        ASSERT_TRUE(proof.correct) << describe(name, request) << ": " << proof.fault;
        ASSERT_TRUE(proof.equal_bits) << describe(name, request);
        std::set<std::string> const one_order{"naive", "tree", "recursive_doubling", "halving_doubling", "direct"};
        if (k <= 2 || one_order.count(name))
          ASSERT_EQ(proof.orders, 1) << describe(name, request);
        else if (name == "ring")
          ASSERT_EQ(proof.orders, k) << describe(name, request);
        else
          ASSERT_LE(proof.orders, name == "double_tree" ? 2 : proof.chunks) << describe(name, request);
        // One message each way per rank and step, but for the root of the naive one, both directions, and all-to-all.
        std::int64_t const ports = name == "naive" || name == "direct" ? k - 1 : name == "bidirectional_ring" ? 2 : 1;
        ASSERT_LE(proof.most_messages_in_step, ports) << describe(name, request);
        ++proofs;
      }
  RecordProperty("proofs", proofs);
  EXPECT_GT(proofs, 64 * 4 * 9);
}

TEST(Prove, EmptyScheduleOfOneRankIsTheIdentity) {
  for (auto const& name : algorithm_names()) {
    auto const schedule = make_schedule(name, {1, 5});
    EXPECT_TRUE(schedule.transfers.empty());
    EXPECT_EQ(schedule.steps, 0);
    auto const proof = prove(schedule, 5);
    EXPECT_TRUE(proof.correct) << proof.fault;
    EXPECT_EQ(proof.text(proof.result(0, 0)), "0");
  }
}

TEST(Prove, StepsAndBytesMatchTheFormulas) {
  for (int k = 2; k <= 64; ++k) {
    int const L             = levels(k);
    int const l             = (1 << L) == k ? L : L - 1;  // floor(log2 k)
    std::int64_t const n    = std::int64_t(k) * (1 << l) * 6;
    auto const active       = std::int64_t(1) << l;
    bool const fold         = active < k;
    auto const expect_sched = [&](std::string const& name, std::int64_t steps, std::int64_t sent, std::int64_t reduced,
                                  std::int64_t messages) {
      auto const proof = prove(make_schedule(name, {k, n}), n);
      EXPECT_EQ(proof.steps, steps) << name << ' ' << k;
      EXPECT_EQ(proof.busiest.sent, sent) << name << ' ' << k;
      EXPECT_EQ(proof.busiest.reduced, reduced) << name << ' ' << k;
      EXPECT_EQ(proof.busiest.messages_sent, messages) << name << ' ' << k;
    };
    std::int64_t const share = n / k;
    expect_sched("naive", k, (k - 1) * n, (k - 1) * n, k - 1);
    expect_sched("tree", 2 * L, L * n, L * n, L);
    expect_sched("ring", 2 * (k - 1), 2 * (k - 1) * share, (k - 1) * share, 2 * (k - 1));
    expect_sched("bidirectional_ring", 2 * (k - 1), 2 * (k - 1) * share, (k - 1) * share, 4 * (k - 1));
    expect_sched("hierarchical", 2 * (k - 1), 2 * (k - 1) * share, (k - 1) * share, 2 * (k - 1));
    expect_sched("direct", k + 2, 2 * (k - 1) * share, (k - 1) * share, 2 * (k - 1));
    expect_sched("recursive_doubling", l + 2 * fold, (l + fold) * n, (l + fold) * n, l + fold);
    std::int64_t const halves = (active - 1) * (n / active);
    expect_sched("halving_doubling", 2 * l + 2 * fold, 2 * halves + fold * n, halves + fold * n, 2 * l + fold);
  }
  for (int g : {2, 3, 4}) {
    int const m = 5, k = g * m;
    ScheduleRequest request{k, k * 12};
    request.ranks_per_node = g;
    auto const proof       = prove(make_schedule("hierarchical", request), k * 12);
    EXPECT_EQ(proof.steps, 2 * (g - 1) + 2 * (m - 1));
    EXPECT_EQ(proof.busiest.sent, 2 * (g - 1) * (k * 12 / g) + 2 * (m - 1) * 12);
  }
  for (int k = 2; k <= 64; ++k)
    for (int m : {1, 2, 9}) {
      ScheduleRequest request{k, 2 * m * 10};
      request.pipeline = m;
      auto const proof = prove(make_schedule("double_tree", request), 2 * m * 10);
      EXPECT_LE(proof.steps, 2 * (2 * levels(k) + 2 * m)) << k << ' ' << m;
      EXPECT_LE(proof.busiest.sent, 2 * 2 * m * 10) << k << ' ' << m;
      EXPECT_LE(proof.busiest.reduced, 2 * m * 10) << k << ' ' << m;
    }
}

std::uint64_t scrambled(int rank, int chunk) {
  static std::map<std::pair<int, int>, std::uint64_t> known;  // seeding is slow
  auto const [at, is_new] = known.try_emplace({rank, chunk});
  if (is_new) at->second = std::mt19937_64(std::uint64_t(rank) << 32 | unsigned(chunk))();
  return at->second;
}

struct Mutation {
  char const* name;
  std::function<bool(Schedule&, std::size_t)> apply;  // to a transfer; false: does not apply
};

void sort_by_step(Schedule& s) {
  std::stable_sort(s.transfers.begin(), s.transfers.end(),
                   [](auto const& a, auto const& b) { return a.step < b.step; });
}

std::vector<Mutation> const mutations = {
    {"drop", [](Schedule& s, std::size_t i) { return s.transfers.erase(s.transfers.begin() + i), true; }},
    {"duplicate", [](Schedule& s, std::size_t i) { return s.transfers.insert(s.transfers.begin() + i, Transfer(s.transfers[i])), true; }},
    {"repeat in a later step",
     [](Schedule& s, std::size_t i) {
       Transfer again = s.transfers[i];
       if (++again.step >= s.steps) return false;
       s.transfers.push_back(again);
       sort_by_step(s);
       return true;
     }},
    {"redirect destination",
     [](Schedule& s, std::size_t i) {
       auto& to = s.transfers[i].destination;
       to       = (to + 1) % s.ranks;
       return true;
     }},
    {"redirect source",
     [](Schedule& s, std::size_t i) {
       auto& from = s.transfers[i].source;
       from       = (from + 1) % s.ranks;
       return true;
     }},
    {"send to itself",
     [](Schedule& s, std::size_t i) {
       if (s.transfers[i].is_local()) return false;
       s.transfers[i].destination = s.transfers[i].source;
       return true;
     }},
    {"rank out of range", [](Schedule& s, std::size_t i) { return s.transfers[i].destination = s.ranks, true; }},
    {"turn round", [](Schedule& s, std::size_t i) { return std::swap(s.transfers[i].source, s.transfers[i].destination), !s.transfers[i].is_local(); }},
    {"one step later",
     [](Schedule& s, std::size_t i) {
       if (++s.transfers[i].step >= s.steps) return false;
       sort_by_step(s);
       return true;
     }},
    {"one step earlier",
     [](Schedule& s, std::size_t i) {
       if (--s.transfers[i].step < 0) return false;
       sort_by_step(s);
       return true;
     }},
    {"swap with the next step",
     [](Schedule& s, std::size_t i) {
       auto const next = std::find_if(s.transfers.begin() + i, s.transfers.end(), [&](auto const& t) { return t.step > s.transfers[i].step; });
       if (next == s.transfers.end()) return false;
       std::swap(s.transfers[i].step, next->step);
       std::swap(s.transfers[i], *next);
       return true;
     }},
    {"list out of order",
     [](Schedule& s, std::size_t i) { return i + 1 < s.transfers.size() && (std::swap(s.transfers[i], s.transfers[i + 1]), true); }},
    {"copy for reduce and back",
     [](Schedule& s, std::size_t i) {
       auto& action = s.transfers[i].action;
       action       = action == Action::copy ? Action::reduce : Action::copy;
       return true;
     }},
    {"wrong chunk",
     [](Schedule& s, std::size_t i) {
       auto& chunk = s.transfers[i].chunk;
       chunk       = (chunk + 1) % s.chunks;
       return s.chunks > 1;
     }},
    {"chunk out of range", [](Schedule& s, std::size_t i) { return s.transfers[i].chunk = s.chunks, true; }},
    {"one chunk less", [](Schedule& s, std::size_t i) { return --s.transfers[i].count, true; }},
    {"one chunk more", [](Schedule& s, std::size_t i) { return ++s.transfers[i].count, true; }},
    {"wrong source slot",
     [](Schedule& s, std::size_t i) {
       auto& slot = s.transfers[i].source_slot;
       slot       = slot == Slot::data ? Slot::scratch : Slot::data;
       return true;
     }},
    {"wrong destination slot",
     [](Schedule& s, std::size_t i) {
       auto& slot = s.transfers[i].destination_slot;
       slot       = slot == Slot::data ? Slot::scratch : Slot::data;
       return true;
     }},
    {"wrong place",
     [](Schedule& s, std::size_t i) {
       auto& t = s.transfers[i];
       if (t.source_slot == Slot::data && t.destination_slot == Slot::data) return false;
       t.place = (t.place + 1) % s.places;
       return true;
     }},
    {"operands exchanged",
     [](Schedule& s, std::size_t i) {
       auto& side = s.transfers[i].side;
       side       = side == Side::left ? Side::right : Side::left;
       return true;
     }},
};

TEST(Prove, RefusesExactlyTheMutationsThatAreWrong) {
  std::map<std::string, std::pair<int, int>> counts;  // mutation -> refused, equivalent
  for (int k : {2, 3, 4, 5, 8})
    for (auto const& [name, request] : requests(k, 100)) {
      auto const original = make_schedule(name, request);
      if (original.transfers.size() > 250) continue;
      for (auto const& mutation : mutations)
        for (std::size_t i = 0; i < original.transfers.size(); ++i) {
          Schedule mutated = original;
          if (!mutation.apply(mutated, i)) continue;
          auto const result = oracle::run<std::uint64_t>(mutated, scrambled);
          bool right        = result.well_formed;
          for (int chunk = 0; right && chunk < mutated.chunks; ++chunk) {
            std::uint64_t sum = 0;
            for (int rank = 0; rank < k; ++rank) sum += scrambled(rank, chunk);
            for (int rank = 0; rank < k; ++rank) right = right && result.vectors[rank][chunk] == sum;
          }
          auto const proof = prove(mutated, 100);
          ASSERT_EQ(proof.correct, right)
              << describe(name, request) << ", " << mutation.name << " of transfer " << i << ": " << proof.fault;
          ++(proof.correct ? counts[mutation.name].second : counts[mutation.name].first);
          if (!proof.correct) {
            ASSERT_FALSE(proof.fault.empty());
            continue;
          }
          // The association that the proof claims is the one that runs.
          auto const input = [](int rank, int chunk) {
            return std::ldexp(float(scrambled(rank, chunk) >> 40), -20 + rank % 5);
          };
          auto const floats = oracle::run<float>(mutated, input);
          for (int chunk = 0; chunk < mutated.chunks; ++chunk)
            for (int rank = 0; rank < k; ++rank) {
              std::vector<float> values(k);
              std::vector<float const*> inputs(k);
              for (int from = 0; from < k; ++from) inputs[from] = &(values[from] = input(from, chunk));
              float expected;
              evaluate<float>(proof, proof.result(rank, chunk), inputs, 1, &expected);
              ASSERT_EQ(floats.vectors[rank][chunk], expected) << describe(name, request) << ", " << mutation.name;
              if (proof.equal_bits) {
                ASSERT_EQ(floats.vectors[rank][chunk], floats.vectors[0][chunk]);
              }
            }
        }
    }
  for (auto const& mutation : mutations) {
    auto const [refused, equivalent] = counts[mutation.name];
    std::string const name           = mutation.name;
    RecordProperty(name + " refused", refused);
    RecordProperty(name + " equivalent", equivalent);
    if (name == "operands exchanged") {
      EXPECT_EQ(refused, 0) << name;  // a + b = b + a
    } else {
      EXPECT_GT(refused, 20) << name;
    }
    // A transfer too many or too few is never harmless: the schedules have none to spare.
    if (name == "drop" || name == "duplicate" || name == "rank out of range" || name == "send to itself" ||
        name == "copy for reduce and back" || name == "chunk out of range" || name == "one chunk less") {
      EXPECT_EQ(equivalent, 0) << name;
    }
    std::printf("  %-26s %6d refused %6d equivalent\n", mutation.name, refused, equivalent);
  }
}

Transfer transfer(int step, int source, int destination, Action action) {
  Transfer t;
  t.step        = step;
  t.source      = source;
  t.destination = destination;
  t.action      = action;
  return t;
}

TEST(Prove, NamesTheFirstFault) {
  auto const fault = [](std::function<void(Schedule&)> const& change) {
    auto schedule = make_schedule("naive", {3, 1});
    change(schedule);
    return prove(schedule, 1).fault;
  };
  EXPECT_EQ(fault([](Schedule&) {}), "");
  EXPECT_EQ(fault([](Schedule& s) { s.transfers.erase(s.transfers.begin() + 1); }),
            "rank 0 chunk 0 ends without the contribution of rank 2; it is last written in step 0: rank 1 to rank 0, "
            "chunk 0 (reduce)");
  EXPECT_EQ(fault([](Schedule& s) { s.transfers.pop_back(); }),
            "rank 2 chunk 0 ends without the contribution of rank 0; no transfer writes it");
  EXPECT_EQ(fault([](Schedule& s) { s.transfers[1].source = 1; }),
            "step 1: the contribution of rank 1 is added twice, and ends in rank 0 chunk 0");
  EXPECT_EQ(
      fault([](Schedule& s) { s.transfers[1].step = 0; }),
      "step 0: rank 2 to rank 0, chunk 0 (reduce): rank 0 chunk 0 is written by another transfer of this step, from "
      "rank 1");
  EXPECT_EQ(fault([](Schedule& s) { s.transfers[1].source = 3; }),
            "step 1: rank 3 to rank 0, chunk 0 (reduce): rank 3 does not exist (there are 3)");
  EXPECT_EQ(fault([](Schedule& s) { std::swap(s.transfers[0], s.transfers[1]); }),
            "step 0: rank 1 to rank 0, chunk 0 (reduce): it is listed after a transfer of step 1");
  EXPECT_EQ(
      fault([](Schedule& s) { s.places = 1, s.transfers[0].source_slot = Slot::scratch; }),
      "step 0: rank 1 to rank 0, chunk 0 (reduce): it needs chunk 0 in rank 1 scratch place 0, which does not hold it");
  EXPECT_EQ(fault([](Schedule& s) { s.steps = 2; }),
            "step 2: rank 0 to rank 1, chunk 0 (copy): the step does not exist (there are 2)");
  EXPECT_EQ(fault([](Schedule& s) { s.ranks = 0; }), "the number of ranks is 0");
}

TEST(Prove, StepsReadWhatWasThereBefore) {
  // Both ranks add what the other one held before the step; without snapshots the second would add twice.
  Schedule exchange;
  exchange.ranks     = 2;
  exchange.steps     = 1;
  exchange.transfers = {transfer(0, 0, 1, Action::reduce), transfer(0, 1, 0, Action::reduce)};
  auto const proof   = prove(exchange, 1);
  EXPECT_TRUE(proof.correct) << proof.fault;
  EXPECT_EQ(proof.staged_transfers, 2);
  EXPECT_EQ(proof.text(proof.result(0, 0)), "(0 + 1)");
  EXPECT_EQ(proof.text(proof.result(1, 0)), "(1 + 0)");
  EXPECT_TRUE(proof.equal_bits);
  EXPECT_EQ(proof.orders, 1);
  exchange.steps             = 2;
  exchange.transfers[1].step = 1;
  EXPECT_THAT(prove(exchange, 1).fault, HasSubstr("the contribution of rank 0 is added twice"));
}

TEST(Prove, SeesRanksThatSumInDifferentOrders) {
  // Every rank gathers the others' vectors and adds its own first: correct sums, unequal bits.
  Schedule s;
  s.ranks = s.places = 3;
  s.steps            = 3;
  for (int rank = 0; rank < 3; ++rank)
    for (int shift : {1, 2}) {
      Transfer t         = transfer(0, (rank + shift) % 3, rank, Action::copy);
      t.destination_slot = Slot::scratch;
      t.place            = shift;
      s.transfers.push_back(t);
    }
  for (int shift : {1, 2})
    for (int rank = 0; rank < 3; ++rank) {
      Transfer t    = transfer(shift, rank, rank, Action::reduce);
      t.source_slot = Slot::scratch;
      t.place       = shift;
      s.transfers.push_back(t);
    }
  auto const proof = prove(s, 1);
  EXPECT_TRUE(proof.correct) << proof.fault;
  EXPECT_FALSE(proof.equal_bits);
  EXPECT_EQ(proof.orders, 3);
  EXPECT_EQ(proof.text(proof.result(1, 0)), "((1 + 2) + 0)");
}

TEST(Prove, Associations) {
  auto const proof = [](std::string const& name, int k) { return prove(make_schedule(name, {k, 1000}), 1000); };
  auto const text  = [](Proof const& p, int chunk = 0) { return p.text(p.result(0, chunk)); };
  EXPECT_EQ(text(proof("naive", 4)), "(((0 + 1) + 2) + 3)");
  EXPECT_EQ(text(proof("direct", 4)), "(((0 + 1) + 2) + 3)");
  EXPECT_EQ(text(proof("direct", 4), 3), "(((0 + 1) + 2) + 3)");
  EXPECT_EQ(text(proof("ring", 4)), "(((0 + 1) + 2) + 3)");
  EXPECT_EQ(text(proof("ring", 4), 2), "(((2 + 3) + 0) + 1)");
  EXPECT_EQ(text(proof("tree", 5)), "(((0 + 1) + (2 + 3)) + 4)");
  EXPECT_EQ(text(proof("recursive_doubling", 5)), "(((0 + 1) + 2) + (3 + 4))");
  EXPECT_EQ(text(proof("halving_doubling", 5)), "(((0 + 1) + 2) + (3 + 4))");
  for (int k = 2; k <= 64; ++k) {
    auto const naive = proof("naive", k), tree = proof("tree", k), ring = proof("ring", k),
               doubling = proof("recursive_doubling", k), halving = proof("halving_doubling", k);
    EXPECT_EQ(proof("direct", k).order_id, naive.order_id);
    EXPECT_EQ(doubling.order_id, halving.order_id);
    EXPECT_EQ(ring.expressions[ring.result(0, 0)].order, naive.order_id) << "one of the ring's orders";
    EXPECT_EQ(ring.order_id == naive.order_id, k == 2);
    bool const power = (k & (k - 1)) == 0;
    EXPECT_TRUE(tree.order_id == doubling.order_id || !(power || k == 3 || k == 6 || k == 7)) << k;
    EXPECT_TRUE(k != 5 || tree.order_id != doubling.order_id);
    EXPECT_EQ(tree.order_id == naive.order_id, k <= 3) << k;
  }
}

TEST(Prove, OrdersThatMoreRanksExtend) {
  auto const proof = [](std::string const& name, int k) { return prove(make_schedule(name, {k, 1000}), 1000); };
  for (int k = 2; k <= 20; ++k)
    for (int fewer = 1; fewer < k; ++fewer) {
      for (char const* name : {"naive", "tree", "direct"})
        EXPECT_TRUE(extends(proof(name, k), proof(name, fewer))) << name << k << ' ' << fewer;
      EXPECT_EQ(extends(proof("tree", k), proof("naive", fewer)), fewer <= 3) << k << ' ' << fewer;
    }
  EXPECT_TRUE(extends(proof("recursive_doubling", 8), proof("recursive_doubling", 4)));
  EXPECT_FALSE(extends(proof("recursive_doubling", 6), proof("recursive_doubling", 5)));
  EXPECT_FALSE(extends(proof("ring", 5), proof("ring", 4))) << "several orders";
}

TEST(Prove, BlockingSends) {
  auto const deadlock = [](std::string const& name, int k) {
    return prove(make_schedule(name, {k, 1000}), 1000).blocking_deadlock_step;
  };
  for (int k = 2; k <= 9; ++k) {
    EXPECT_EQ(deadlock("naive", k), -1);
    EXPECT_EQ(deadlock("tree", k), -1);
    EXPECT_EQ(deadlock("ring", k), 0);
    EXPECT_EQ(deadlock("direct", k), 1) << "step 0 is local";
    EXPECT_EQ(deadlock("recursive_doubling", k), (k & (k - 1)) ? 1 : 0);
  }
}

TEST(Evaluate, FollowsTheAssociationInTheGivenPrecision) {
  std::int64_t const count = 600;  // several blocks, the last one short
  for (auto const& name : algorithm_names()) {
    int const k      = 11;
    auto const proof = prove(make_schedule(name, {k, count}), count);
    std::mt19937 engine(7);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<std::vector<float>> data(k, std::vector<float>(count));
    for (auto& vector : data)
      for (auto& x : vector) x = uniform(engine);
    std::vector<float const*> inputs;
    for (auto const& vector : data) inputs.push_back(vector.data());
    std::vector<float> out(count);
    std::int32_t const expression = proof.result(0, 0);
    evaluate<float>(proof, expression, inputs, count, out.data());
    std::function<float(int, std::int64_t)> const recursive = [&](int e, std::int64_t i) -> float {
      auto const& node = proof.expressions[e];
      return node.left < 0 ? data[node.rank][i] : recursive(node.left, i) + recursive(node.right, i);
    };
    for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(out[i], recursive(expression, i)) << name;
  }
  // (0 + 1) + 2 against (2 + 0) + 1 where it matters.
  auto const ring = prove(make_schedule("ring", {3, 3}), 3);
  float const a = 1, b = -1, c = 1e-8f;
  std::vector<float const*> const inputs{&a, &b, &c};
  float first, last;
  evaluate<float>(ring, ring.result(0, 0), inputs, 1, &first);
  evaluate<float>(ring, ring.result(0, 2), inputs, 1, &last);
  EXPECT_EQ(first, 1e-8f);
  EXPECT_EQ(last, 0.0f);
  EXPECT_ANY_THROW(evaluate<float>(ring, ring.result(0, 0), {&a, &b}, 1, &first));
}

// A step as a multiset of what its ranks do.
using Key  = std::array<std::int64_t, 12>;
using Step = std::map<Key, std::int64_t>;

void add(std::map<Step, std::int64_t>& steps, std::vector<std::pair<Key, std::int64_t>> const& ranks,
         std::int64_t repeat) {
  Step canonical;
  for (auto const& [key, count] : ranks)
    if (count > 0 && std::any_of(key.begin(), key.end(), [](auto x) { return x != 0; })) canonical[key] += count;
  steps[canonical] += repeat;
}

std::map<Step, std::int64_t> collect(std::function<void(OutlineVisitor const&)> const& outline) {
  std::map<Step, std::int64_t> steps;
  outline([&](StepClass const& step) {
    std::vector<std::pair<Key, std::int64_t>> ranks;
    for (auto const& [work, count] : step.ranks) {
      Key key{work.reduced, work.local_reduced, work.local_copied, work.staged};
      std::size_t next = 4;
      for (auto const& traffic : {work.out[0], work.out[1], work.in[0], work.in[1]}) {
        key[next++] = traffic.messages;
        key[next++] = traffic.elements;
      }
      ASSERT_GT(count, -1);
      ranks.emplace_back(key, count);
    }
    ASSERT_GT(step.repeat, 0);
    add(steps, ranks, step.repeat);
  });
  return steps;
}

// The same, counted transfer by transfer.
std::map<Step, std::int64_t> count(Schedule const& schedule, std::int64_t n, int ranks_per_node) {
  std::map<Step, std::int64_t> steps;
  auto const staged = needs_staging(schedule);
  std::vector<std::pair<Key, std::int64_t>> ranks;
  auto const& all = schedule.transfers;
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto const& t = all[i];
    if (i == 0 || t.step != all[i - 1].step) {
      if (i > 0) add(steps, ranks, 1);
      ranks.assign(std::size_t(schedule.ranks), {Key{}, 1});
    }
    auto const size    = element_range(schedule, t, n).size();
    int const level    = t.source / ranks_per_node == t.destination / ranks_per_node ? 0 : 1;
    auto& to           = ranks[std::size_t(t.destination)].first;
    auto& from         = ranks[std::size_t(t.source)].first;
    bool const reduces = t.action == Action::reduce;
    if (staged[i]) to[3] += size;
    if (t.is_local()) {
      to[reduces ? 1 : 2] += size;
      continue;
    }
    if (reduces) to[0] += size;
    from[std::size_t(4 + 2 * level)] += size > 0;
    from[std::size_t(5 + 2 * level)] += size;
    to[std::size_t(8 + 2 * level)] += size > 0;
    to[std::size_t(9 + 2 * level)] += size;
  }
  if (!all.empty()) add(steps, ranks, 1);
  return steps;
}

TEST(Outline, IsWhatTheTransfersDo) {
  for (int k = 1; k <= 64; ++k)
    for (std::int64_t n : lengths(k))
      for (auto const& [algorithm, first] : requests(k, n)) {
        auto const name         = algorithm;  // lambdas of C++17 capture no structured binding
        ScheduleRequest request = first;
        std::set<int> sizes{request.ranks_per_node};
        if (request.ranks_per_node == 0 && name != "hierarchical") {
          auto const all = node_sizes(k);
          sizes.insert({1, all[all.size() / 2], all[(all.size() - 1) / 2]});
        }
        auto const schedule = make_schedule(name, request);
        for (int g : sizes) {
          request.ranks_per_node = g;
          auto const listed = collect([&](auto const& visit) { outline(schedule, n, ranks_per_node(request), visit); });
          auto const compact = collect([&](auto const& visit) { outline(name, request, visit); });
          auto const counted = count(schedule, n, ranks_per_node(request));
          ASSERT_EQ(listed, counted) << describe(name, request);
          ASSERT_EQ(compact, counted) << describe(name, request);
        }
      }
}

TEST(Outline, OfManyRanksIsShort) {
  for (auto const& name : algorithm_names())
    for (int g : {0, 8}) {
      ScheduleRequest request{65536, std::int64_t(1) << 32};
      request.ranks_per_node = g;
      std::int64_t steps = 0, classes = 0;
      outline(name, request, [&](StepClass const& step) {
        steps += step.repeat;
        ++classes;
      });
      EXPECT_GT(steps, 0) << name;
      EXPECT_LE(classes, 70000) << name;
    }
}

}  // namespace
