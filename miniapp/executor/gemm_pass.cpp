// SPDX-License-Identifier: Apache-2.0
#include "miniapp/executor/gemm_pass.hpp"

#include <algorithm>

#include "kernels/gemm.hpp"
#include "kernels/im2col.hpp"

namespace lockstep {
namespace {

// body(share of the tiles), by all threads.
template <class Body>
void share(Space const& space, char const* label, Body const& body) {
  int const parts = space.concurrency();
  Kokkos::parallel_for(
      std::string("lockstep::executor::gemm_") + label, Kokkos::RangePolicy<Space>(space, 0, parts),
      KOKKOS_LAMBDA(int part) {
        body(Share{part, parts});
      });
}

}  // namespace

GemmPass::GemmPass(Space const& space, Plan const& plan) : m_plan(plan) {
  use_one_blas_thread();
  std::int64_t columns = 0, products = 0;
  for (Stage const& stage : plan.stages) {
    if (stage.kind != StageKind::conv2d) continue;
    columns  = std::max(columns, im2col_rows(stage.conv) * stage.conv.out_plane());
    products = std::max(products, stage.conv.out_channels * stage.conv.out_plane());
  }
  auto const allocate = [&](char const* name, std::int64_t floats) {
    return Buffer<float>(
        Kokkos::view_alloc(space, Kokkos::WithoutInitializing, std::string("lockstep::executor::gemm_") + name),
        floats);
  };
  m_work     = allocate("work", plan.size);
  m_columns  = allocate("columns", columns);
  m_products = allocate("products", products);
}

void GemmPass::prepare(BlockRunner::Job& job) const {
  job.work = job.scratch = m_work.data();
  job.conv_work          = m_work.data() + m_plan.conv;
}

void GemmPass::forward(Space const& space, Stage const& stage, float const* values) const {
  float* const work       = m_work.data();
  float const* const x    = work + stage.input;
  float* const y          = work + stage.output;
  float const* const bias = values + stage.bias;
  if (stage.kind == StageKind::dense) {
    Dense const d = stage.dense;
    gemm(space, Transpose::yes, {values + stage.weight, d.in, d.out}, Transpose::no, {x, d.in, lanes}, false,
         {y, d.out, lanes});
    share(
        space, "dense_epilogue", KOKKOS_LAMBDA(Share own) { dense_epilogue<Pack>(d, bias, y, own); });
    return;
  }
  Conv2d const c                  = stage.conv;
  float* const columns            = m_columns.data();
  float* const sums               = m_products.data();
  std::uint8_t* const flags       = BlockRunner::flags_of(stage, work);
  std::int64_t const columns_of_y = c.out_plane();
  share(
      space, "im2col", KOKKOS_LAMBDA(Share own) { im2col<Pack>(c, x, columns, own); });
  gemm(space, Transpose::no, {values + stage.weight, c.out_channels, im2col_rows(c)}, Transpose::no,
       {columns, im2col_rows(c), columns_of_y}, false, {sums, c.out_channels, columns_of_y});
  share(
      space, "conv2d_epilogue", KOKKOS_LAMBDA(Share own) { conv2d_epilogue<Pack>(c, sums, bias, y, flags, own); });
}

void GemmPass::output_gradient(Space const& space, Stage const& stage, float* d_out) const {
  float* const work    = m_work.data();
  float const* const y = work + stage.output;
  if (stage.kind == StageKind::dense) {
    Dense const d           = stage.dense;
    float* const transposed = work + m_plan.transposed;
    share(
        space, "dense_output_gradient",
        KOKKOS_LAMBDA(Share own) { dense_output_gradient<Pack>(d, y, d_out, transposed, own); });
    return;
  }
  Conv2d const c                  = stage.conv;
  float* const dy                 = m_products.data();
  std::uint8_t const* const flags = BlockRunner::flags_of(stage, work);
  share(
      space, "conv2d_output_gradient", KOKKOS_LAMBDA(Share own) {
        for (int channel = 0; channel < c.out_channels; ++channel)
          if (own.has(channel))
            conv2d_output_gradient<Pack>(c, y, flags, d_out, channel, channel + 1, 0, c.out_height,
                                         dy + channel * c.out_plane(), c.out_plane());
      });
}

void GemmPass::weight_gradient(Space const& space, Stage const& stage, float const* d_out,
                               GradientRows const& rows) const {
  float* const work    = m_work.data();
  float const* const x = work + stage.input;
  float* const weight  = rows.first + stage.weight;
  if (stage.kind == StageKind::dense) {
    Dense const d = stage.dense;
    gemm(space, Transpose::no, {x, d.in, lanes}, Transpose::yes, {d_out, d.out, lanes}, rows.add,
         {weight, d.in, d.out});
    share(
        space, "dense_bias_gradient", KOKKOS_LAMBDA(Share own) {
          if (own.has(0)) add_lane_sums<Pack>(rows, d_out, d.out, stage.bias);
        });
    return;
  }
  Conv2d const c        = stage.conv;
  float* const columns  = m_columns.data();
  float const* const dy = m_products.data();
  float* const sums     = work + m_plan.conv;
  share(
      space, "im2col", KOKKOS_LAMBDA(Share own) { im2col<Pack>(c, x, columns, own); });
  gemm(space, Transpose::no, {dy, c.out_channels, c.out_plane()}, Transpose::yes,
       {columns, im2col_rows(c), c.out_plane()}, rows.add, {weight, c.out_channels, im2col_rows(c)});
  share(
      space, "conv2d_bias_gradient", KOKKOS_LAMBDA(Share own) {
        if (own.has(0)) conv2d_bias_gradient<Pack>(c, dy, sums, rows, stage.bias);
      });
}

void GemmPass::data_gradient(Space const& space, Stage const& stage, float const* d_out, float const* values,
                             float* d_in) const {
  float const* const weight = values + stage.weight;
  if (stage.kind == StageKind::dense) {
    Dense const d = stage.dense;
    gemm(space, Transpose::no, {weight, d.in, d.out}, Transpose::no, {d_out, d.out, lanes}, false, {d_in, d.in, lanes});
    return;
  }
  Conv2d const c       = stage.conv;
  float* const columns = m_columns.data();
  gemm(space, Transpose::yes, {weight, c.out_channels, im2col_rows(c)}, Transpose::no,
       {m_products.data(), c.out_channels, c.out_plane()}, false, {columns, im2col_rows(c), c.out_plane()});
  share(
      space, "col2im", KOKKOS_LAMBDA(Share own) { col2im<Pack>(c, columns, d_in, own); });
}

void GemmPass::forward(Space const& space, BlockRunner const& block, BlockRunner::Job const& job,
                       float const* values) const {
  for (int phase = 0; phase < block.forward_phases(); ++phase)
    if (phase > 0 && m_plan.stages[std::size_t(phase - 1)].weight >= 0)
      forward(space, m_plan.stages[std::size_t(phase - 1)], values);
    else
      share(
          space, "forward", KOKKOS_LAMBDA(Share own) { block.run<Pack>(phase, job, values, own); });
}

void GemmPass::gradients(Space const& space, BlockRunner const& block, BlockRunner::Job const& job,
                         float const* values) const {
  forward(space, block, job, values);
  auto const run = [&](int phase) {
    share(
        space, "backward", KOKKOS_LAMBDA(Share own) { block.run<Pack>(phase, job, values, own); });
  };
  run(block.forward_phases());  // the loss
  for (int s = block.stage_count - 1, turn = 0; s >= 0; --s, turn = 1 - turn) {
    Stage const& stage = m_plan.stages[std::size_t(s)];
    if (stage.weight < 0) {
      run(block.backward_phase(s));
      continue;
    }
    float* const d_out = job.work + block.gradient[turn];
    output_gradient(space, stage, d_out);
    weight_gradient(space, stage, d_out, job.rows);
    if (stage.data_gradient) data_gradient(space, stage, d_out, values, job.work + block.gradient[1 - turn]);
  }
}

}  // namespace lockstep
