// SPDX-License-Identifier: Apache-2.0
#include "miniapp/data/synthetic.hpp"

#include "kernels/random.hpp"

#include <algorithm>
#include <array>

namespace lockstep {

namespace {

constexpr int side  = 28;
constexpr int fine  = 4;            // distance-field points per pixel
constexpr int field = side * fine;  // points per row of a distance field
constexpr int unit  = 64;           // distances are in 1/64 pixel

struct Point {
  std::int32_t x, y;  // pixels
};

// The signs' strokes as polylines in pixel coordinates around (14, 14).
std::vector<Point> const signs[10] = {
    {{14, 4}, {18, 6}, {20, 10}, {20, 18}, {18, 22}, {14, 24}, {10, 22}, {8, 18}, {8, 10}, {10, 6}, {14, 4}},
    {{9, 9}, {14, 4}, {14, 24}},
    {{8, 9}, {10, 5}, {14, 4}, {18, 5}, {20, 9}, {18, 13}, {8, 24}, {20, 24}},
    {{8, 6}, {14, 4}, {19, 6}, {19, 11}, {13, 13}, {20, 16}, {19, 22}, {14, 24}, {8, 22}},
    {{17, 24}, {17, 4}, {8, 17}, {21, 17}},
    {{19, 4}, {9, 4}, {9, 13}, {15, 11}, {20, 15}, {20, 20}, {15, 24}, {8, 22}},
    {{18, 4}, {11, 9}, {8, 17}, {10, 23}, {15, 24}, {20, 21}, {19, 16}, {14, 13}, {9, 16}},
    {{8, 4}, {20, 4}, {12, 24}},
    {{14, 13},
     {9, 10},
     {10, 5},
     {14, 4},
     {18, 5},
     {19, 10},
     {14, 13},
     {8, 18},
     {10, 23},
     {14, 24},
     {18, 23},
     {20, 18},
     {14, 13}},
    {{10, 24}, {17, 19}, {20, 11}, {18, 5}, {13, 4}, {8, 7}, {9, 12}, {14, 15}, {19, 12}},
};

std::int64_t integer_sqrt(std::int64_t value) {
  std::int64_t root = 0;
  for (std::int64_t bit = std::int64_t(1) << 30; bit > 0; bit >>= 1)
    if ((root + bit) * (root + bit) <= value) root += bit;
  return root;
}

// Square of the distance of p from segment a-b; all in 1/unit pixels.
std::int64_t distance2(Point p, Point a, Point b) {
  std::int64_t const ux = b.x - a.x, uy = b.y - a.y, vx = p.x - a.x, vy = p.y - a.y;
  std::int64_t const length2 = ux * ux + uy * uy;
  std::int64_t const along   = std::clamp<std::int64_t>(ux * vx + uy * vy, 0, length2);
  std::int64_t const dx = vx - ux * along / length2, dy = vy - uy * along / length2;
  return dx * dx + dy * dy;
}

using DistanceField = std::array<std::int16_t, field * field>;

std::vector<DistanceField> draw_fields() {
  std::vector<DistanceField> fields(10);
  for (int label = 0; label < 10; ++label)
    for (int y = 0; y < field; ++y)
      for (int x = 0; x < field; ++x) {
        Point const p{(2 * x + 1) * unit / (2 * fine), (2 * y + 1) * unit / (2 * fine)};
        std::int64_t nearest2 = INT64_MAX;
        auto const& sign      = signs[label];
        for (std::size_t i = 1; i < sign.size(); ++i)
          nearest2 = std::min(nearest2, distance2(p, {sign[i - 1].x * unit, sign[i - 1].y * unit},
                                                  {sign[i].x * unit, sign[i].y * unit}));
        fields[std::size_t(label)][std::size_t(y * field + x)] = std::int16_t(integer_sqrt(nearest2));
      }
  return fields;
}

// An affine map from image to sign, in 1/256: the sign's point is matrix * (pixel - centre) + centre + shift.
struct Pose {
  std::int32_t xx, xy, yx, yy;    // 256 = original size, larger = smaller sign
  std::int32_t shift_x, shift_y;  // 1/256 of a field point
};

// max_shift in field points.
Pose draw_pose(RandomStream& random, std::int32_t max_shift) {
  Pose pose;
  pose.xx      = random.between(140, 230);
  pose.yy      = random.between(140, 230);
  pose.xy      = random.between(-50, 50);  // mostly a rotation
  pose.yx      = random.between(-25, 25) - pose.xy;
  pose.shift_x = random.between(-256 * max_shift, 256 * max_shift);
  pose.shift_y = random.between(-256 * max_shift, 256 * max_shift);
  return pose;
}

using Pixels = std::array<std::int32_t, side * side>;

// Strokes of half_width (1/unit pixel) with edges one pixel wide; overlapping signs do not add up.
void draw_sign(Pixels& pixels, DistanceField const& distances, Pose const& pose, std::int32_t half_width,
               std::int32_t ink) {
  for (int y = 0; y < side; ++y)
    for (int x = 0; x < side; ++x) {
      // Twice the distance from the centre between pixels 13 and 14 is a whole number.
      std::int32_t const dx = (2 * x - (side - 1)) * (fine / 2), dy = (2 * y - (side - 1)) * (fine / 2);
      std::int32_t const u = pose.xx * dx + pose.xy * dy + field / 2 * 256 + pose.shift_x;
      std::int32_t const v = pose.yx * dx + pose.yy * dy + field / 2 * 256 + pose.shift_y;
      int const column     = std::clamp(u, 0, field * 256 - 1) / 256;
      int const row        = std::clamp(v, 0, field * 256 - 1) / 256;
      int const cover      = std::clamp(half_width + unit / 2 - distances[std::size_t(row * field + column)], 0, unit);
      auto& pixel          = pixels[std::size_t(y * side + x)];
      pixel                = std::max(pixel, ink * cover / unit);
    }
}

void add_noise(Pixels const& pixels, RandomStream& random, std::int32_t amplitude, std::uint8_t* image) {
  for (int first = 0; first < side * side; first += 16) {
    Philox4 const block = random.next_block();
    for (int i = 0; i < 16; ++i) {
      auto const byte = std::int32_t(block.words[i / 4] >> (8 * (i % 4)) & 255);
      image[first + i] =
          std::uint8_t(std::clamp(pixels[std::size_t(first + i)] + byte * amplitude / 128 - amplitude, 0, 255));
    }
  }
}

}  // namespace

Dataset make_synthetic(SyntheticPart part, std::int64_t count) {
  static std::vector<DistanceField> const fields = draw_fields();
  Dataset data;
  data.height = data.width = side;
  data.count               = count;
  data.images.resize(std::size_t(count) * side * side);
  data.labels.resize(std::size_t(count));
  auto const first = part == SyntheticPart::train ? std::uint64_t(0) : std::uint64_t(1) << 32;
  for (std::int64_t i = 0; i < count; ++i) {
    RandomStream random(0, RandomPurpose::image, first + std::uint64_t(i));
    auto const draw = [&](int low, int high) { return random.between(low, high); };
    Pixels pixels{};

    std::uint32_t const label = random.below(10);
    Pose const pose           = draw_pose(random, 18);
    // Some signs are bolder than others: classes that differ in brightness, as garments do, get training off its start.
    std::int32_t const half_width = draw(30, 80) + 30 * int(label * 7 % 10);
    std::int32_t const ink        = draw(200, 255);
    draw_sign(pixels, fields[label], pose, half_width, ink);

    // Clutter: a dim sign anywhere, often partly outside.
    std::uint32_t const other      = random.below(10);
    Pose const other_pose          = draw_pose(random, 56);
    std::int32_t const other_width = draw(40, 90);
    std::int32_t const other_ink   = draw(0, 180);
    draw_sign(pixels, fields[other], other_pose, other_width, other_ink);

    data.labels[std::size_t(i)] = std::uint8_t(label);
    add_noise(pixels, random, draw(0, 90), data.images.data() + i * side * side);
  }
  return data;
}

}  // namespace lockstep
