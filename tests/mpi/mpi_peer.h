// FakeNccl exchanges messages through this class, whose other side is a rank of this job. A send is done when the other
// rank has begun to receive. NCCL's sends behave so for messages that are longer than its buffers.
#pragma once

#include <mpi.h>

#include <array>
#include <functional>
#include <memory>

#include "cluster/links.h"
#include "cluster/mpi_calls.h"
#include "tests/emulation/fake_nccl.h"

namespace ringtrain {

class MpiPeer final : public FakePeer {
 public:
  MpiPeer(int other, int tag) : other_(other), tag_(tag) {}

  std::function<bool()> meet() override {
    auto both = std::make_shared<std::array<MPI_Request, 2>>();
    check_mpi(MPI_Isend(nullptr, 0, MPI_BYTE, other_, kMeeting + tag_, MPI_COMM_WORLD, &(*both)[0]), "MPI_Isend");
    check_mpi(MPI_Irecv(nullptr, 0, MPI_BYTE, other_, kMeeting + tag_, MPI_COMM_WORLD, &(*both)[1]), "MPI_Irecv");
    return [both] {
      int all = 0;
      check_mpi(MPI_Testall(2, both->data(), &all, MPI_STATUSES_IGNORE), "MPI_Testall");
      return all != 0;
    };
  }
  std::function<bool()> send(std::span<const std::byte> bytes) override {
    auto request = std::make_shared<MPI_Request>();
    check_mpi(MPI_Issend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, other_, kMessage + tag_,
                         MPI_COMM_WORLD, request.get()),
              "MPI_Issend");
    return done(request);
  }
  std::function<bool()> receive(std::span<std::byte> bytes) override {
    auto request = std::make_shared<MPI_Request>();
    check_mpi(MPI_Irecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, other_, kMessage + tag_, MPI_COMM_WORLD,
                        request.get()),
              "MPI_Irecv");
    return done(request);
  }

 private:
  static constexpr int kMeeting = 100, kMessage = 200;  // MPI tags
  static std::function<bool()> done(std::shared_ptr<MPI_Request> request) {
    return [request] {
      int flag = 0;
      check_mpi(MPI_Test(request.get(), &flag, MPI_STATUS_IGNORE), "MPI_Test");
      return flag != 0;
    };
  }
  int other_, tag_;
};

}  // namespace ringtrain
