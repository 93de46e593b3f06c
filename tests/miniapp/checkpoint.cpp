// SPDX-License-Identifier: Apache-2.0
#include "miniapp/checkpoint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <fstream>
#include <functional>

#include "kernels/error.hpp"
#include "miniapp/safetensors.hpp"
#include "temporary_folder.hpp"

using namespace lockstep;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {

Network small_network(int units = 3) {
  return Network::with_input({1, 2, 2}).dense(units);
}

TrainingState state_at(std::int64_t step) {
  TrainingState state;
  state.step       = step;
  state.epoch_loss = 0.1 * double(step);
  for (int i = 0; i < 15; ++i) state.parameters.push_back(float(i) / 3 + float(step));
  return state;
}

class Checkpoints : public testing::Test {
 protected:
  std::string save(std::int64_t step) const {
    return save_checkpoint(m_folder.path(), m_network, m_settings, state_at(step));
  }
  Checkpoint load() const { return load_checkpoint(m_folder.path(), m_network, m_settings); }
  static std::string error_of(std::function<void()> const& action) {
    try {
      action();
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
  }
  static void truncate(std::string const& path) {
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  }

  TemporaryFolder m_folder;
  Network m_network                  = small_network();
  std::vector<RunSetting> m_settings = {{"seed", "1"}, {"batch", "256"}};
};

TEST_F(Checkpoints, RoundTripKeepsBits) {
  std::string const path = save(117);
  EXPECT_EQ(path, m_folder.path("step-00000117.safetensors"));
  for (std::string const& from : {path, m_folder.path()}) {
    Checkpoint const loaded      = load_checkpoint(from, m_network, m_settings);
    TrainingState const expected = state_at(117);
    EXPECT_EQ(loaded.path, path);
    EXPECT_EQ(loaded.state.step, expected.step);
    EXPECT_EQ(loaded.state.epoch_loss, expected.epoch_loss);
    EXPECT_EQ(loaded.state.parameters, expected.parameters);
  }
}

TEST_F(Checkpoints, KeepsTheLatestAndTheOneBefore) {
  for (int step : {5, 10, 15, 20}) save(step);
  EXPECT_THAT(m_folder.names(), ElementsAre("step-00000015.safetensors", "step-00000020.safetensors"));
  save(123456789);
  EXPECT_THAT(m_folder.names(), ElementsAre("step-00000020.safetensors", "step-123456789.safetensors"));
  EXPECT_EQ(load().state.step, 123456789);
}

TEST_F(Checkpoints, OtherFilesAreLeftAlone) {
  for (char const* name :
       {"notes.txt", "step-1.safetensors", "step-00000001.safetensors.tmp", "step-0000000x.safetensors"})
    std::ofstream(m_folder.path(name)) << "mine";
  for (int step : {5, 10, 15}) save(step);
  EXPECT_EQ(load().state.step, 15);
  EXPECT_EQ(m_folder.names().size(), 6u);
}

TEST_F(Checkpoints, DamageIsRefusedAndThePreviousOneOffered) {
  save(5);
  std::string const newest = save(10);
  truncate(newest);
  EXPECT_THAT(error_of([&] { load(); }), AllOf(HasSubstr(newest), HasSubstr("truncated"),
                                               HasSubstr("--resume " + m_folder.path("step-00000005.safetensors"))));
  EXPECT_EQ(load_checkpoint(m_folder.path("step-00000005.safetensors"), m_network, m_settings).state.step, 5);
  truncate(m_folder.path("step-00000005.safetensors"));
  EXPECT_THAT(error_of([&] { load(); }), AllOf(HasSubstr(newest), HasSubstr("no older checkpoint is good")));
}

// After a resume from step 5 the broken file of step 10 must not be the latest again.
TEST_F(Checkpoints, LaterStepsOfAnAbandonedRunGo) {
  save(5);
  truncate(save(10));
  save(8);
  EXPECT_THAT(m_folder.names(), ElementsAre("step-00000005.safetensors", "step-00000008.safetensors"));
}

TEST_F(Checkpoints, SettingsMustAgree) {
  save(5);
  std::string const before = save(10);
  m_settings[1].value      = "128";
  EXPECT_THAT(error_of([&] { load(); }),
              AllOf(HasSubstr(before), HasSubstr("with batch 256, expected 128"), testing::Not(HasSubstr("--resume"))));
  m_settings[1] = {"learning_rate", "0.2"};
  EXPECT_THAT(error_of([&] { load(); }), HasSubstr("does not state 'learning_rate'"));
}

TEST_F(Checkpoints, NumbersAreWhole) {
  std::string const path = save(5);
  for (auto const& [key, value, expected] :
       {std::array{"step", "5x", "number of 0 or more"}, std::array{"step", "-1", "number of 0 or more"},
        std::array{"step", "1e3", "number of 0 or more"}, std::array{"step", "", "number of 0 or more"},
        std::array{"epoch_loss", "nan", "finite"}, std::array{"epoch_loss", "1;", "finite"}}) {
    TensorFile file    = read_safetensors(path);
    file.metadata[key] = value;
    write_safetensors(m_folder.path("other"), file);
    EXPECT_THAT(error_of([&] { load_checkpoint(m_folder.path("other"), m_network, m_settings); }),
                AllOf(HasSubstr(std::string("states ") + key + " '" + value + "'"), HasSubstr(expected)));
  }
}

// A process that is killed while it writes leaves its temporary file.
TEST_F(Checkpoints, WhatAKilledProcessLeftGoes) {
  for (char const* name : {"step-00000005.safetensors.4711.tmp", "step-00000005.safetensors.tmp"})
    std::ofstream(m_folder.path(name)) << "half";
  save(5);
  EXPECT_THAT(m_folder.names(), ElementsAre("step-00000005.safetensors", "step-00000005.safetensors.tmp"));
}

TEST_F(Checkpoints, NetworkMustFit) {
  save(5);
  m_network = small_network(2);
  EXPECT_THAT(error_of([&] { load(); }), HasSubstr("with network 1x2x2 dense 3x1x1, expected 1x2x2 dense 2x1x1"));
  // The same tensors in the same shapes, another function of the image.
  m_network = small_network().relu();
  EXPECT_THAT(error_of([&] { load(); }), HasSubstr("expected 1x2x2 dense 3x1x1 relu 3x1x1"));
  m_network                 = small_network();
  m_network.tensors[0].name = "V1";
  EXPECT_THAT(error_of([&] { load(); }), HasSubstr("holds no tensor V1"));
  m_network.tensors[0] = {"W1", {3, 4}, 0, 12};
  EXPECT_THAT(error_of([&] { load(); }), HasSubstr("tensor W1 has shape [4, 3], expected [3, 4]"));
  m_network.tensors.pop_back();
  EXPECT_THAT(error_of([&] { load(); }), HasSubstr("holds 2 tensors, expected 1"));
}

TEST_F(Checkpoints, WeightsAreNoCheckpoint) {
  save_weights(m_folder.path("step-00000001.safetensors"), m_network, state_at(1).parameters);
  EXPECT_THAT(error_of([&] { load(); }), HasSubstr("format is 'weights/1', expected 'checkpoint/1'"));
}

TEST_F(Checkpoints, NothingToLoad) {
  EXPECT_THAT(error_of([&] { load(); }), HasSubstr("holds no checkpoint"));
  EXPECT_THAT(error_of([&] { load_checkpoint(m_folder.path("nowhere"), m_network, m_settings); }),
              HasSubstr("no such checkpoint"));
}

TEST_F(Checkpoints, FoldersArePrepared) {
  std::string const folder = m_folder.path("a/b");
  prepare_checkpoint_folder(folder, "");
  EXPECT_TRUE(std::filesystem::is_directory(folder));
  prepare_checkpoint_folder(folder, "");
  std::string const file  = save_checkpoint(folder, m_network, m_settings, state_at(1));
  std::string const other = m_folder.path("other");
  prepare_checkpoint_folder(other, folder);
  std::string const other_file = save_checkpoint(other, m_network, m_settings, state_at(2));
  for (auto const& resume : {std::string(), other, other_file, m_folder.path("nowhere")})
    EXPECT_THAT(error_of([&] { prepare_checkpoint_folder(folder, resume); }),
                AllOf(HasSubstr("holds 1 checkpoint"), HasSubstr("--resume " + folder)))
        << resume;
  prepare_checkpoint_folder(folder, folder);
  prepare_checkpoint_folder(folder + "/", m_folder.path("a/../a/b"));
  prepare_checkpoint_folder(folder, file);
  std::ofstream(m_folder.path("file")) << "x";
  EXPECT_THAT(error_of([&] { prepare_checkpoint_folder(m_folder.path("file"), ""); }), HasSubstr("is no folder"));
  EXPECT_THAT(error_of([&] { prepare_checkpoint_folder(m_folder.path("file/sub"), ""); }), HasSubstr("is no folder"));
}

TEST_F(Checkpoints, Weights) {
  std::string const path = m_folder.path("weights.safetensors");
  save_weights(path, m_network, state_at(1).parameters);
  TensorFile const file = read_safetensors(path);
  ASSERT_EQ(file.tensors.size(), 2u);
  EXPECT_EQ(file.tensors[0].name, "W1");
  EXPECT_THAT(file.tensors[0].extents, ElementsAre(4, 3));
  EXPECT_EQ(file.tensors[1].values[0], state_at(1).parameters[12]);
  EXPECT_EQ(file.metadata.at("format"), "pt");
}

}  // namespace
