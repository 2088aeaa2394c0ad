#include "cluster/mpi_library_sums.h"

#include <exception>

#include "cluster/sent_bytes.h"

namespace ringtrain {

MpiLibrarySums::MpiLibrarySums(const RankGroup& group) : group_(group) {
  comm_ = duplicate(group);
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

MpiLibrarySums::~MpiLibrarySums() {
  if (std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
}

void MpiLibrarySums::start(std::span<float> values, const PartsLeft& left) {
  ++*left;
  Sum& sum = sums_.emplace_back(Sum{MPI_REQUEST_NULL, left});
  check_mpi(MPI_Iallreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_FLOAT, MPI_SUM, comm_,
                           &sum.request),
            "MPI_Iallreduce");
  sent_bytes().by_message += 2 * ring_half_bytes(std::ssize(std::as_bytes(values)), group_.size());
}

void MpiLibrarySums::progress() {
  std::erase_if(sums_, [](Sum& sum) {
    int done = 0;
    check_mpi(MPI_Test(&sum.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done) --*sum.left;
    return done != 0;
  });
}

}  // namespace ringtrain
