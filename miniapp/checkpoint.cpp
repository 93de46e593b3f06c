// SPDX-License-Identifier: Apache-2.0
#include "miniapp/checkpoint.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include "kernels/error.hpp"
#include "miniapp/safetensors.hpp"

namespace lockstep {

namespace {

namespace fs = std::filesystem;

constexpr char const format_key[] = "lockstep", checkpoint_format[] = "checkpoint/1", weights_format[] = "weights/1";
constexpr char const prefix[] = "step-", suffix[] = ".safetensors";

std::string file_name(std::int64_t step) {
  char digits[24];
  std::snprintf(digits, sizeof digits, "%08lld", static_cast<long long>(step));
  return std::string(prefix) + digits + suffix;
}

// The step in a checkpoint's file name; nothing for other names.
std::optional<std::int64_t> step_of(std::string const& name) {
  std::size_t const digits = name.size() - std::min(name.size(), sizeof prefix - 1 + sizeof suffix - 1);
  if (digits < 8 || digits > 18) return {};
  std::int64_t const step = std::atoll(name.substr(sizeof prefix - 1, digits).c_str());
  if (name != file_name(step)) return {};
  return step;
}

struct Found {
  std::int64_t step;
  std::string path;
};

// Newest first.
std::vector<Found> list_checkpoints(std::string const& folder) {
  std::vector<Found> found;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code))
    if (auto const step = step_of(entry->path().filename().string())) found.push_back({*step, entry->path().string()});
  LOCKSTEP_THROW_IF(code, ExitCode::usage, folder + ": cannot be listed: " + code.message());
  std::sort(found.begin(), found.end(), [](Found const& a, Found const& b) { return a.step > b.step; });
  return found;
}

// What processes that were killed while they wrote a checkpoint left, see write_file.
void remove_left_over(std::string const& folder) {
  std::vector<fs::path> left;
  std::error_code ignored;
  for (auto const& entry : fs::directory_iterator(folder, ignored)) {
    fs::path const name = entry.path().filename(), writer = name.stem().extension();  // step-N.safetensors.PID.tmp
    std::string const digits = writer.string().substr(std::min<std::size_t>(1, writer.string().size()));
    if (name.extension() == ".tmp" && !digits.empty() && digits.find_first_not_of("0123456789") == std::string::npos &&
        step_of(name.stem().stem().string()))
      left.push_back(entry.path());
  }
  for (auto const& path : left) fs::remove(path, ignored);
}

TensorFile tensors_of(Network const& network, std::vector<float> const& parameters) {
  LOCKSTEP_THROW_IF(
      std::int64_t(parameters.size()) != network.parameters, ExitCode::environment,
      std::to_string(parameters.size()) + " parameters to save, expected " + std::to_string(network.parameters));
  TensorFile file;
  for (auto const& tensor : network.tensors) {
    auto const begin = parameters.begin() + std::ptrdiff_t(tensor.offset);
    file.tensors.push_back({tensor.name, tensor.extents, {begin, begin + std::ptrdiff_t(tensor.count)}});
  }
  return file;
}

std::string shape_text(std::vector<std::int64_t> const& extents) {
  std::string text = "[";
  for (auto extent : extents) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

std::string hexadecimal(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%a", value);
  return text;
}

// Tensors alone do not tell, say, a pooling window.
std::string description(Network const& network) {
  constexpr char const* kinds[] = {"conv2d", "relu", "average_pool2d", "dense"};
  auto const shape              = [](Shape const& s) {
    return std::to_string(s.channels) + "x" + std::to_string(s.height) + "x" + std::to_string(s.width);
  };
  std::string text = shape(network.input);
  for (auto const& layer : network.layers)
    text += std::string(" ") + kinds[int(layer.kind)] + (layer.kernel > 0 ? std::to_string(layer.kernel) : "") + " " +
            shape(layer.output);
  return text;
}

[[noreturn]] void refuse(std::string const& path, std::string const& message) {
  throw Error(ExitCode::usage, path + ": " + message);
}

// Damage and foreign files are found here, settings are not compared.
TensorFile read_checkpoint_file(std::string const& path) {
  TensorFile file   = read_safetensors(path);
  auto const format = file.metadata.find(format_key);
  if (format == file.metadata.end() || format->second != checkpoint_format)
    refuse(path, "is not a checkpoint: format is '" + (format == file.metadata.end() ? "" : format->second) +
                     "', expected '" + checkpoint_format + "'");
  return file;
}

std::string const& entry(std::string const& path, TensorFile const& file, std::string const& key) {
  auto const found = file.metadata.find(key);
  if (found == file.metadata.end()) refuse(path, "does not state '" + key + "', expected a checkpoint of this version");
  return found->second;
}

TrainingState extract(std::string const& path, TensorFile const& file, Network const& network,
                      std::vector<RunSetting> const& settings) {
  std::vector<RunSetting> expected = settings;
  expected.push_back({"network", description(network)});
  for (auto const& setting : expected) {
    std::string const& found = entry(path, file, setting.name);
    if (found != setting.value)
      refuse(path, "was written by a run with " + setting.name + " " + found + ", expected " + setting.value +
                       " as in this run");
  }
  TrainingState state;
  std::string const step = entry(path, file, "step"), loss = entry(path, file, "epoch_loss");
  auto const [rest, failed] = std::from_chars(step.data(), step.data() + step.size(), state.step);
  if (failed != std::errc() || rest != step.data() + step.size() || state.step < 0)
    refuse(path, "states step '" + step + "', expected a number of 0 or more");
  char* end        = nullptr;
  state.epoch_loss = std::strtod(loss.c_str(), &end);
  if (loss.empty() || *end != '\0' || !std::isfinite(state.epoch_loss))
    refuse(path, "states epoch_loss '" + loss + "', expected a finite number");
  if (file.tensors.size() != network.tensors.size())
    refuse(path, "holds " + std::to_string(file.tensors.size()) + " tensors, expected " +
                     std::to_string(network.tensors.size()) + " of this network");
  for (auto const& tensor : network.tensors) {
    auto const found = std::find_if(file.tensors.begin(), file.tensors.end(),
                                    [&](NamedTensor const& candidate) { return candidate.name == tensor.name; });
    if (found == file.tensors.end()) refuse(path, "holds no tensor " + tensor.name);
    if (found->extents != tensor.extents)
      refuse(path, "tensor " + tensor.name + " has shape " + shape_text(found->extents) + ", expected " +
                       shape_text(tensor.extents));
    state.parameters.insert(state.parameters.end(), found->values.begin(), found->values.end());
  }
  return state;
}

}  // namespace

void prepare_checkpoint_folder(std::string const& folder, std::string const& resume) {
  std::error_code code;
  fs::create_directories(folder, code);
  LOCKSTEP_THROW_IF(code || !fs::is_directory(folder), ExitCode::usage,
                    folder + ": is no folder for checkpoints and cannot be made one: " + code.message());
  LOCKSTEP_THROW_IF(access(folder.c_str(), W_OK) != 0, ExitCode::usage,
                    folder + ": found no right to write, expected one");
  auto const found        = list_checkpoints(folder);
  auto const source       = fs::is_directory(resume, code) ? fs::path(resume) : fs::path(resume).parent_path();
  bool const is_continued = !resume.empty() && fs::equivalent(source.empty() ? "." : source, folder, code);
  LOCKSTEP_THROW_IF(!is_continued && !found.empty(), ExitCode::usage,
                    folder + ": holds " + std::to_string(found.size()) +
                        " checkpoints of another run, expected none; continue it with --resume " + folder +
                        " or give another folder");
}

std::string save_checkpoint(std::string const& folder, Network const& network, std::vector<RunSetting> const& settings,
                            TrainingState const& state) {
  TensorFile file = tensors_of(network, state.parameters);
  for (auto const& setting : settings) file.metadata[setting.name] = setting.value;
  file.metadata[format_key]   = checkpoint_format;
  file.metadata["network"]    = description(network);
  file.metadata["step"]       = std::to_string(state.step);
  file.metadata["epoch_loss"] = hexadecimal(state.epoch_loss);
  std::string const path      = (fs::path(folder) / file_name(state.step)).string();
  write_safetensors(path, file);
  remove_left_over(folder);

  // Files of later steps are left from before a resume from an earlier checkpoint: they must not be taken for the
  // latest.
  bool previous = true;
  for (auto const& found : list_checkpoints(folder)) {
    if (found.step == state.step || (found.step < state.step && std::exchange(previous, false))) continue;
    std::error_code code;
    fs::remove(found.path, code);
    LOCKSTEP_THROW_IF(code, ExitCode::environment, found.path + ": cannot be removed: " + code.message());
  }
  return path;
}

Checkpoint load_checkpoint(std::string const& path, Network const& network, std::vector<RunSetting> const& settings) {
  std::error_code code;
  if (!fs::exists(path, code)) refuse(path, "no such checkpoint file or folder");
  if (!fs::is_directory(path, code)) return {path, extract(path, read_checkpoint_file(path), network, settings)};

  auto const found = list_checkpoints(path);
  if (found.empty()) refuse(path, std::string("holds no checkpoint, expected files ") + prefix + "NNNNNNNN" + suffix);
  TensorFile file;
  try {
    file = read_checkpoint_file(found[0].path);
  } catch (Error const& error) {
    auto const older = std::find_if(found.begin() + 1, found.end(), [](Found const& candidate) {
      try {
        read_checkpoint_file(candidate.path);
        return true;
      } catch (Error const&) {
        return false;
      }
    });
    throw Error(error.code(), std::string(error.what()) + (older == found.end()
                                                               ? "; no older checkpoint is good"
                                                               : "; the one before is good: --resume " + older->path));
  }
  return {found[0].path, extract(found[0].path, file, network, settings)};
}

void save_weights(std::string const& path, Network const& network, std::vector<float> const& parameters) {
  TensorFile file           = tensors_of(network, parameters);
  file.metadata[format_key] = weights_format;
  file.metadata["format"]   = "pt";  // some readers insist on it
  write_safetensors(path, file);
}

}  // namespace lockstep
