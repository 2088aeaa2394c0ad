// Tests the conversion of images into data sets: which files are listed, how they are stored, what does not change the
// result, and what is refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "data_prep/common/shard_writer.h"
#include "tests/unit/as_nobody.h"
#include "tests/unit/image_folder.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

class ImageConvert : public ImageFolder {};

TEST_F(ImageConvert, EveryImageIsStoredWithItsBytesAndTheLabelOfItsSortedClass) {
  put_classes(7, 3);
  const ImagesReport report = convert(options());
  EXPECT_EQ(faults(), "");
  EXPECT_EQ(report.splits[train_split].samples, 14);
  EXPECT_EQ(report.splits[validation_split].samples, 6);
  std::set<std::uint64_t> ids;
  for (const std::string split : {"train", "validation"}) {
    const auto records = stored("out/set-" + split);
    EXPECT_EQ(records.size(), split == "train" ? 14u : 6u);
    for (const auto& [key, record] : records) {
      EXPECT_EQ(record.bytes, bytes_of_file(path("in/" + key))) << key;
      EXPECT_EQ(record.label, key.find("/bee/") != std::string::npos ? 1 : 0) << key;
      ids.insert(record.sample_id);
    }
  }
  EXPECT_EQ(ids.size(), 20u);
}

TEST_F(ImageConvert, ThreadsMemoryAndTheKindOfCheckDoNotChangeTheFiles) {
  put_classes(40, 5);
  put("in/train/ant/x.png", test_jpeg(9, 9, 1));  // the content is JPEG, whatever the name
  ImagesOptions one = options("a/set");
  one.shards = 3;
  one.threads = 1;
  convert(one);
  for (const int variant : {0, 1, 2}) {
    ImagesOptions other = one;
    other.out = path(cat("b", variant, "/set"));
    if (variant == 0) other.threads = 4;
    if (variant == 1) other.memory_gib = 0;
    if (variant == 2) other.check = "header";
    convert(other);
    EXPECT_EQ(files("a"), files(cat("b", variant)));
  }
}

TEST_F(ImageConvert, TheNumberOfShardsChangesNeitherOrderNorUuid) {
  put_classes(11, 2);
  ImagesOptions one = options("a/set"), many = options("b/set");
  one.shards = 1;
  many.shards = 5;
  EXPECT_EQ(convert(one).dataset_uuid, convert(many).dataset_uuid);
  EXPECT_EQ(keys("a/set-train"), keys("b/set-train"));
  ImagesOptions seeded = options("c/set");
  seeded.seed = 2;
  convert(seeded);
  EXPECT_NE(keys("a/set-train"), keys("c/set-train"));
  const std::vector<std::string> on_disk = keys("a/set-train");
  EXPECT_FALSE(std::is_sorted(on_disk.begin(), on_disk.end()));
}

TEST_F(ImageConvert, SplitsWithDifferentClassesAreRefusedUnlessAClassListFixesTheLabels) {
  put_classes(3, 2);
  put("in/train/wasp/1.jpg", test_jpeg(8, 8, 1));
  expect_contains(error_of(options()), "has no folder of the class(es) 'wasp'");
  fs::rename(path("in/train/wasp"), path("in/val/wasp"));
  expect_contains(error_of(options()), "has a folder of the class(es) 'wasp', which are not in the training split");
  ImagesOptions listed = options();
  listed.class_list = put_text("classes.txt", "wasp Vespula\nbee honey bee\r\n\nant\n");
  convert(listed);
  EXPECT_EQ(faults(), "");
  expect_contains(summary(), "warning: 1 class(es) without images: wasp Vespula");
  const DatasetIndex index = read_dataset_index(path("out/set-train"));
  EXPECT_EQ(index.image.class_ids, (std::vector<std::string>{"wasp", "bee", "ant"}));
  EXPECT_EQ(index.image.class_names, (std::vector<std::string>{"Vespula", "honey bee", "ant"}));
  EXPECT_EQ(stored("out/set-train").at("train/ant/0.jpg").label, 2);
  listed.class_list = put_text("classes.txt", "bee\nant\n");
  listed.force = true;
  expect_contains(error_of(listed), "'wasp', which are not in the class list");
  listed.class_list = put_text("classes.txt", "bee\nant\nbee\n");
  expect_contains(error_of(listed), "line 3: the class 'bee' occurs a second time");
}

TEST_F(ImageConvert, AnEmptyClassFolderIsRefused) {
  put_classes(2, 0);
  fs::create_directories(path("in/train/cat"));
  put_text("in/train/cat/readme.txt", "nothing");
  expect_contains(error_of(options()), "train/cat: holds no images");
  EXPECT_FALSE(fs::exists(path("out/set-train-00000-of-00001.h5")));
}

TEST_F(ImageConvert, WrongInputFoldersGiveOneClearError) {
  ImagesOptions wrong = options();
  expect_contains(error_of(wrong), "in: does not exist");
  put("in/1.jpg", test_jpeg(8, 8, 1));
  expect_contains(error_of(wrong), "images, but no folder (or tar file) per class");
  wrong.input = path("in/1.jpg");
  expect_contains(error_of(wrong), "is a file, expected a folder or a tar file");
  fs::remove(path("in/1.jpg"));
  put("in/val/ant/1.jpg", test_jpeg(8, 8, 1));
  expect_contains(error_of(options()), "has val/ but no train/");
  put("in/train/ant.tar.gz", {1});
  expect_contains(error_of(options()), "is a compressed tar file");
  put("in/validation/ant/1.jpg", test_jpeg(8, 8, 1));
  expect_contains(error_of(options()), "both val/ and validation/");
}

TEST_F(ImageConvert, AFolderThatCannotBeReadIsAnError) {
  put_classes(2, 0);
  fs::permissions(path("in/train/bee"), fs::perms::none);
  {
    const AsNobody nobody(folder_);  // root may read everything
    expect_contains(error_of(options()), "train/bee: cannot read the folder");
  }
  fs::permissions(path("in/train/bee"), fs::perms::owner_all);
}

TEST_F(ImageConvert, AnOutputThatCannotBeWrittenIsAnErrorBeforeImagesAreRead) {
  put_classes(2, 2);
  put("in/train/ant/empty.jpg", {});
  fs::create_directories(path("out/set-validation.lock"));  // stands in the way, also for root
  expect_contains(error_of(options()), "set-validation.lock: cannot write: Is a directory");
  EXPECT_EQ(log_.str(), "");
  EXPECT_FALSE(fs::exists(path("out/set-train.lock")));
}

TEST_F(ImageConvert, NamesWithBlanksAndOtherBytesComeBack) {
  const std::string odd = "caf\xE9 1.JPG", long_name = std::string(200, 'x') + ".jpeg";
  for (const std::string& name : {odd, std::string("a b  c.jpg"), long_name})
    put("in/my class/" + name, test_jpeg(8, 8, 1));
  convert(options());
  EXPECT_EQ(faults(), "");
  std::set<std::string> found;
  for (const std::string& key : keys("out/set-train")) found.insert(key);
  EXPECT_EQ(found, (std::set<std::string>{"my class/" + odd, "my class/a b  c.jpg", "my class/" + long_name}));
}

TEST_F(ImageConvert, ALinkToAFolderAboveItIsLeftOutAndNoEndlessSearch) {
  put_classes(2, 0);
  fs::create_directory_symlink(path("in/train"), path("in/train/bee/up"));
  EXPECT_EQ(convert(options()).splits[train_split].samples, 4);
  expect_contains(log_.str(), "left out    1 link(s) to a folder above them, such as train/bee/up");
}

TEST_F(ImageConvert, OtherFilesAreIgnoredAndCounted) {
  put_classes(2, 0);
  put_text("in/train/notes.txt", "x");
  put_text("in/train/ant/._1.jpg", "macOS");
  put("in/train/ant/more/deep.PNG", test_jpeg(8, 8, 1));  // folders in a class folder are searched, as in torchvision
  const ImagesReport report = convert(options());
  EXPECT_EQ(report.splits[train_split].samples, 5);
  expect_contains(log_.str(), "files       7 found = 5 used + 0 broken + 2 left out");
  expect_contains(log_.str(), "left out    1 file(s) with the ending .txt, such as train/notes.txt");
  expect_contains(log_.str(),
                  "left out    1 hidden file(s): a name in the path begins with a dot, such as train/ant/._1");
  expect_contains(log_.str(), "1 image(s) lie in folders below the folder of their class, such as train/ant/more/deep");
}

TEST_F(ImageConvert, AListGivesImagesByLabelOrClassId) {
  put("in/flat/a b.jpg", test_jpeg(8, 8, 1));
  put("in/flat/c.jpg", test_jpeg(8, 8, 2));
  ImagesOptions listed = options();
  listed.list = put_text("list.txt", "flat/a b.jpg 2\n\n./flat/c.jpg\t0\r\n");
  convert(listed);
  EXPECT_EQ(stored("out/set-train").at("flat/a b.jpg").label, 2);
  EXPECT_EQ(read_dataset_index(path("out/set-train")).image.num_classes(), 3);
  listed.force = true;
  listed.list = put_text("list.txt", "flat/a b.jpg n2\nflat/c.jpg n1\n");
  convert(listed);
  EXPECT_EQ(stored("out/set-train").at("flat/a b.jpg").label, 1);
  listed.class_list = put_text("classes.txt", "n2 two\nn1 one\n");
  convert(listed);
  EXPECT_EQ(stored("out/set-train").at("flat/a b.jpg").label, 0);
}

TEST_F(ImageConvert, AnImageOfAListIsFoundOnceHoweverItsPathIsWritten) {
  put_classes(2, 1);
  ImagesOptions listed = options();
  listed.list = put_text("list.txt", "train/./ant/1.jpg 0\ntrain/bee/../bee//0.jpg 1\n");
  convert(listed);
  EXPECT_EQ(stored("out/set-train").at("train/ant/1.jpg").label, 0);
  EXPECT_EQ(stored("out/set-train").at("train/bee/0.jpg").label, 1);
  expect_contains(log_.str(), "files       6 found = 2 used + 0 broken + 4 left out");
  ImagesOptions both = options();
  both.force = true;
  both.validation_list = put_text("val.txt", "train/./ant/1.jpg ant\n");
  expect_contains(error_of(both), "'train/ant/1.jpg' is in both splits");
}

TEST_F(ImageConvert, MistakesInAListNameTheirLine) {
  put("in/a.jpg", test_jpeg(8, 8, 1));
  ImagesOptions listed = options();
  const auto error_with = [&](const std::string& text) {
    listed.list = put_text("list.txt", text);
    return error_of(listed);
  };
  expect_contains(error_with("a.jpg 0\nb.jpg 1\n./a.jpg 0\n"), "line 3: 'a.jpg' is listed already in line 1");
  for (const char* other : {"./././a.jpg", "b/../a.jpg", ".//a.jpg", "/a.jpg"})
    expect_contains(error_with(cat("a.jpg 0\n", other, " 1\n")), "line 2: 'a.jpg' is listed already in line 1");
  expect_contains(error_with("a.jpg 0\n../in/a.jpg 1\n"), "line 2: '../in/a.jpg' lies outside INPUT");
  expect_contains(error_with("b/../../a.jpg 0\n"), "line 1: 'b/../../a.jpg' lies outside INPUT");
  expect_contains(error_with("b/.. 0\n"), "line 1: 'b/..' is no path of an image");
  for (const std::string label : {"4294967297", "-4294967297", "99999999999999999999999"}) {
    expect_contains(error_with(cat("a.jpg 0\nb.jpg ", label, "\n")),
                    cat("line 2: the label ", label, " is outside 0 to 1048575"));
    expect_contains(error_with(cat("a.jpg ", label, "\nb.jpg 0\n")), cat("line 1: the label ", label, " is outside"));
  }
  expect_contains(error_with("a.jpg\n"), "line 1: 'a.jpg' has no label");
  expect_contains(error_with("a.jpg 3\nb.jpg -1\n"), "line 2: the label is -1");
  expect_contains(error_with("a.jpg 10\nb.jpg 9\nc.jpg 1O\n"),
                  "line 3: the label '1O' is not a number, unlike that of");
  expect_contains(error_with("\n\n"), "lists no images");
  listed.class_list = put_text("classes.txt", "n1\nn2\n");
  expect_contains(error_with("\na.jpg 2\n"), "line 2: the label 2 is outside 0 to 1");
  expect_contains(error_with("a.jpg 4294967297\n"), "line 1: the label 4294967297 is outside 0 to 1");
  expect_contains(error_with("a.jpg n3\n"), "'n3' is neither a class id nor a number");
  listed.class_list.clear();
  expect_contains(error_with("a.jpg 0\ngone.jpg 0\n"), "1 of 2 images cannot be used");
  expect_contains(log_.str(), "gone.jpg: cannot open: No such file");
}

TEST_F(ImageConvert, ImageNetsFlatValidationFolderComesWithTheClassFolders) {
  put("in/train/n1/a.JPEG", test_jpeg(8, 8, 1));
  put("in/train/n2/b.JPEG", test_jpeg(8, 8, 2));
  put("in/val/v1.JPEG", test_jpeg(8, 8, 3));
  ImagesOptions both = options();
  both.validation_list = put_text("val.txt", "val/v1.JPEG n2\n");
  convert(both);
  EXPECT_EQ(faults(), "");
  EXPECT_EQ(stored("out/set-validation").at("val/v1.JPEG").label, 1);
  both.validation_list = put_text("val.txt", "train/n1/a.JPEG 0\n");
  both.force = true;
  expect_contains(error_of(both), "'train/n1/a.JPEG' is in both splits");
}

TEST_F(ImageConvert, SplitsConvertedOneByOneFitTogether) {
  put_classes(4, 3);
  for (const auto& [split, folder] : {std::pair{"train", "in/train"}, {"validation", "in/val"}}) {
    ImagesOptions part = options();
    part.input = path(folder);
    part.split = split;
    convert(part);
  }
  EXPECT_EQ(faults(), "");
  expect_contains(summary(), "come from two conversions");
}

TEST_F(ImageConvert, AShareOfEachClassIsHeldOutAndNewImagesMoveNoOthersOfOtherClasses) {
  for (int i = 0; i < 40; ++i) put(cat("in/ant/", i, ".jpg"), test_jpeg(8, 8, static_cast<std::uint64_t>(i)));
  for (int i = 0; i < 10; ++i) put(cat("in/bee/", i, ".jpg"), test_jpeg(8, 8, static_cast<std::uint64_t>(50 + i)));
  put("in/cat/1.jpg", test_jpeg(8, 8, 99));
  ImagesOptions held = options("a/set");
  held.validation = 0.2;
  convert(held);
  const auto count = [&](const std::vector<std::string>& all, const std::string& name) {
    return std::count_if(all.begin(), all.end(), [&](const std::string& key) { return key.starts_with(name); });
  };
  const std::vector<std::string> before = keys("a/set-validation");
  EXPECT_EQ(count(before, "ant"), 8);
  EXPECT_EQ(count(before, "bee"), 2);
  EXPECT_EQ(count(before, "cat"), 0);
  EXPECT_EQ(faults("a/set"), "");
  held.out = path("c/set");
  held.seed = 2;
  convert(held);
  const std::vector<std::string> other = keys("c/set-validation");
  EXPECT_NE(std::set(before.begin(), before.end()), std::set(other.begin(), other.end()));
  held.seed = 1;
  put("in/ant/new.jpg", test_jpeg(8, 8, 77));
  held.out = path("b/set");
  convert(held);
  std::size_t same = 0;
  for (const std::string& key : keys("b/set-validation")) same += std::count(before.begin(), before.end(), key) > 0;
  EXPECT_GE(same, before.size() - 1);
}

TEST_F(ImageConvert, AllBrokenImagesAreListedAndNothingIsWritten) {
  put_classes(3, 1);
  Bytes cut = test_jpeg(40, 40, 5);
  cut.resize(cut.size() * 2 / 3);
  put("in/train/ant/cut.jpg", cut);
  put("in/train/ant/empty.jpg", {});
  put_text("in/train/bee/page.jpg", "<html>not found</html>");
  put_text("in/val/bee/moving.jpg", "GIF89a...........");
  fs::create_symlink(path("nowhere"), path("in/val/bee/dangling.jpg"));
  ::mkfifo(path("in/val/bee/pipe.jpg").c_str(), 0600);  // nobody ever writes into this pipe
  ImagesOptions strict = options();
  expect_contains(error_of(strict), "6 of 14 images cannot be used");
  for (const std::string part :
       {"cut.jpg: libjpeg: Premature end", "empty.jpg: is empty (0 bytes)", "page.jpg: is HTML", "moving.jpg: is GIF",
        "dangling.jpg: is a link to", "pipe.jpg: is not a regular file"})
    expect_contains(log_.str(), part);
  EXPECT_FALSE(fs::exists(path("out")));
  strict.broken = "skip";
  const ImagesReport report = convert(strict);
  EXPECT_EQ(report.broken.size(), 6u);
  expect_contains(log_.str(), "classes     2, 3 to 3 training images each");
  EXPECT_EQ(report.splits[train_split].samples, 6);
  EXPECT_EQ(faults(), "");
}

TEST_F(ImageConvert, SmallImagesKeepTheirBytesWhenLargeOnesShrink) {
  put("in/ant/large.jpg", test_jpeg(60, 91, 1));
  put("in/ant/tall.jpg", test_jpeg(90, 30, 2));
  put("in/ant/small.jpg", test_jpeg(20, 50, 3));
  ImagesOptions shrunk = options();
  shrunk.short_side = 25;
  shrunk.quality = 80;
  const ImagesReport report = convert(shrunk);
  EXPECT_EQ(report.resized, 2);
  EXPECT_EQ(faults(), "");
  const auto records = stored("out/set-train");
  EXPECT_EQ(records.at("ant/small.jpg").bytes, bytes_of_file(path("in/ant/small.jpg")));
  const Image original = decode_jpeg(bytes_of_file(path("in/ant/large.jpg")));
  EXPECT_EQ(records.at("ant/large.jpg").bytes, encode_jpeg(resize_bilinear(original, 25, 37), 80));
  const JpegHeader tall = read_jpeg_header(records.at("ant/tall.jpg").bytes);
  EXPECT_EQ(tall.width, 25);
  EXPECT_EQ(tall.height, 75);
}

TEST_F(ImageConvert, RawStoresThePixelsOfImagesOfOneSize) {
  put("in/ant/1.jpg", test_jpeg(12, 10, 1));
  put("in/bee/2.jpg", test_jpeg(12, 10, 2));
  ImagesOptions raw = options();
  raw.encoding = "raw";
  convert(raw);
  EXPECT_EQ(faults(), "");
  EXPECT_EQ(stored("out/set-train").at("bee/2.jpg").bytes, decode_jpeg(test_jpeg(12, 10, 2)).pixels);
  put("in/bee/3.jpg", test_jpeg(30, 20, 3));
  raw.force = true;
  expect_contains(error_of(raw), "the images have several sizes: ant/1.jpg is 10 x 12");
  raw.size = 16;
  convert(raw);
  EXPECT_EQ(faults(), "");
  const Image resized = resize_bilinear(decode_jpeg(test_jpeg(30, 20, 3)), 24, 16);
  const Bytes middle(resized.pixels.begin() + 4 * 16 * 3, resized.pixels.begin() + 20 * 16 * 3);
  EXPECT_EQ(stored("out/set-train").at("bee/3.jpg").bytes, middle);
}

TEST_F(ImageConvert, StatisticsAreThoseOfTheTrainingPixels) {
  put_classes(3, 2);
  ImagesOptions with = options();
  with.statistics = true;
  convert(with);
  double sum[3] = {}, squares[3] = {}, count = 0;
  for (const auto& [key, record] : stored("out/set-train")) {
    const Image image = decode_jpeg(record.bytes);
    for (std::size_t i = 0; i < image.pixels.size(); ++i) {
      sum[i % 3] += image.pixels[i] / 255.0;
      squares[i % 3] += image.pixels[i] / 255.0 * (image.pixels[i] / 255.0);
    }
    count += static_cast<double>(image.pixels.size() / 3);
  }
  const ImageFormat image = read_dataset_index(path("out/set-train")).image;
  for (std::size_t c = 0; c < 3; ++c) {
    const double mean = sum[c] / count;
    EXPECT_NEAR(image.mean[c], mean, 1e-12);
    EXPECT_NEAR(image.std[c], std::sqrt(squares[c] / count - mean * mean), 1e-9);
  }
}

TEST_F(ImageConvert, ResumingGivesTheSameBytesAsAnUninterruptedConversion) {
  put_classes(30, 4);
  ImagesOptions whole = options("a/set");
  whole.shards = 4;
  convert(whole);
  const auto expected = files("a");
  const auto shard = [&](int i) { return path(cat("a/set-train-0000", i, "-of-00004.h5")); };
  fs::rename(shard(1), shard(1) + ".tmp");  // finished, but not yet renamed
  fs::remove(shard(2));                     // not begun
  fs::rename(shard(3), shard(3) + ".tmp");  // half written
  fs::resize_file(shard(3) + ".tmp", fs::file_size(shard(3) + ".tmp") / 2);
  whole.resume = true;
  const ImagesReport report = convert(whole);
  EXPECT_EQ(report.splits[train_split].resumed_shards, 2);
  EXPECT_EQ(report.splits[validation_split].resumed_shards, 4);
  EXPECT_EQ(files("a"), expected);
  whole.seed = 9;
  expect_contains(error_of(whole), "belongs to another conversion");
  EXPECT_EQ(files("a").size(), expected.size());
  whole.resume = false;
  expect_contains(error_of(whole), "exists already");
}

TEST_F(ImageConvert, AShardWithoutItsLastAttributeIsWrittenAgain) {
  put_classes(6, 0);
  ImagesOptions whole = options();
  convert(whole);
  const std::string shard = path("out/set-train-00000-of-00001.h5");
  const Bytes expected = bytes_of_file(shard);
  {
    const h5::Guard lock;
    const h5::Handle file(H5Fopen(shard.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    ASSERT_GE(H5Adelete(file.get(), "complete"), 0);
  }
  fs::rename(shard, shard + ".tmp");
  whole.resume = true;
  EXPECT_EQ(convert(whole).splits[train_split].resumed_shards, 0);
  EXPECT_EQ(bytes_of_file(shard), expected);
}

TEST_F(ImageConvert, WhatAnotherConversionLeftIsNotTakenOver) {
  put_classes(6, 1);
  ImagesOptions first = options();
  convert(first);
  const std::string shard = path("out/set-train-00000-of-00001.h5");
  fs::rename(shard, shard + ".tmp");
  fs::remove(path("out/set-validation-00000-of-00001.h5"));
  put("in/train/ant/0.jpg", test_jpeg(20, 24, 1234));
  first.resume = true;
  EXPECT_EQ(convert(first).splits[train_split].resumed_shards, 0);
  EXPECT_EQ(stored("out/set-train").at("train/ant/0.jpg").bytes, test_jpeg(20, 24, 1234));
}

TEST_F(ImageConvert, ContradictingOptionsAreRefused) {
  put_classes(2, 1);
  const auto error_with = [&](const auto& change) {
    ImagesOptions changed = options();
    change(changed);
    return error_of(changed);
  };
  expect_contains(error_with([](auto& o) { o.out.clear(); }), "--out PREFIX is missing");
  expect_contains(error_with([](auto& o) { o.short_side = o.size = 8; }), "contradict");
  expect_contains(error_with([](auto& o) { o.encoding = "webp"; }), "expected jpeg or raw");
  expect_contains(error_with([](auto& o) { o.encoding = "raw", o.quality = 3; }), "--quality is for JPEG");
  expect_contains(error_with([](auto& o) { o.validation = 0.5; }), "there is a validation split already");
  expect_contains(error_with([](auto& o) { o.split = "test"; }), "expected train or validation");
  expect_contains(error_with([](auto& o) { o.split = "validation", o.statistics = true, o.input += "/val"; }),
                  "--statistics needs training images");
}

}  // namespace
}  // namespace ringtrain
