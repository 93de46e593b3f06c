// SPDX-License-Identifier: Apache-2.0
#include "comm/prove.hpp"

#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_map>

#include "kernels/error.hpp"

namespace lockstep::comm {

namespace {

std::uint64_t mix(std::uint64_t x) {  // splitmix64's finaliser
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::uint64_t sum_order(std::uint64_t a, std::uint64_t b) {
  return mix(std::min(a, b) + mix(std::max(a, b) + 0x2545f4914f6cdd1du));
}

// Expressions by structure: equal ones have equal numbers. `commuted` numbers the classes of expressions that are equal
// up to the order of operands.
class Expressions {
 public:
  explicit Expressions(std::int32_t ranks) : m_words((ranks + 63) / 64) {
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      m_nodes.push_back({-1, -1, rank, mix(std::uint64_t(rank) + 0x9e3779b97f4a7c15u)});
      m_commuted.push_back(rank);
      m_first_step.push_back(-1);
      m_repeats.push_back(false);
      m_leaves.resize(m_leaves.size() + m_words);
      m_leaves[rank * std::size_t(m_words) + rank / 64] |= std::uint64_t(1) << rank % 64;
    }
    m_classes = ranks;
  }

  std::int32_t add(std::int32_t left, std::int32_t right, std::int32_t step) {
    auto const [found, is_new] = m_sums.try_emplace(key(left, right), std::int32_t(m_nodes.size()));
    if (!is_new) return found->second;
    auto const [low, high]       = std::minmax(m_commuted[left], m_commuted[right]);
    auto const [same, new_class] = m_class_of.try_emplace(key(low, high), m_classes);
    m_classes += new_class;
    bool repeats = m_repeats[left] || m_repeats[right];
    for (int word = 0; word < m_words; ++word) {
      std::uint64_t const l = leaves(left)[word], r = leaves(right)[word];
      repeats = repeats || (l & r);
      m_leaves.push_back(l | r);
    }
    m_nodes.push_back({left, right, -1, sum_order(m_nodes[left].order, m_nodes[right].order)});
    m_commuted.push_back(same->second);
    m_first_step.push_back(step);
    m_repeats.push_back(repeats);
    return found->second;
  }

  std::int32_t commuted(std::int32_t expression) const { return m_commuted[expression]; }
  std::uint64_t order(std::int32_t expression) const { return m_nodes[expression].order; }
  bool repeats(std::int32_t expression) const { return m_repeats[expression]; }
  // The first rank whose contribution is not in the expression; -1: none.
  std::int32_t missing(std::int32_t expression, std::int32_t ranks) const {
    for (std::int32_t rank = 0; rank < ranks; ++rank)
      if (!has(expression, rank)) return rank;
    return -1;
  }
  // The addition, earliest in time, below `expression` whose operands share a contribution; and that contribution.
  struct Repeat {
    std::int32_t step, rank;
  };
  Repeat first_repeat(std::int32_t expression) const {
    std::set<std::int32_t> open{expression};
    Repeat first{-1, -1};
    while (!open.empty()) {  // operands have smaller numbers
      std::int32_t const node = *open.rbegin();
      open.erase(std::prev(open.end()));
      if (!m_repeats[node]) continue;
      std::int32_t const left = m_nodes[node].left, right = m_nodes[node].right;
      for (std::int32_t rank = 0; rank < m_words * 64; ++rank)
        if (has(left, rank) && has(right, rank) && (first.step < 0 || m_first_step[node] < first.step))
          first = {m_first_step[node], rank};
      open.insert({left, right});
    }
    return first;
  }
  std::vector<Expression> take_nodes() { return std::move(m_nodes); }

 private:
  static std::uint64_t key(std::int32_t a, std::int32_t b) { return std::uint64_t(a) << 32 | std::uint32_t(b); }
  std::uint64_t const* leaves(std::int32_t expression) const { return &m_leaves[expression * std::size_t(m_words)]; }
  bool has(std::int32_t expression, std::int32_t rank) const { return leaves(expression)[rank / 64] >> rank % 64 & 1; }

  int m_words;
  std::int32_t m_classes = 0;
  std::vector<Expression> m_nodes;
  std::vector<std::int32_t> m_commuted, m_first_step;
  std::vector<bool> m_repeats;
  std::vector<std::uint64_t> m_leaves;  // bit sets of contributions
  std::unordered_map<std::uint64_t, std::int32_t> m_sums, m_class_of;
};

std::string name(char const* what, std::int64_t number) {
  return std::string(what) + ' ' + std::to_string(number);
}

// What is wrong with a transfer by itself; "" if nothing.
std::string malformed(Schedule const& schedule, Transfer const& t) {
  auto const outside = [](std::int64_t value, std::int64_t end) { return value < 0 || value >= end; };
  auto const range   = [](std::int64_t end) { return " (there are " + std::to_string(end) + ")"; };
  if (outside(t.step, schedule.steps)) return "the step does not exist" + range(schedule.steps);
  for (std::int32_t rank : {t.source, t.destination})
    if (outside(rank, schedule.ranks)) return name("rank", rank) + " does not exist" + range(schedule.ranks);
  if (t.count < 1) return "it moves " + std::to_string(t.count) + " chunks";
  for (std::int64_t chunk : {std::int64_t(t.chunk), std::int64_t(t.chunk) + t.count - 1})
    if (outside(chunk, schedule.chunks)) return name("chunk", chunk) + " does not exist" + range(schedule.chunks);
  bool const from_scratch = t.source_slot == Slot::scratch, to_scratch = t.destination_slot == Slot::scratch;
  if (from_scratch && to_scratch) return "both ends are scratch";
  if ((from_scratch || to_scratch) && t.count != 1)
    return "a scratch place holds one chunk, not " + std::to_string(t.count);
  if ((from_scratch || to_scratch) && outside(t.place, schedule.places))
    return name("scratch place", t.place) + " does not exist" + range(schedule.places);
  if (t.is_local() && !from_scratch && !to_scratch) return "it moves a chunk onto itself";
  return "";
}

class Prover {
 public:
  Prover(Schedule const& schedule, std::int64_t elements)
      : m_schedule(schedule), m_elements(elements), m_expressions(schedule.ranks) {}

  Proof run() {
    m_proof.ranks  = m_schedule.ranks;
    m_proof.chunks = m_schedule.chunks;
    m_proof.steps  = m_schedule.steps;
    m_proof.fault  = execute();
    if (m_proof.fault.empty()) m_proof.fault = check_sums();
    m_proof.correct = m_proof.fault.empty();
    if (m_proof.correct) {
      compare_orders();
      count_traffic();
      find_blocking_deadlock();
      auto const staged        = needs_staging(m_schedule);
      m_proof.staged_transfers = std::int32_t(std::count(staged.begin(), staged.end(), true));
      m_proof.expressions      = m_expressions.take_nodes();
      m_proof.results.resize(m_data.size());
      std::transform(m_data.begin(), m_data.end(), m_proof.results.begin(), [](Cell const& c) { return c.expression; });
    }
    return std::move(m_proof);
  }

 private:
  struct Cell {
    std::int32_t expression = -1;  // -1: undefined
    std::int32_t chunk      = -1;  // that a scratch place holds
    std::int32_t written    = -1;  // transfer that wrote it last
  };

  Cell& cell(std::int32_t rank, Slot slot, std::int32_t chunk, std::int32_t place) {
    return slot == Slot::data ? m_data[rank * std::int64_t(m_schedule.chunks) + chunk]
                              : m_scratch[rank * std::int64_t(m_schedule.places) + place];
  }

  static std::string where(std::int32_t rank, Slot slot, std::int32_t chunk, std::int32_t place) {
    return name("rank", rank) + (slot == Slot::data ? name(" chunk", chunk) : name(" scratch place", place));
  }

  // Moves symbols as the schedule says; returns what is malformed.
  std::string execute() {
    auto const& transfers = m_schedule.transfers;
    m_data.resize(std::size_t(m_schedule.ranks) * m_schedule.chunks);
    m_scratch.resize(std::size_t(m_schedule.ranks) * m_schedule.places);
    for (std::int32_t rank = 0; rank < m_schedule.ranks; ++rank)
      for (std::int32_t chunk = 0; chunk < m_schedule.chunks; ++chunk)
        cell(rank, Slot::data, chunk, 0) = {rank, chunk, -1};

    struct Write {
      Cell* cell;
      Cell value;
    };
    std::vector<Write> writes;
    for (std::size_t begin = 0, end = 0; begin < transfers.size(); begin = end) {
      writes.clear();
      for (end = begin; end < transfers.size() && transfers[end].step == transfers[begin].step; ++end) {
        Transfer const& t       = transfers[end];
        std::string const fault = [&]() -> std::string {
          if (std::string const what = malformed(m_schedule, t); !what.empty()) return what;
          if (end > 0 && t.step < transfers[end - 1].step)
            return "it is listed after a transfer of " + name("step", transfers[end - 1].step);
          for (std::int32_t chunk = t.chunk; chunk < t.chunk + t.count; ++chunk) {
            Cell const source = cell(t.source, t.source_slot, chunk, t.place);
            Cell& target      = cell(t.destination, t.destination_slot, chunk, t.place);
            std::string undefined;
            if (source.expression < 0 || source.chunk != chunk)
              undefined = where(t.source, t.source_slot, chunk, t.place);
            else if (t.action == Action::reduce && (target.expression < 0 || target.chunk != chunk))
              undefined = where(t.destination, t.destination_slot, chunk, t.place);
            if (!undefined.empty())
              return name("it needs chunk", chunk) + " in " + undefined + ", which does not hold it";
            std::int32_t value = source.expression;
            if (t.action == Action::reduce)
              value = t.side == Side::left ? m_expressions.add(source.expression, target.expression, t.step)
                                           : m_expressions.add(target.expression, source.expression, t.step);
            writes.push_back({&target, {value, chunk, std::int32_t(end)}});
          }
          return "";
        }();
        if (!fault.empty()) return describe(end) + ": " + fault;
      }
      std::sort(writes.begin(), writes.end(), [](Write const& a, Write const& b) {
        return std::tie(a.cell, a.value.written) < std::tie(b.cell, b.value.written);
      });
      for (std::size_t i = 0; i < writes.size(); ++i) {
        if (i > 0 && writes[i].cell == writes[i - 1].cell) {
          Transfer const& t = transfers[writes[i].value.written];
          return describe(writes[i].value.written) + ": " +
                 where(t.destination, t.destination_slot, writes[i].value.chunk, t.place) +
                 " is written by another transfer of this step, from " +
                 name("rank", transfers[writes[i - 1].value.written].source);
        }
      }
      for (Write const& write : writes) *write.cell = write.value;
    }
    return "";
  }

  std::string describe(std::size_t transfer) const {
    Transfer const& t = m_schedule.transfers[transfer];
    return name("step", t.step) + ": " + name("rank", t.source) + " to " + name("rank", t.destination) + ", " +
           name("chunk", t.chunk) + (t.count > 1 ? name(" to", t.chunk + t.count - 1) : "") +
           (t.action == Action::copy ? " (copy)" : " (reduce)");
  }

  std::string check_sums() {
    std::string fault;
    std::int32_t first = -1;
    auto const note    = [&](std::int32_t step, std::string const& text) {
      if (first >= 0 && step >= first) return;
      first = step;
      fault = text;
    };
    for (std::int32_t rank = 0; rank < m_schedule.ranks; ++rank)
      for (std::int32_t chunk = 0; chunk < m_schedule.chunks; ++chunk) {
        Cell const& end          = cell(rank, Slot::data, chunk, 0);
        std::string const target = where(rank, Slot::data, chunk, 0);
        if (m_expressions.repeats(end.expression)) {
          auto const repeat = m_expressions.first_repeat(end.expression);
          note(repeat.step, name("step", repeat.step) + ": the contribution of " + name("rank", repeat.rank) +
                                " is added twice, and ends in " + target);
        } else if (auto const missing = m_expressions.missing(end.expression, m_schedule.ranks); missing >= 0) {
          std::int32_t const step = end.written < 0 ? 0 : m_schedule.transfers[end.written].step;
          note(step,
               target + " ends without the contribution of " + name("rank", missing) + "; " +
                   (end.written < 0 ? "no transfer writes it" : "it is last written in " + describe(end.written)));
        }
      }
    return fault;
  }

  void compare_orders() {
    std::set<std::int32_t> orders;
    m_proof.equal_bits    = true;
    std::int32_t previous = -1;
    for (std::int32_t chunk = 0; chunk < m_schedule.chunks; ++chunk)
      for (std::int32_t rank = 0; rank < m_schedule.ranks; ++rank) {
        std::int32_t const order = m_expressions.commuted(cell(rank, Slot::data, chunk, 0).expression);
        orders.insert(order);
        if (order != m_expressions.commuted(cell(0, Slot::data, chunk, 0).expression)) m_proof.equal_bits = false;
      }
    m_proof.orders = std::int32_t(orders.size());
    for (std::int32_t chunk = 0; chunk < m_schedule.chunks; ++chunk) {
      std::int32_t const expression = cell(0, Slot::data, chunk, 0).expression;
      std::int32_t const order      = m_expressions.commuted(expression);
      if (order == previous) continue;
      m_proof.order_id =
          chunk == 0 ? m_expressions.order(expression) : mix(m_proof.order_id + mix(m_expressions.order(expression)));
      previous = order;
    }
  }

  void count_traffic() {
    m_proof.traffic.resize(m_schedule.ranks);
    auto const& transfers = m_schedule.transfers;
    std::vector<std::int64_t> in(m_schedule.ranks), out(m_schedule.ranks);  // messages of the step
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      Transfer const& t       = transfers[i];
      std::int64_t const size = element_range(m_schedule, t, m_elements).size();
      RankTraffic &from = m_proof.traffic[t.source], &to = m_proof.traffic[t.destination];
      if (i == 0 || t.step != transfers[i - 1].step) {
        std::fill(in.begin(), in.end(), 0);
        std::fill(out.begin(), out.end(), 0);
      }
      if (t.action == Action::reduce) to.reduced += size;
      if (t.is_local() || size == 0) continue;
      from.sent += size;
      to.received += size;
      ++from.messages_sent;
      ++to.messages_received;
      m_proof.most_messages_in_step = std::max({m_proof.most_messages_in_step, ++out[t.source], ++in[t.destination]});
    }
    for (RankTraffic const& t : m_proof.traffic)
      for (auto field : {&RankTraffic::sent, &RankTraffic::received, &RankTraffic::reduced, &RankTraffic::messages_sent,
                         &RankTraffic::messages_received})
        m_proof.busiest.*field = std::max(m_proof.busiest.*field, t.*field);
  }

  // Every rank works its list off: in each step its sends, then its receives. A transfer happens when it is next on
  // both lists.
  void find_blocking_deadlock() {
    auto const& transfers = m_schedule.transfers;
    std::vector<std::vector<std::int32_t>> lists(m_schedule.ranks);
    for (std::size_t begin = 0, end = 0; begin < transfers.size(); begin = end) {
      while (end < transfers.size() && transfers[end].step == transfers[begin].step) ++end;
      for (std::size_t i = begin; i < end; ++i)
        if (!transfers[i].is_local()) lists[transfers[i].source].push_back(std::int32_t(i));
      for (std::size_t i = begin; i < end; ++i)
        if (!transfers[i].is_local()) lists[transfers[i].destination].push_back(std::int32_t(i));
    }
    std::vector<std::size_t> next(m_schedule.ranks);
    auto const head = [&](std::int32_t rank) { return next[rank] < lists[rank].size() ? lists[rank][next[rank]] : -1; };
    std::vector<std::int32_t> open(m_schedule.ranks);
    for (std::int32_t rank = 0; rank < m_schedule.ranks; ++rank) open[rank] = rank;
    while (!open.empty()) {
      std::int32_t const rank = open.back(), transfer = head(rank);
      open.pop_back();
      if (transfer < 0) continue;
      Transfer const& t = transfers[transfer];
      if (head(t.source) != transfer || head(t.destination) != transfer) continue;
      for (std::int32_t end : {t.source, t.destination}) {
        ++next[end];
        open.push_back(end);
      }
    }
    for (std::int32_t rank = 0; rank < m_schedule.ranks; ++rank) {
      if (head(rank) < 0) continue;
      std::int32_t const step = transfers[head(rank)].step;
      if (m_proof.blocking_deadlock_step < 0 || step < m_proof.blocking_deadlock_step)
        m_proof.blocking_deadlock_step = step;
    }
  }

  Schedule const& m_schedule;
  std::int64_t m_elements;
  Expressions m_expressions;
  std::vector<Cell> m_data, m_scratch;
  Proof m_proof;
};

}  // namespace

Proof prove(Schedule const& schedule, std::int64_t elements) {
  LOCKSTEP_THROW_IF(elements < 0, ExitCode::usage, name("number of elements is", elements) + ", expected at least 0");
  Proof refused;
  if (schedule.ranks < 1) refused.fault = name("the number of ranks is", schedule.ranks);
  if (schedule.chunks < 1) refused.fault = name("the number of chunks is", schedule.chunks);
  if (schedule.steps < 0) refused.fault = name("the number of steps is", schedule.steps);
  if (schedule.places < 0) refused.fault = name("the number of scratch places is", schedule.places);
  if (!refused.fault.empty()) return refused;
  return Prover(schedule, elements).run();
}

std::string Proof::text(std::int32_t expression) const {
  // Without recursion: a chain of many ranks is deep.
  std::string text;
  struct Item {
    std::int32_t expression;
    char const* literal;
  };
  std::vector<Item> open{{expression, nullptr}};
  while (!open.empty()) {
    Item const item = open.back();
    open.pop_back();
    if (item.literal) {
      text += item.literal;
    } else if (Expression const& e = expressions[item.expression]; e.left < 0) {
      text += std::to_string(e.rank);
    } else {
      text += '(';
      open.insert(open.end(), {{0, ")"}, {e.right, nullptr}, {0, " + "}, {e.left, nullptr}});
    }
  }
  return text;
}

bool extends(Proof const& larger, Proof const& smaller) {
  if (!larger.correct || !smaller.correct || larger.orders != 1 || smaller.orders != 1) return false;
  // The larger expression in terms of the smaller one's: its order with the absent ranks left out; nothing is left:
  // absent.
  struct Rest {
    bool present;
    std::uint64_t order;
  };
  std::vector<Rest> rest;
  std::int32_t const top = larger.result(0, 0);
  for (std::int32_t i = 0; i <= top; ++i) {
    Expression const& e = larger.expressions[i];
    if (e.left < 0)
      rest.push_back({e.rank < smaller.ranks, e.order});
    else if (rest[e.left].present && rest[e.right].present)
      rest.push_back({true, sum_order(rest[e.left].order, rest[e.right].order)});
    else
      rest.push_back(rest[e.left].present ? rest[e.left] : rest[e.right]);
  }
  return rest[top].order == smaller.expressions[smaller.result(0, 0)].order;
}

template <class T>
void evaluate(Proof const& proof, std::int32_t expression, std::vector<T const*> const& inputs, std::int64_t count,
              T* out) {
  LOCKSTEP_THROW_IF(
      std::int32_t(inputs.size()) != proof.ranks, ExitCode::usage,
      name("an expression over", proof.ranks) + name(" ranks is given", std::int64_t(inputs.size())) + " inputs");
  // Postfix order: an operand pushes its values, a sum adds the two topmost. Blocks keep the stack in cache.
  std::vector<std::int32_t> postfix;
  std::vector<std::int32_t> open{expression};
  while (!open.empty()) {  // right operands first, then reversed
    std::int32_t const e = open.back();
    open.pop_back();
    postfix.push_back(e);
    if (proof.expressions[e].left >= 0)
      open.insert(open.end(), {proof.expressions[e].left, proof.expressions[e].right});
  }
  std::reverse(postfix.begin(), postfix.end());

  constexpr std::int64_t block = 256;
  std::vector<std::vector<T>> stack;
  for (std::int64_t begin = 0; begin < count; begin += block) {
    std::int64_t const size = std::min(block, count - begin);
    std::size_t depth       = 0;
    for (std::int32_t e : postfix) {
      if (proof.expressions[e].left < 0) {
        T const* const values = inputs[proof.expressions[e].rank] + begin;
        if (depth == stack.size()) stack.emplace_back(block);
        std::copy(values, values + size, stack[depth++].begin());
      } else {
        T* const left        = stack[depth - 2].data();
        T const* const right = stack[depth - 1].data();
        for (std::int64_t i = 0; i < size; ++i) left[i] = left[i] + right[i];
        --depth;
      }
    }
    std::copy(stack[0].begin(), stack[0].begin() + size, out + begin);
  }
}

template void evaluate(Proof const&, std::int32_t, std::vector<float const*> const&, std::int64_t, float*);
template void evaluate(Proof const&, std::int32_t, std::vector<double const*> const&, std::int64_t, double*);
template void evaluate(Proof const&, std::int32_t, std::vector<std::int64_t const*> const&, std::int64_t,
                       std::int64_t*);

}  // namespace lockstep::comm
