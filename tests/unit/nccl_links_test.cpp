// Tests messages between devices through the test's own NCCL: what the messages wait for, and what happens when a rank
// does not come.
#include <gtest/gtest.h>

#include <deque>

#include "base/clock.h"
#include "base/error.h"
#include "cluster/links.h"
#include "tests/emulation/fake_nccl.h"

namespace ringtrain {
namespace {

using cuda::CopyKind;
using cuda::HostDevice;
using cuda::RunOrder;

constexpr std::int64_t kBytes = 1000;
constexpr int kTag = 1;

// The other rank. It takes part in a given number of messages, and sends bytes 0, 1, 2 ...
class Other final : public FakePeer {
 public:
  explicit Other(int messages) : left_(messages) {}
  std::function<bool()> meet() override {
    return [asked = 0]() mutable { return ++asked > 3; };
  }
  std::function<bool()> send(std::span<const std::byte> bytes) override {
    return comes([this, bytes] { received.emplace_back(bytes.begin(), bytes.end()); });
  }
  std::function<bool()> receive(std::span<std::byte> bytes) override {
    return comes([this, bytes] { std::ranges::fill(bytes, static_cast<std::byte>(sent_++)); });
  }
  std::deque<std::vector<std::byte>> received;
  double comes_at = 0;  // it takes part in no message before this time

 private:
  std::function<bool()> comes(std::function<void()> work) {
    if (left_-- <= 0) return [] { return false; };
    return [this, asked = 0, work = std::move(work)]() mutable {
      if (now_seconds() < comes_at) return false;
      if (++asked == 3) work();
      return asked >= 3;
    };
  }
  int left_, sent_ = 0;
};

// Messages of the host, which carry NCCL's ids, are done at once.
class NoHost final : public Links {
 public:
  std::byte* allocate(std::int64_t) override { return nullptr; }
  void release(std::byte*) override {}
  std::unique_ptr<Pending> send(std::span<const std::byte>, int, int) override { return std::make_unique<Done>(); }
  std::unique_ptr<Pending> receive(std::span<std::byte> bytes, int, int) override {
    std::ranges::fill(bytes, static_cast<std::byte>('x'));
    return std::make_unique<Done>();
  }

  std::unique_ptr<WaitTimer> make_timer() override { return nullptr; }

 private:
  struct Done final : Pending {
    bool done() override { return true; }
  };
};

class NcclLinksTest : public testing::Test {
 protected:
  // Connects rank 0 with rank 1 in one direction. Rank 1 takes part in the first message and in `messages` more.
  void connect(bool sends, int messages, double timeout = 30) {
    auto peer = std::make_unique<Other>(1 + messages);
    other_ = peer.get();
    nccl_ = std::make_unique<FakeNccl>(device_, std::move(peer));
    const Lane lane = sends ? Lane{0, 1, kTag} : Lane{1, 0, kTag};
    links_ = make_nccl_links([this]() -> const NcclApi& { return nccl_->api(); }, device_, host_,
                             {.rank = 0, .lanes = {lane}, .timeout_seconds = timeout});
    memory_ = links_->allocate(kBytes);
  }
  void TearDown() override {
    if (memory_ != nullptr) links_->release(memory_);
    links_.reset();
    EXPECT_TRUE(nccl_->misuses.empty()) << nccl_->misuses.front();
  }
  std::span<std::byte> memory() { return {memory_, kBytes}; }
  void wait(cuda::Event event) {
    device_.synchronize(event, [&] { links_->poll(); });
  }

  HostDevice device_{{.order = {RunOrder::Kind::latest, 0}}};
  NoHost host_;
  Other* other_ = nullptr;
  std::unique_ptr<FakeNccl> nccl_;
  std::unique_ptr<Links> links_;
  std::byte* memory_ = nullptr;
};

TEST_F(NcclLinksTest, AMessageLeavesBehindWhatMakesItAndBeforeWhatComesNext) {
  connect(true, 3);
  const cuda::Event end = device_.make_event();
  auto* const values = static_cast<std::byte*>(device_.allocate_host(kBytes));
  for (int i = 0; i < 3; ++i) {
    std::fill_n(values, kBytes, static_cast<std::byte>(10 + i));
    device_.copy(memory_, values, kBytes, CopyKind::to_device, device_.compute_stream());
    const auto message = links_->send(memory(), 1, kTag);
    message->finish();
    device_.zero(memory_, kBytes, device_.compute_stream());
    device_.record(end, device_.compute_stream());
    wait(end);
  }
  ASSERT_EQ(other_->received.size(), 4u);  // the first one connects
  for (std::size_t i = 1; i < 4; ++i)
    EXPECT_EQ(other_->received[i], std::vector<std::byte>(kBytes, static_cast<std::byte>(9 + i)));
  device_.release_host(values);
}

TEST_F(NcclLinksTest, AMessageIsThereForWhatComesAfterFinish) {
  connect(false, 3);
  const cuda::Event end = device_.make_event();
  auto* const values = static_cast<std::byte*>(device_.allocate_host(kBytes));
  for (int i = 1; i <= 3; ++i) {
    device_.zero(memory_, kBytes, device_.compute_stream());
    const auto message = links_->receive(memory(), 1, kTag);
    message->finish();
    device_.copy(values, memory_, kBytes, CopyKind::to_host, device_.compute_stream());
    device_.record(end, device_.compute_stream());
    wait(end);
    EXPECT_EQ(std::count(values, values + kBytes, static_cast<std::byte>(i)), kBytes);
  }
  device_.release_host(values);
}

// The host queues the waits and does not wait itself.
TEST_F(NcclLinksTest, TheTimerMeasuresHowLongTheComputeStreamWaits) {
  connect(false, 2);
  const auto timer = links_->make_timer();
  const cuda::Event end = device_.make_event();
  const auto pass = [&](double late) {
    const auto message = links_->receive(memory(), 1, kTag);
    other_->comes_at = now_seconds() + late;
    timer->time([&] { message->finish(); });
    EXPECT_EQ(timer->take_seconds(), 0) << "the wait has not ended";
    device_.zero(memory_, kBytes, device_.compute_stream());
    device_.record(end, device_.compute_stream());
    wait(end);
    return timer->take_seconds();
  };
  EXPECT_GE(pass(0.1), 0.09);
  const double prompt = pass(0);
  EXPECT_GT(prompt, 0);
  EXPECT_LT(prompt, 0.05);
  EXPECT_EQ(timer->take_seconds(), 0);
}

TEST_F(NcclLinksTest, ARankThatDoesNotComeIsNamedAndTheDeviceIsFree) {
  connect(false, 0, 0.05);
  const auto message = links_->receive(memory(), 1, kTag);
  message->finish();
  const cuda::Event end = device_.make_event();
  device_.record(end, device_.compute_stream());
  try {
    wait(end);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 0: a message of 1000 bytes from rank 1 to rank 0 took more than 0.05 s");
  }
  EXPECT_EQ(nccl_->count("abort"), 1);
  EXPECT_THROW(links_->receive(memory(), 1, kTag), Error);
  wait(end);
}

TEST_F(NcclLinksTest, AMessageThatHasNoLaneIsAnError) {
  connect(true, 0);
  EXPECT_THROW(links_->send(memory(), 2, kTag), Error);
  EXPECT_THROW(links_->receive(memory(), 1, kTag), Error);
}

}  // namespace
}  // namespace ringtrain
