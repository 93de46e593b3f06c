// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "kernels/error.hpp"
#include "miniapp/data/dataset.hpp"
#include "miniapp/data/idx.hpp"
#include "miniapp/data/synthetic.hpp"
#include "miniapp/sha256.hpp"

using namespace lockstep;
using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

namespace {

std::string big_endian(std::uint32_t value) {
  return {char(value >> 24), char(value >> 16), char(value >> 8), char(value)};
}

std::string little_endian(std::uint32_t value) {
  return {char(value), char(value >> 8), char(value >> 16), char(value >> 24)};
}

std::string images_header(std::uint32_t count) {
  return big_endian(0x803) + big_endian(count) + big_endian(28) + big_endian(28);
}

std::string labels_header(std::uint32_t count) {
  return big_endian(0x801) + big_endian(count);
}

std::string pixels(int count) {
  std::string text;
  for (int i = 0; i < count * 784; ++i) text += char((i * 37 + i / 784) % 256);
  return text;
}

std::string gzip(std::string const& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in   = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in  = unsigned(text.size());
  stream.next_out  = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = unsigned(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

// A folder with a sound small data set; each test spoils what it is about.
class DataFiles : public testing::Test {
 protected:
  DataFiles() {
    char name[] = "/tmp/lockstep_data_XXXXXX";
    if (mkdtemp(name) == nullptr) throw std::runtime_error("mkdtemp failed");
    m_folder = name;
    unsetenv("LOCKSTEP_DATA");
    write("train-images-idx3-ubyte", images_header(3) + pixels(3));
    write("train-labels-idx1-ubyte.gz", gzip(labels_header(3) + std::string("\0\5\11", 3)));
    write("t10k-images-idx3-ubyte.gz", gzip(images_header(2) + pixels(2)));
    write("t10k-labels-idx1-ubyte", labels_header(2) + std::string("\1\2", 2));
  }
  ~DataFiles() override {
    unsetenv("LOCKSTEP_DATA");
    fs::remove_all(m_folder);
  }

  std::string path(std::string const& name) const { return m_folder + "/" + name; }
  void write(std::string const& name, std::string const& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
  }

  // The message of the usage error that loading gives: one line.
  static std::string error_of(std::function<void()> const& load) {
    try {
      load();
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
  }
  std::string folder_error() const {
    return error_of([&] { load_dataset(m_folder); });
  }
  // Replaces the training images by this content, plain and then gzipped; both must give the message.
  void expect_images_error(std::string const& content, testing::Matcher<std::string> const& expected) const {
    write("train-images-idx3-ubyte", content);
    EXPECT_THAT(folder_error(), AllOf(HasSubstr(path("train-images-idx3-ubyte")), expected));
    fs::remove(path("train-images-idx3-ubyte"));
    write("train-images-idx3-ubyte.gz", gzip(content));
    EXPECT_THAT(folder_error(), AllOf(HasSubstr(path("train-images-idx3-ubyte.gz")), expected));
    fs::remove(path("train-images-idx3-ubyte.gz"));
  }

  std::string m_folder;
};

TEST_F(DataFiles, ReadsPlainAndGzip) {
  TrainTest const data = load_dataset(m_folder);
  EXPECT_EQ(data.name, m_folder);
  EXPECT_EQ(data.source, m_folder);
  EXPECT_EQ(data.notice, "");
  EXPECT_EQ(data.train.count, 3);
  EXPECT_EQ(data.train.height, 28);
  EXPECT_EQ(data.train.width, 28);
  EXPECT_THAT(data.train.labels, testing::ElementsAre(0, 5, 9));
  std::string const expected = pixels(3);
  EXPECT_EQ(std::string(data.train.images.begin(), data.train.images.end()), expected);
  std::string const content = expected + std::string("\0\5\11", 3);
  EXPECT_EQ(data.train.sha256, sha256(content.data(), content.size()));
  EXPECT_EQ(data.test.count, 2);
  EXPECT_THAT(data.test.labels, testing::ElementsAre(1, 2));
}

// Names do not matter, content does: a plain file named .gz and a gzip file without the suffix are both read.
TEST_F(DataFiles, TellsGzipByContent) {
  TrainTest const before = load_dataset(m_folder);
  write("train-images-idx3-ubyte", gzip(images_header(3) + pixels(3)));
  write("train-labels-idx1-ubyte.gz", labels_header(3) + std::string("\0\5\11", 3));
  EXPECT_EQ(load_dataset(m_folder).train.sha256, before.train.sha256);
}

TEST_F(DataFiles, ReadsConcatenatedGzip) {
  TrainTest const before = load_dataset(m_folder);
  std::string const all  = images_header(3) + pixels(3);
  write("train-images-idx3-ubyte", gzip(all.substr(0, 7)) + gzip(all.substr(7, 1000)) + gzip(all.substr(1007)));
  EXPECT_EQ(load_dataset(m_folder).train.sha256, before.train.sha256);
}

TEST_F(DataFiles, KeepsTheFirstImages) {
  TrainTest const all = load_dataset(m_folder), some = load_dataset(m_folder, 2, 1);
  EXPECT_EQ(some.train.count, 2);
  EXPECT_EQ(some.test.count, 1);
  EXPECT_THAT(some.train.labels, testing::ElementsAre(0, 5));
  EXPECT_EQ(some.train.images.size(), 2u * 784);
  EXPECT_TRUE(std::equal(some.train.images.begin(), some.train.images.end(), all.train.images.begin()));
  EXPECT_EQ(some.train.sha256, all.train.sha256) << "the hash names the files' content";
  EXPECT_THAT(error_of([&] { load_dataset(m_folder, 4, 0); }),
              AllOf(HasSubstr("--train-images is 4"), HasSubstr("expected 1 .. 3")));
  EXPECT_THAT(error_of([&] { load_dataset(m_folder, 0, 3); }), HasSubstr("--test-images is 3"));
  EXPECT_THAT(error_of([&] { load_dataset(m_folder, -1, 0); }), HasSubstr("--train-images is -1"));
}

TEST_F(DataFiles, MissingFileAndFolder) {
  fs::remove(path("t10k-labels-idx1-ubyte"));
  EXPECT_THAT(folder_error(), AllOf(HasSubstr(m_folder), HasSubstr("t10k-labels-idx1-ubyte")));
  EXPECT_THAT(error_of([&] { load_dataset(m_folder + "/nowhere"); }), HasSubstr(m_folder + "/nowhere"));
  EXPECT_THAT(error_of([&] { load_dataset(path("t10k-images-idx3-ubyte.gz")); }), HasSubstr("is not a folder"));
  EXPECT_THAT(error_of([&] { load_dataset(""); }), HasSubstr("expected auto"));
}

TEST_F(DataFiles, FolderPipeEmptyAndUnreadable) {
  std::string const name = "train-images-idx3-ubyte";
  fs::remove(path(name));
  fs::create_directory(path(name));
  EXPECT_THAT(folder_error(), AllOf(HasSubstr(path(name)), HasSubstr("is a folder")));
  fs::remove(path(name));
  ASSERT_EQ(mkfifo(path(name).c_str(), 0600), 0);
  EXPECT_THAT(folder_error(), AllOf(HasSubstr(path(name)), HasSubstr("not a regular file")));
  fs::remove(path(name));
  write(name, "");
  EXPECT_THAT(folder_error(), AllOf(HasSubstr(path(name)), HasSubstr("empty (0 bytes)")));
  ASSERT_EQ(chmod(path(name).c_str(), 0), 0);
  // The superuser may read everything: step down for this check.
  bool const root = geteuid() == 0;
  ASSERT_EQ(chmod(m_folder.c_str(), 0755), 0);
  ASSERT_EQ(seteuid(root ? 65534 : geteuid()), 0);
  EXPECT_THAT(folder_error(), AllOf(HasSubstr(path(name)), HasSubstr("Permission denied")));
  ASSERT_EQ(seteuid(root ? 0 : geteuid()), 0);
  fs::remove(path(name));
  fs::create_symlink("/proc/self/mem", path(name));  // opens, but its first byte cannot be read
  EXPECT_THAT(folder_error(), AllOf(HasSubstr(path(name)), HasSubstr("cannot be read")));
}

TEST_F(DataFiles, ErrorPageInsteadOfArchive) {
  std::string const name = "train-images-idx3-ubyte";
  write(name, "<!DOCTYPE html><html>Not found</html>");
  EXPECT_THAT(folder_error(), AllOf(HasSubstr(path(name)), HasSubstr("neither gzip nor IDX"), HasSubstr("3c 21 44 4f"),
                                    HasSubstr("\"<!DOCTYP\""), HasSubstr("0x00000803")));
  write(name, "<");
  EXPECT_THAT(folder_error(), HasSubstr("neither gzip nor IDX"));
}

TEST_F(DataFiles, MagicNumber) {
  expect_images_error(labels_header(3) + pixels(3), AllOf(HasSubstr("0x00000801"), HasSubstr("expected 0x00000803")));
  write("train-images-idx3-ubyte", gzip("<!DOCTYPE html><html>Not found</html>"));
  EXPECT_THAT(folder_error(), AllOf(HasSubstr("magic number 0x3c21444f"), HasSubstr("expected 0x00000803")));
}

TEST_F(DataFiles, ByteOrder) {
  auto const expected = HasSubstr("little-endian byte order, expected big-endian");
  expect_images_error(little_endian(0x803) + little_endian(3) + little_endian(28) + little_endian(28) + pixels(3),
                      AllOf(HasSubstr("magic number"), expected));
  expect_images_error(big_endian(0x803) + little_endian(3) + big_endian(28) + big_endian(28) + pixels(3),
                      AllOf(HasSubstr("number of images"), expected));
  expect_images_error(big_endian(0x803) + big_endian(3) + little_endian(28) + little_endian(28) + pixels(3),
                      AllOf(HasSubstr("dimension 1"), expected));
}

TEST_F(DataFiles, DimensionsAndCounts) {
  expect_images_error(big_endian(0x803) + big_endian(3) + big_endian(28) + big_endian(27) + pixels(3),
                      AllOf(HasSubstr("dimension 2 is 27"), HasSubstr("expected 28")));
  expect_images_error(images_header(0), AllOf(HasSubstr("number of images is 0"), HasSubstr("at least 1")));
}

TEST_F(DataFiles, LengthAgainstHeader) {
  std::string const all = images_header(3) + pixels(3);
  expect_images_error(all.substr(0, all.size() - 1),
                      AllOf(HasSubstr("truncated"), HasSubstr("2367"), HasSubstr("expected 2368")));
  expect_images_error(all + "x", AllOf(HasSubstr("trailing"), HasSubstr("2368")));
  for (std::size_t length : {2u, 4u, 7u, 15u}) expect_images_error(all.substr(0, length), HasSubstr("IDX"));
  expect_images_error(all.substr(0, 16), AllOf(HasSubstr("truncated: 16"), HasSubstr("expected 2368")));
}

// 4294967295 images of 28 x 28 would be 3.4 TB: allocating them would fail with another error.
TEST_F(DataFiles, HeaderClaimsAreNotAllocated) {
  expect_images_error(images_header(0xffffffffu) + pixels(3),
                      AllOf(HasSubstr("2368 bytes found"), HasSubstr("expected 3367254359296")));
  EXPECT_THAT(error_of([&] {
                write("cube",
                      big_endian(0x803) + big_endian(0xffffffffu) + big_endian(0xffffffffu) + big_endian(0xffffffffu));
                read_idx(path("cube"), "images", {0, 0, 0});
              }),
              HasSubstr("2^62"));
}

// A small archive of many zeros: decoding stops where the header's length is exceeded.
TEST_F(DataFiles, TrailingGzipContentIsNotUnpacked) {
  std::string const packed = gzip(images_header(3) + pixels(3) + std::string(20 << 20, '\0'));
  write("train-images-idx3-ubyte", packed);
  EXPECT_THAT(folder_error(), HasSubstr("trailing"));
}

TEST_F(DataFiles, DamagedGzip) {
  std::string const name = "train-images-idx3-ubyte", good = gzip(images_header(3) + pixels(3));
  // Any shorter prefix is refused: inside the header, the data, the checksum and the length.
  for (std::size_t length = 2; length < good.size(); length += length < 40 || length + 20 > good.size() ? 1 : 37) {
    write(name, good.substr(0, length));
    EXPECT_THAT(folder_error(), AllOf(HasSubstr(path(name)), HasSubstr("truncated gzip data"))) << length;
  }
  for (std::size_t at : {std::size_t(2), good.size() / 2, good.size() - 6, good.size() - 2}) {
    std::string bad = good;
    bad[at] ^= 0x55;
    write(name, bad);
    EXPECT_THAT(folder_error(), AllOf(HasSubstr(path(name)), HasSubstr("gzip data"))) << at;
  }
  write(name, good + "rest");
  EXPECT_THAT(folder_error(), HasSubstr("4 bytes after the end of the gzip data"));
}

TEST_F(DataFiles, Labels) {
  std::string const name = "train-labels-idx1-ubyte.gz";
  write(name, labels_header(3) + std::string("\0\5\12", 3));
  EXPECT_THAT(folder_error(), AllOf(HasSubstr(path(name)), HasSubstr("label 2 is 10"), HasSubstr("expected 0 .. 9")));
  write(name, labels_header(2) + std::string("\0\5", 2));
  EXPECT_THAT(folder_error(), AllOf(HasSubstr(path(name)), HasSubstr("2 labels"), HasSubstr("expected 3"),
                                    HasSubstr(path("train-images-idx3-ubyte"))));
}

TEST_F(DataFiles, AutoPrefersTheVariable) {
  setenv("LOCKSTEP_DATA", m_folder.c_str(), 1);
  EXPECT_EQ(load_dataset("auto").source, m_folder);
  // It is believed: no silent fall-back from a wrong one, and this is not Fashion-MNIST.
  EXPECT_THAT(error_of([&] { load_dataset("fashion-mnist"); }), HasSubstr("is not Fashion-MNIST"));
  setenv("LOCKSTEP_DATA", path("nowhere").c_str(), 1);
  EXPECT_THAT(error_of([&] { load_dataset("auto"); }), HasSubstr(path("nowhere")));
}

TEST_F(DataFiles, AutoWithoutTheVariable) {
  TrainTest const data = load_dataset("auto", 10, 10);
  if (fs::is_directory("/usr/share/datasets/fashion-mnist")) {
    EXPECT_EQ(data.name, "fashion-mnist");
    EXPECT_EQ(data.notice, "");
  } else {
    EXPECT_EQ(data.name, "synthetic");
    EXPECT_THAT(data.notice, HasSubstr("synthetic"));
    EXPECT_THAT(error_of([&] { load_dataset("fashion-mnist"); }), HasSubstr("/usr/share/datasets/fashion-mnist"));
  }
}

TEST(FashionMnist, Content) {
  if (!fs::is_directory("/usr/share/datasets/fashion-mnist")) GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  unsetenv("LOCKSTEP_DATA");
  TrainTest const data = load_dataset("fashion-mnist");
  EXPECT_EQ(data.train.count, 60000);
  EXPECT_EQ(data.test.count, 10000);
  auto const first = [](Dataset const& part, int n) {
    return std::vector<int>(part.labels.begin(), part.labels.begin() + n);
  };
  EXPECT_EQ(first(data.train, 7), (std::vector<int>{9, 0, 0, 3, 0, 2, 7}));
  EXPECT_EQ(first(data.test, 8), (std::vector<int>{9, 2, 1, 1, 6, 1, 4, 6}));
}

// Pinned: every machine, compiler and version must draw these bytes.
TEST(Synthetic, PinnedContent) {
  TrainTest const data = load_dataset("synthetic");
  EXPECT_EQ(data.name, "synthetic");
  EXPECT_EQ(data.notice, "");
  EXPECT_EQ(data.train.count, synthetic_train_images);
  EXPECT_EQ(data.test.count, synthetic_test_images);
  EXPECT_EQ(data.train.sha256, "e118b0edd335c40c907bc85fc767f72b97f2adb9e86d04178fb8dca5ef7106a9");
  EXPECT_EQ(data.test.sha256, "51ad3d0cc624951924e64c5ac0844ad1eac48d74fe1b31087953638e1678529c");
}

TEST(Synthetic, ImagesDoNotDependOnTheCount) {
  Dataset const few = make_synthetic(SyntheticPart::train, 5), more = make_synthetic(SyntheticPart::train, 10);
  EXPECT_TRUE(std::equal(few.images.begin(), few.images.end(), more.images.begin()));
  EXPECT_TRUE(std::equal(few.labels.begin(), few.labels.end(), more.labels.begin()));
  EXPECT_NE(make_synthetic(SyntheticPart::test, 5).images, few.images);
}

TEST(Synthetic, LabelsAreBalanced) {
  int counts[10] = {};
  for (auto label : make_synthetic(SyntheticPart::train, 10000).labels) ++counts[label];
  for (int count : counts) EXPECT_NEAR(count, 1000, 5 * 30);
}

TEST(Synthetic, CountsAreChecked) {
  EXPECT_EQ(load_dataset("synthetic", 3, 2).train.count, 3);
  EXPECT_THROW(load_dataset("synthetic", 60001, 0), Error);
  EXPECT_THROW(load_dataset("synthetic", 0, 10001), Error);
}

}  // namespace
