// SPDX-License-Identifier: Apache-2.0
#include "miniapp/data/dataset.hpp"

#include "kernels/error.hpp"
#include "miniapp/data/idx.hpp"
#include "miniapp/data/synthetic.hpp"
#include "miniapp/sha256.hpp"

#include <cstdlib>
#include <filesystem>

namespace lockstep {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t side        = 28;
constexpr char const debian_path[] = "/usr/share/datasets/fashion-mnist";

// Of the decoded content; archives of the same content differ from place to place.
constexpr char const fashion_train_sha256[] = "16d82e2b505296aa2b78bd5ea0992634f30419a4c97def7c907d154a35ac6157";
constexpr char const fashion_test_sha256[]  = "9f1ec356a747bfe4ebab3cfb722d3694c9ca737e2570f6f90cf31d7b6fd689d4";

std::string find_file(fs::path const& folder, std::string const& name) {
  std::error_code code;
  for (char const* suffix : {".gz", ""})
    if (fs::exists(folder / (name + suffix), code)) return (folder / (name + suffix)).string();
  throw Error(ExitCode::usage, folder.string() + ": no file " + name + ".gz or " + name +
                                   " found, expected a folder with the four IDX files of Fashion-MNIST");
}

std::string content_sha256(Dataset const& data) {
  std::vector<std::uint8_t> content = data.images;
  content.insert(content.end(), data.labels.begin(), data.labels.end());
  return sha256(content.data(), content.size());
}

Dataset read_part(fs::path const& folder, std::string const& prefix) {
  std::string const images_path = find_file(folder, prefix + "-images-idx3-ubyte");
  std::string const labels_path = find_file(folder, prefix + "-labels-idx1-ubyte");
  IdxFile images                = read_idx(images_path, "images", {0, side, side});
  IdxFile labels                = read_idx(labels_path, "labels", {0});
  LOCKSTEP_THROW_IF(images.extents[0] > INT32_MAX, ExitCode::usage,
                    images_path + ": " + std::to_string(images.extents[0]) + " images, expected at most 2147483647");
  LOCKSTEP_THROW_IF(labels.extents[0] != images.extents[0], ExitCode::usage,
                    labels_path + ": " + std::to_string(labels.extents[0]) + " labels, expected " +
                        std::to_string(images.extents[0]) + ", the number of images in " + images_path);
  for (std::size_t i = 0; i < labels.values.size(); ++i)
    LOCKSTEP_THROW_IF(
        labels.values[i] > 9, ExitCode::usage,
        labels_path + ": label " + std::to_string(i) + " is " + std::to_string(labels.values[i]) + ", expected 0 .. 9");
  Dataset data;
  data.height = data.width = int(side);
  data.count               = images.extents[0];
  data.images              = std::move(images.values);
  data.labels              = std::move(labels.values);
  data.sha256              = content_sha256(data);
  return data;
}

TrainTest read_folder(std::string const& folder) {
  std::error_code code;
  LOCKSTEP_THROW_IF(
      !fs::exists(folder, code), ExitCode::usage,
      "data set '" + folder +
          "': no such folder, expected auto, fashion-mnist, synthetic or a folder with the four IDX files");
  LOCKSTEP_THROW_IF(!fs::is_directory(folder, code), ExitCode::usage,
                    folder + ": is not a folder, expected a folder with the four IDX files of Fashion-MNIST");
  TrainTest data;
  data.source           = folder;
  data.train            = read_part(folder, "train");
  data.test             = read_part(folder, "t10k");
  bool const is_fashion = data.train.sha256 == fashion_train_sha256 && data.test.sha256 == fashion_test_sha256;
  data.name             = is_fashion ? "fashion-mnist" : folder;
  return data;
}

// The folder that auto and fashion-mnist read, or empty. A variable that is set is believed, so that a wrong one is an
// error.
std::string installed_folder() {
  if (char const* variable = std::getenv("LOCKSTEP_DATA"); variable != nullptr && *variable != '\0') return variable;
  std::error_code code;
  return fs::is_directory(debian_path, code) ? debian_path : "";
}

std::int64_t checked_count(std::string const& option, std::int64_t asked, std::int64_t available) {
  LOCKSTEP_THROW_IF(
      asked < 0 || asked > available, ExitCode::usage,
      option + " is " + std::to_string(asked) + ", expected 1 .. " + std::to_string(available) + ", or 0 for all");
  return asked == 0 ? available : asked;
}

void keep_first(Dataset& data, std::int64_t count) {
  data.count = count;
  data.images.resize(std::size_t(count) * std::size_t(data.height) * std::size_t(data.width));
  data.labels.resize(std::size_t(count));
}

TrainTest synthetic(std::int64_t train_images, std::int64_t test_images) {
  TrainTest data;
  data.name         = "synthetic";
  data.source       = "drawn by lockstep";
  data.train        = make_synthetic(SyntheticPart::train, train_images);
  data.test         = make_synthetic(SyntheticPart::test, test_images);
  data.train.sha256 = content_sha256(data.train);
  data.test.sha256  = content_sha256(data.test);
  return data;
}

}  // namespace

TrainTest load_dataset(std::string const& spec, std::int64_t train_images, std::int64_t test_images) {
  std::string const folder = spec == "auto" || spec == "fashion-mnist" ? installed_folder() : spec;
  LOCKSTEP_THROW_IF(spec == "fashion-mnist" && folder.empty(), ExitCode::usage,
                    std::string("data set fashion-mnist: not found, expected the folder named by LOCKSTEP_DATA or ") +
                        debian_path + " (Debian package dataset-fashion-mnist)");
  if (spec == "synthetic" || folder.empty()) {
    LOCKSTEP_THROW_IF(spec.empty(), ExitCode::usage,
                      "data set '': expected auto, fashion-mnist, synthetic or a folder with the four IDX files");
    TrainTest data = synthetic(checked_count("--train-images", train_images, synthetic_train_images),
                               checked_count("--test-images", test_images, synthetic_test_images));
    if (spec == "auto")
      data.notice = std::string("Fashion-MNIST not found (LOCKSTEP_DATA is not set, no ") + debian_path +
                    "): using the embedded synthetic data set; its accuracy is not Fashion-MNIST's";
    return data;
  }
  TrainTest data = read_folder(folder);
  LOCKSTEP_THROW_IF(spec == "fashion-mnist" && data.name != spec, ExitCode::usage,
                    folder + ": is not Fashion-MNIST: content has SHA-256 " + data.train.sha256 + " (train) and " +
                        data.test.sha256 + " (test), expected " + fashion_train_sha256 + " and " + fashion_test_sha256);
  keep_first(data.train, checked_count("--train-images", train_images, data.train.count));
  keep_first(data.test, checked_count("--test-images", test_images, data.test.count));
  return data;
}

}  // namespace lockstep
