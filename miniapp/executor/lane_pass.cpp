// SPDX-License-Identifier: Apache-2.0
#include "miniapp/executor/lane_pass.hpp"

#include <algorithm>

#include "kernels/error.hpp"
#include "kernels/kokkos_compat.hpp"
#include "kernels/lane_tiles.hpp"

namespace lockstep {
namespace {

using Policy     = Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>;
using TeamPolicy = Kokkos::TeamPolicy<Space>;

// Threads find their tile by divisions, which are several times dearer in 64 bits.
Policy threads(Space const& space, std::int64_t count) {
  LOCKSTEP_THROW_IF(count >= std::int64_t(1) << 32, ExitCode::usage,
                    "executor: a launch of " + std::to_string(count) + " threads; expected less than 2^32");
  return Policy(space, 0, count);
}

// A wave's blocks, and where a block's images and work space are.
struct Blocks {
  LaneUnits units;
  LanePass::Wave wave;
  float* work;
  std::int64_t size, dy;

  KOKKOS_FUNCTION std::int64_t count() const { return wave.units * wave.blocks; }
  KOKKOS_FUNCTION std::int64_t unit(std::int64_t block) const {
    return wave.unit + std::uint32_t(block) / std::uint32_t(wave.blocks);
  }
  KOKKOS_FUNCTION std::int64_t first_image(std::int64_t block) const {
    return unit(block) * units.unit_size + (wave.block + std::uint32_t(block) % std::uint32_t(wave.blocks)) * lanes;
  }
  // Images of a block: the last of a unit may be short, and the last unit may lack blocks.
  KOKKOS_FUNCTION int images(std::int64_t block) const {
    std::int64_t const all = (unit(block) + 1) * units.unit_size, end = all < units.count ? all : units.count,
                       left = end - first_image(block);
    return left <= 0 ? 0 : left < lanes ? int(left) : lanes;
  }
  KOKKOS_FUNCTION std::int64_t image(std::int64_t block, int lane) const {
    std::int64_t const i = first_image(block) + lane;
    return units.order ? units.order[units.first + i] : units.first + i;
  }
  KOKKOS_FUNCTION float* of(std::int64_t block) const { return work + block * size; }
  KOKKOS_FUNCTION float* row(std::int64_t block, int shard) const {
    return units.rows + (unit(block) * units.shards() + shard) * units.stride;
  }
  KOKKOS_FUNCTION int shards(std::int64_t block) const { return (images(block) + units.group - 1) / units.group; }
};

// A thread for each (block, tile, lane), lanes innermost.
template <class Body>
struct Tiled {
  Blocks blocks;
  std::int64_t tiles;
  Body body;

  KOKKOS_FUNCTION void operator()(std::int64_t thread) const {
    std::uint32_t const number = std::uint32_t(thread), all = std::uint32_t(tiles), block = number / lanes / all;
    if (blocks.images(block) > 0) body(blocks, block, int(number / lanes - block * all), int(number % lanes));
  }
};
template <class Body>
void for_each_tile(Space const& space, char const* label, Blocks const& blocks, std::int64_t tiles, Body const& body) {
  launch(label, threads(space, blocks.count() * tiles * lanes), Tiled<Body>{blocks, tiles, body});
}

KOKKOS_INLINE_FUNCTION std::uint8_t* flags_of(Stage const& stage, float* work, int lane) {
  return stage.flags < 0 ? nullptr : reinterpret_cast<std::uint8_t*>(work + stage.flags) + lane;
}

struct Load {  // a tile is a row
  Shape full, input;
  std::int64_t at;

  KOKKOS_FUNCTION void operator()(Blocks const& blocks, std::int64_t block, int tile, int lane) const {
    float* x = blocks.of(block) + at + tile * input.width * lanes + lane;
    if (lane >= blocks.images(block)) {
      for (int column = 0; column < input.width; ++column) x[column * lanes] = 0.0f;
      return;
    }
    std::uint8_t const* from = blocks.units.images + blocks.image(block, lane) * full.size() +
                               (tile / input.height * full.height + tile % input.height) * full.width;
    for (int column = 0; column < input.width; ++column) x[column * lanes] = float(from[column]) / 255.0f;
  }
};

template <int K>
struct ConvForward {
  Stage stage;
  float const* values;

  KOKKOS_FUNCTION void operator()(Blocks const& blocks, std::int64_t block, int tile, int lane) const {
    float* work = blocks.of(block);
    lane::forward<K>(stage.conv, work + stage.input + lane, values + stage.weight, values + stage.bias, tile,
                     work + stage.output + lane, flags_of(stage, work, lane));
  }
};

struct DenseForward {
  Stage stage;
  float const* values;

  KOKKOS_FUNCTION void operator()(Blocks const& blocks, std::int64_t block, int tile, int lane) const {
    float* work = blocks.of(block);
    lane::forward(stage.dense, work + stage.input + lane, values + stage.weight, values + stage.bias, tile,
                  work + stage.output + lane);
  }
};

struct PoolForward {  // a tile is an element of the output
  Stage stage;

  KOKKOS_FUNCTION void operator()(Blocks const& blocks, std::int64_t block, int tile, int lane) const {
    float* work = blocks.of(block);
    average_pool2d_forward_element<ScalarPack>(stage.pool, work + stage.input + lane, tile / stage.pool.out_width,
                                               tile % stage.pool.out_width, work + stage.output + lane);
  }
};

struct ReluForward {
  Stage stage;

  KOKKOS_FUNCTION void operator()(Blocks const& blocks, std::int64_t block, int tile, int lane) const {
    float* work = blocks.of(block) + tile * lanes + lane;
    rectify(ScalarPack::load(work + stage.input)).store(work + stage.output);
  }
};

struct Loss {
  int classes;
  std::int64_t logits, losses, gradient;

  KOKKOS_FUNCTION void operator()(Blocks const& blocks, std::int64_t block, int, int lane) const {
    float* work = blocks.of(block) + lane;
    if (lane >= blocks.images(block)) {
      work[losses] = 0.0f;
      for (int c = 0; c < classes; ++c) work[gradient + c * lanes] = 0.0f;
      return;
    }
    int const label = blocks.units.labels[blocks.image(block, lane)];
    work[losses] = softmax_losses(classes, work + logits, ScalarPack(work[logits + label * lanes]), work + gradient).v;
    work[gradient + label * lanes] -= 1.0f;
  }
};

struct ConvOutputGradient {
  Stage stage;
  std::int64_t d_out;

  KOKKOS_FUNCTION void operator()(Blocks const& blocks, std::int64_t block, int tile, int lane) const {
    float* work = blocks.of(block);
    lane::output_gradient(stage.conv, work + stage.output + lane, flags_of(stage, work, lane), work + d_out + lane,
                          tile, work + blocks.dy + lane);
  }
};

struct DenseOutputGradient {
  Stage stage;
  std::int64_t d_out, transposed;

  KOKKOS_FUNCTION void operator()(Blocks const& blocks, std::int64_t block, int tile, int lane) const {
    float* work = blocks.of(block);
    lane::output_gradient(stage.dense, work + stage.output + lane, tile, lane, work + d_out + lane, work + transposed);
  }
};

template <int K>
struct ConvDataGradient {
  Stage stage;
  float const* values;
  std::int64_t d_in;

  KOKKOS_FUNCTION void operator()(Blocks const& blocks, std::int64_t block, int tile, int lane) const {
    float* work = blocks.of(block) + lane;
    lane::data_gradient<K>(stage.conv, work + blocks.dy, values + stage.weight, tile, work + d_in);
  }
};

struct DenseDataGradient {
  Stage stage;
  float const* values;
  std::int64_t d_out, d_in;

  KOKKOS_FUNCTION void operator()(Blocks const& blocks, std::int64_t block, int tile, int lane) const {
    float* work = blocks.of(block) + lane;
    lane::data_gradient(stage.dense, work + d_out, values + stage.weight, tile, work + d_in);
  }
};

struct PoolBackward {
  Stage stage;
  std::int64_t d_out, d_in;

  KOKKOS_FUNCTION void operator()(Blocks const& blocks, std::int64_t block, int tile, int lane) const {
    float* work = blocks.of(block) + lane;
    average_pool2d_backward_element<ScalarPack>(stage.pool, work + d_out, tile / stage.pool.out_width,
                                                tile % stage.pool.out_width, work + d_in);
  }
};

struct ReluBackward {
  Stage stage;
  std::int64_t d_out, d_in;

  KOKKOS_FUNCTION void operator()(Blocks const& blocks, std::int64_t block, int tile, int lane) const {
    float* work = blocks.of(block) + tile * lanes + lane;
    where_passed(ScalarPack::load(work + stage.output), ScalarPack::load(work + d_out)).store(work + d_in);
  }
};

// Sums over lanes of [element][lane] arrays into the rows, blocks of a unit in order: a thread for each (unit, shard,
// element).
struct LaneSums {
  Blocks blocks;
  std::int64_t from, elements, at;

  KOKKOS_FUNCTION void operator()(std::int64_t thread) const {
    std::uint32_t const number = std::uint32_t(thread), all = std::uint32_t(elements), rest = number / all,
                        shards = std::uint32_t(blocks.units.shards());
    std::int64_t const element = number % all, unit = rest / shards;
    int const shard = int(rest % shards);
    for (std::int64_t b = 0; b < blocks.wave.blocks; ++b) {
      std::int64_t const block = unit * blocks.wave.blocks + b;
      if (shard >= blocks.shards(block)) return;
      float const sum = lane::sum_of_group(blocks.units.group,
                                           blocks.of(block) + from + element * lanes + shard * blocks.units.group);
      float* to       = blocks.row(block, shard) + at + element;
      *to             = blocks.wave.block + b > 0 ? *to + sum : sum;
    }
  }
};
void sum_lanes(Space const& space, char const* label, LaneSums const& sums) {
  launch(label, threads(space, sums.blocks.wave.units * sums.blocks.units.shards() * sums.elements), sums);
}

// A team takes several tiles of a unit; the lanes' parts meet in its scratch memory. The pitch of an element's lanes is
// odd, so that neighbouring elements lie in different banks.
template <int K>
struct ConvWeightGradient {
  using Tiles                   = lane::WeightGradient<K>;
  static constexpr int group    = 8;  // tiles of a team
  static constexpr int pitch    = lanes + 1;
  static constexpr int per_tile = Tiles::elements * pitch;
  static constexpr int bytes    = group * per_tile * int(sizeof(float));
  Blocks blocks;
  Stage stage;
  int tiles, groups;  // of a block

  KOKKOS_FUNCTION void operator()(TeamPolicy::member_type const& team) const {
    int const size          = bytes;  // taken by reference below, which a device has not of a constant
    float* const scratch    = static_cast<float*>(team.team_shmem().get_shmem(size));
    std::int64_t const unit = team.league_rank() / groups;
    int const first         = team.league_rank() % groups * group;
    for (std::int64_t b = 0; b < blocks.wave.blocks; ++b) {
      std::int64_t const block = unit * blocks.wave.blocks + b;
      if (blocks.images(block) == 0) break;
      float* const work = blocks.of(block);
      Kokkos::parallel_for(Kokkos::TeamThreadRange(team, group * lanes), [&](int thread) {
        int const lane = thread % lanes;
        int const tile = first + thread / lanes;
        if (tile < tiles)
          Tiles::run(stage.conv, work + stage.input + lane, work + blocks.dy + lane, tile,
                     scratch + thread / lanes * per_tile + lane, pitch);
      });
      team.team_barrier();
      bool const add   = blocks.wave.block + b > 0;
      int const shards = blocks.shards(block);
      Kokkos::parallel_for(Kokkos::TeamThreadRange(team, group * lanes), [&](int thread) {
        int const tile = first + thread / lanes;
        if (tile >= tiles) return;
        for (int element = thread % lanes; element < Tiles::elements; element += lanes) {
          std::int64_t const at = Tiles::place(stage.conv, tile, element, stage.weight, stage.bias);
          if (at < 0) break;
          float const* from = scratch + thread / lanes * per_tile + element * pitch;
          for (int shard = 0; shard < shards; ++shard) {
            float const sum = lane::sum_of_group(blocks.units.group, from + shard * blocks.units.group);
            float* to       = blocks.row(block, shard) + at;
            *to             = add ? *to + sum : sum;
          }
        }
      });
      team.team_barrier();
    }
  }
};
template <int K>
void conv_weight_gradient(Space const& space, Blocks const& blocks, Stage const& stage) {
  using Body       = ConvWeightGradient<K>;
  int const tiles  = Body::Tiles::tiles(stage.conv);
  int const groups = (tiles + Body::group - 1) / Body::group;
  int const team   = on_host ? 1 : Body::group * lanes;
  launch(
      "lockstep::lane_pass::conv2d_weight_gradient",
      TeamPolicy(space, int(blocks.wave.units * groups), team).set_scratch_size(0, Kokkos::PerTeam(Body::bytes + 64)),
      Body{blocks, stage, tiles, groups});
}

// A thread for each (unit, shard, tile of inputs, output unit), the last innermost.
struct DenseWeightGradient {
  Blocks blocks;
  Stage stage;
  std::int64_t transposed;
  int tiles;

  KOKKOS_FUNCTION void operator()(std::int64_t thread) const {
    std::uint32_t const number = std::uint32_t(thread), out = std::uint32_t(stage.dense.out),
                        inputs = std::uint32_t(tiles), rest = number / out / inputs,
                        shards = std::uint32_t(blocks.units.shards());
    std::int64_t const j = number % out, unit = rest / shards;
    int const tile  = int(number / out % inputs);
    int const shard = int(rest % shards);
    for (std::int64_t b = 0; b < blocks.wave.blocks; ++b) {
      std::int64_t const block = unit * blocks.wave.blocks + b;
      if (shard >= blocks.shards(block)) return;
      float const* work = blocks.of(block);
      int const begin = shard * blocks.units.group, all = begin + blocks.units.group, images = blocks.images(block);
      lane::weight_gradient(stage.dense, work + stage.input, work + transposed, begin, all < images ? all : images,
                            blocks.wave.block + b > 0, tile, j, blocks.row(block, shard) + stage.weight);
    }
  }
};

struct Correct {
  std::int64_t logits;
  int classes;
  std::int64_t* correct;

  KOKKOS_FUNCTION void operator()(Blocks const& blocks, std::int64_t block, int, int lane) const {
    if (lane >= blocks.images(block)) return;
    if (is_correct(classes, blocks.of(block) + logits + lane, blocks.units.labels[blocks.image(block, lane)]))
      Kokkos::atomic_add(correct, std::int64_t(1));
  }
};

struct CopyLogits {
  std::int64_t logits;
  int classes;
  float* out;

  KOKKOS_FUNCTION void operator()(Blocks const& blocks, std::int64_t block, int, int lane) const {
    if (lane >= blocks.images(block)) return;
    float const* from = blocks.of(block) + logits + lane;
    for (int c = 0; c < classes; ++c) out[(blocks.first_image(block) + lane) * classes + c] = from[c * lanes];
  }
};

// Work space for this many blocks: 8192 images' activations.
constexpr std::int64_t most_blocks = 512;

}  // namespace

LaneUnits lane_units(DeviceDataset const& data, Buffer<const std::int32_t> const& order, std::int64_t first,
                     ShardPlan const& plan, Interval run, std::int64_t stride, Buffer<float> const& rows) {
  bool const several       = plan.shard_size < lanes;
  std::int64_t const begin = run.begin * plan.shard_size, end = std::min(run.end * plan.shard_size, plan.images);
  return {data.images.data(),
          data.labels.data(),
          order.data(),
          first + begin,
          std::max<std::int64_t>(0, end - begin),
          several ? lanes : plan.shard_size,
          several ? int(plan.shard_size) : lanes,
          rows.data(),
          stride};
}

LanePass::LanePass(Space const& space, Network const& network) : m_plan(network) {
  std::int64_t dy = 0;
  m_forward.push_back({Phase::load, 0});
  m_backward = {{Phase::loss, 0}, {Phase::loss_sum, 0}};
  for (int s = 0; s < int(m_plan.stages.size()); ++s) m_forward.push_back({Phase::forward, s});
  for (int s = int(m_plan.stages.size()); s-- > 0;) {
    Stage const& stage = m_plan.stages[std::size_t(s)];
    bool const trained = stage.weight >= 0;
    if (!trained && !stage.data_gradient) break;  // nothing before it has parameters either
    if (stage.kind == StageKind::conv2d) dy = std::max(dy, stage.conv.out_channels * stage.conv.out_plane());
    if (trained) {
      m_backward.push_back({Phase::output_gradient, s});
      m_backward.push_back({Phase::weight_gradient, s});
    }
    if (stage.data_gradient) m_backward.push_back({Phase::data_gradient, s});
  }
  // Every convolution's dy is stored here, the first one's too.
  m_blocks = on_host ? 4 : most_blocks;
  m_dy     = m_plan.size;
  m_size   = m_dy + (dy + lanes - 1) / lanes * lanes;
  m_work   = Buffer<float>(Kokkos::view_alloc(space, Kokkos::WithoutInitializing, "lockstep::lane_pass::work"),
                         std::size_t(m_blocks * m_size));
}

void LanePass::run(Space const& space, Step step, LaneUnits const& units, Wave const& wave,
                   float const* parameters) const {
  Blocks const blocks{units, wave, m_work.data(), m_size, m_dy};
  Stage const& stage = m_plan.stages[std::size_t(step.stage)];
  int const last = int(m_plan.stages.size()) - 1, turn = (last - step.stage) % 2;
  std::int64_t const d_out = m_plan.gradient[turn], d_in = m_plan.gradient[1 - turn];
  int const kernel = stage.conv.kernel;
  switch (step.phase) {
    case Phase::load:
      return for_each_tile(space, "lockstep::lane_pass::load", blocks,
                           std::int64_t(m_plan.input.channels) * m_plan.input.height,
                           Load{m_plan.full_input, m_plan.input, stage.input});
    case Phase::forward:
      switch (stage.kind) {
        case StageKind::conv2d: {
          char const* const label = "lockstep::lane_pass::conv2d_forward";
          int const tiles         = lane::forward_tiles(stage.conv);
          if (kernel == 3) return for_each_tile(space, label, blocks, tiles, ConvForward<3>{stage, parameters});
          if (kernel == 5) return for_each_tile(space, label, blocks, tiles, ConvForward<5>{stage, parameters});
          return for_each_tile(space, label, blocks, tiles, ConvForward<0>{stage, parameters});
        }
        case StageKind::dense:
          return for_each_tile(space, "lockstep::lane_pass::dense_forward", blocks, lane::forward_tiles(stage.dense),
                               DenseForward{stage, parameters});
        case StageKind::pool2d:
          return for_each_tile(space, "lockstep::lane_pass::pool2d_forward", blocks, stage.out_size,
                               PoolForward{stage});
        case StageKind::relu:
          return for_each_tile(space, "lockstep::lane_pass::relu_forward", blocks, stage.in_size, ReluForward{stage});
      }
      return;
    case Phase::loss:
      return for_each_tile(space, "lockstep::lane_pass::loss", blocks, 1,
                           Loss{m_plan.classes, m_plan.stages.back().output, m_plan.losses, m_plan.gradient[0]});
    case Phase::loss_sum:
      return sum_lanes(space, "lockstep::lane_pass::loss_sum", {blocks, m_plan.losses, 1, m_plan.parameters});
    case Phase::output_gradient:
      if (stage.kind == StageKind::conv2d)
        return for_each_tile(space, "lockstep::lane_pass::conv2d_output_gradient", blocks,
                             lane::output_gradient_tiles(stage.conv), ConvOutputGradient{stage, d_out});
      return for_each_tile(space, "lockstep::lane_pass::dense_output_gradient", blocks, stage.dense.out,
                           DenseOutputGradient{stage, d_out, m_plan.transposed});
    case Phase::weight_gradient:
      if (stage.kind == StageKind::conv2d) {
        if (kernel == 3) return conv_weight_gradient<3>(space, blocks, stage);
        if (kernel == 5) return conv_weight_gradient<5>(space, blocks, stage);
        return conv_weight_gradient<0>(space, blocks, stage);
      } else {
        int const tiles = lane::weight_gradient_tiles(stage.dense);
        launch("lockstep::lane_pass::dense_weight_gradient",
               threads(space, wave.units * units.shards() * tiles * stage.dense.out),
               DenseWeightGradient{blocks, stage, m_plan.transposed, tiles});
        return sum_lanes(space, "lockstep::lane_pass::dense_bias_gradient",
                         {blocks, d_out, stage.dense.out, stage.bias});
      }
    case Phase::data_gradient:
      switch (stage.kind) {
        case StageKind::conv2d: {
          char const* const label = "lockstep::lane_pass::conv2d_data_gradient";
          if (kernel == 3)
            return for_each_tile(space, label, blocks, lane::data_gradient_tiles<3>(stage.conv),
                                 ConvDataGradient<3>{stage, parameters, d_in});
          if (kernel == 5)
            return for_each_tile(space, label, blocks, lane::data_gradient_tiles<5>(stage.conv),
                                 ConvDataGradient<5>{stage, parameters, d_in});
          return for_each_tile(space, label, blocks, lane::data_gradient_tiles<0>(stage.conv),
                               ConvDataGradient<0>{stage, parameters, d_in});
        }
        case StageKind::dense:
          return for_each_tile(space, "lockstep::lane_pass::dense_data_gradient", blocks,
                               lane::data_gradient_tiles(stage.dense),
                               DenseDataGradient{stage, parameters, d_out, d_in});
        case StageKind::pool2d:
          return for_each_tile(space, "lockstep::lane_pass::pool2d_backward", blocks, stage.out_size,
                               PoolBackward{stage, d_out, d_in});
        case StageKind::relu:
          return for_each_tile(space, "lockstep::lane_pass::relu_backward", blocks, stage.in_size,
                               ReluBackward{stage, d_out, d_in});
      }
  }
}

void LanePass::gradients(Space const& space, LaneUnits const& units, float const* parameters) const {
  for_each_wave(units, [&](Wave const& wave) {
    for (Step const step : m_forward) run(space, step, units, wave, parameters);
    for (Step const step : m_backward) run(space, step, units, wave, parameters);
  });
}

void LanePass::count_correct(Space const& space, LaneUnits const& units, float const* parameters,
                             std::int64_t* correct) const {
  for_each_wave(units, [&](Wave const& wave) {
    for (Step const step : m_forward) run(space, step, units, wave, parameters);
    for_each_tile(space, "lockstep::lane_pass::count_correct", {units, wave, m_work.data(), m_size, m_dy}, 1,
                  Correct{m_plan.stages.back().output, m_plan.classes, correct});
  });
}

void LanePass::logits(Space const& space, LaneUnits const& units, float const* parameters, float* out) const {
  for_each_wave(units, [&](Wave const& wave) {
    for (Step const step : m_forward) run(space, step, units, wave, parameters);
    for_each_tile(space, "lockstep::lane_pass::logits", {units, wave, m_work.data(), m_size, m_dy}, 1,
                  CopyLogits{m_plan.stages.back().output, m_plan.classes, out});
  });
}

}  // namespace lockstep
