// SPDX-License-Identifier: Apache-2.0
#include "miniapp/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/error.hpp"
#include "miniapp/sha256.hpp"
#include "temporary_folder.hpp"

using namespace lockstep;
using nlohmann::json;
using testing::HasSubstr;

namespace {

class SafeTensors : public testing::Test {
 protected:
  std::string path() const { return m_folder.path("file.safetensors"); }
  std::string content() const {
    std::ifstream stream(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void write(std::string const& bytes) const { std::ofstream(path(), std::ios::binary) << bytes; }

  // A file of this header and these values, with a sound checksum.
  void write(json header, std::string const& values) const {
    std::string const hashed         = header.dump() + values;
    header["__metadata__"]["sha256"] = sha256(hashed.data(), hashed.size());
    std::string const text           = header.dump();
    std::uint64_t const length       = text.size();
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    write(bytes + text + values);
  }

  void expect_refused(std::string const& words) const {
    try {
      read_safetensors(path());
      ADD_FAILURE() << "was read; expected: " << words;
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr(path()), HasSubstr(words), testing::Not(HasSubstr("\n"))));
    }
  }

  static json header_of(json tensors) {
    tensors["__metadata__"] = json::object();
    return tensors;
  }
  static json entry(json shape, int begin, int end, char const* type = "F32") {
    return {{"dtype", type}, {"shape", shape}, {"data_offsets", {begin, end}}};
  }

  TemporaryFolder m_folder;
};

TensorFile example() {
  return {{{"key", "a \"quoted\" value"}},
          {{"W1", {2, 3}, {1, -2.5f, 1e-40f, -0.0f, INFINITY, NAN}}, {"b1", {1}, {7}}, {"empty", {0, 4}, {}}}};
}

TEST_F(SafeTensors, RoundTripKeepsBits) {
  TensorFile const written = example();
  write_safetensors(path(), written);
  TensorFile const read = read_safetensors(path());
  EXPECT_EQ(read.metadata.at("key"), "a \"quoted\" value");
  ASSERT_EQ(read.tensors.size(), 3u);
  for (auto const& tensor : written.tensors) {
    auto const found = std::find_if(read.tensors.begin(), read.tensors.end(),
                                    [&](NamedTensor const& candidate) { return candidate.name == tensor.name; });
    ASSERT_NE(found, read.tensors.end());
    EXPECT_EQ(found->extents, tensor.extents);
    ASSERT_EQ(found->values.size(), tensor.values.size());
    // memcmp may not be given an empty vector's null pointer.
    if (!tensor.values.empty()) {
      EXPECT_EQ(std::memcmp(found->values.data(), tensor.values.data(), 4 * tensor.values.size()), 0);
    }
  }
}

// As the format is published: length, JSON header, values in the order of the tensors, aligned to 8 bytes.
TEST_F(SafeTensors, Layout) {
  write_safetensors(path(), example());
  std::string const bytes = content();
  std::uint64_t length    = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  json const header = json::parse(bytes.substr(8, length));
  EXPECT_EQ(header["W1"], entry({2, 3}, 0, 24));
  EXPECT_EQ(header["b1"], entry({1}, 24, 28));
  EXPECT_EQ(bytes.size(), 8 + length + 28);
  float value = 0;
  std::memcpy(&value, bytes.data() + 8 + length + 24, 4);
  EXPECT_EQ(value, 7);
}

TEST_F(SafeTensors, ValuesAreAlignedWhateverTheHeadersLength) {
  for (std::size_t length = 0; length < 8; ++length) {
    TensorFile file      = example();
    file.metadata["key"] = std::string(length, 'x');
    write_safetensors(path(), file);
    std::uint64_t header = 0;
    std::memcpy(&header, content().data(), 8);
    EXPECT_EQ(header % 8, 0u);
    EXPECT_EQ(read_safetensors(path()).tensors.size(), 3u);
  }
}

TEST_F(SafeTensors, ReplacesAFileAndLeavesNoTemporary) {
  write("old");
  write_safetensors(path(), example());
  EXPECT_EQ(read_safetensors(path()).tensors.size(), 3u);
  EXPECT_THAT(m_folder.names(), testing::ElementsAre("file.safetensors"));
}

TEST_F(SafeTensors, UnwritablePlaceKeepsTheOldFile) {
  try {
    write_safetensors(m_folder.path("nowhere/file"), example());
    ADD_FAILURE() << "no error";
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), ExitCode::environment);
    EXPECT_THAT(error.what(), HasSubstr("No such file or directory"));
  }
  // A limit stands for a full disk.
  write("old");
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  rlimit const little{4, limit.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  EXPECT_THROW(write_safetensors(path(), example()), Error);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_EQ(content(), "old");
  EXPECT_THAT(m_folder.names(), testing::ElementsAre("file.safetensors"));
}

// Every prefix, every longer file and every changed byte.
TEST_F(SafeTensors, AnyDamageIsFound) {
  write_safetensors(path(), example());
  std::string const good = content();
  for (std::size_t length = 0; length < good.size(); ++length) {
    write(good.substr(0, length));
    expect_refused("expected");
  }
  write(good + "x");
  expect_refused("29 bytes of values, expected 28");
  for (std::size_t at = 0; at < good.size(); ++at) {
    if (good[at] == ' ') continue;  // padding may be any white space
    std::string bad = good;
    bad[at] ^= 1;
    write(bad);
    expect_refused("");
  }
}

TEST_F(SafeTensors, TruncationIsNamed) {
  write_safetensors(path(), example());
  std::string const good = content();
  write(good.substr(0, good.size() - 1));
  expect_refused("truncated: 27 bytes of values found");
  write(good.substr(0, 20));
  expect_refused("truncated or not a safetensors file: 12 bytes");
  write("");
  expect_refused("0 bytes long");
}

TEST_F(SafeTensors, ForeignFiles) {
  write("<!DOCTYPE html><html></html>");
  expect_refused("not a safetensors file");
  write(std::string(8, '\xff') + "{}");
  expect_refused("truncated or not a safetensors file");
  write(std::string("\2\0\0\0\0\0\0\0{}", 10));
  expect_refused("no checksum");
  write(std::string("\2\0\0\0\0\0\0\0{]", 10));
  expect_refused("damaged header");
  std::filesystem::remove(path());
  expect_refused("no such file");
  std::filesystem::create_directory(path());
  expect_refused("not a regular file");
}

// Sound checksums, wrong contents.
TEST_F(SafeTensors, HeaderEntries) {
  std::string const values(8, '\0');
  write(header_of({{"a", entry({2}, 0, 8)}}), values);
  EXPECT_EQ(read_safetensors(path()).tensors[0].values.size(), 2u);
  write(header_of({{"a", entry({1}, 0, 4)}, {"b", entry({1}, 0, 4)}}), values);
  expect_refused("'b' begins at byte 0, expected 4: a gap or an overlap");
  write(header_of({{"a", entry({1}, 4, 8)}}), values);
  expect_refused("'a' begins at byte 4, expected 0: a gap or an overlap");
  write(header_of({{"a", entry({1}, 0, 4)}}), values);
  expect_refused("8 bytes of values, expected 4");
  write(header_of({{"a", entry({1}, 0, 8)}}), values);
  expect_refused("8 bytes, expected 4 by its shape");
  write(header_of({{"a", entry({2}, 8, 0)}}), values);
  expect_refused("offsets in order");
  write(header_of({{"a", entry({2}, 0, 12)}}), values);
  expect_refused("truncated: 8 bytes of values found, expected at least 12");
  write(header_of({{"a", entry({1}, 0, 8, "F64")}}), values);
  expect_refused("type F64, expected F32");
  write(header_of({{"a", entry({-1}, 0, 8)}}), values);
  expect_refused("damaged header entry");
  write(header_of({{"a", entry({std::uint64_t(1) << 62, 16}, 0, 8)}}), values);
  expect_refused("more than 8 bytes");
  write(header_of({{"a", {{"dtype", "F32"}}}}), values);
  expect_refused("damaged header entry");
  json number                 = header_of({{"a", entry({2}, 0, 8)}});
  number["__metadata__"]["n"] = 1;
  write(number, values);
  expect_refused("metadata 'n' is not text");
}

}  // namespace
