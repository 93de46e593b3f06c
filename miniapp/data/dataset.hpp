// SPDX-License-Identifier: Apache-2.0
// Image data sets in host memory.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

struct Dataset {
  int height = 0, width = 0;
  std::int64_t count = 0;
  std::vector<std::uint8_t> images;  // [count][height][width], 0..255
  std::vector<std::uint8_t> labels;  // [count], 0..9
  std::string
      sha256;  // of the images, then the labels: all that the files hold, without headers; or all that was drawn
};

struct TrainTest {
  std::string name;    // "fashion-mnist", "synthetic", or the folder
  std::string source;  // where it was found, for the report
  std::string notice;  // not empty: something the user must see (the fall-back of `auto`)
  Dataset train, test;
};

// spec: auto | fashion-mnist | synthetic | a folder with the four IDX files. The first train_images / test_images are
// kept (0 = all; more than there are: Error, usage). Throws Error (usage) naming file, found and expected.
TrainTest load_dataset(std::string const& spec, std::int64_t train_images = 0, std::int64_t test_images = 0);

}  // namespace lockstep
