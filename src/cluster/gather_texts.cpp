#include "cluster/gather_texts.h"

#include <numeric>

namespace ringtrain {

std::vector<std::string> gather_texts(const std::string& mine, MPI_Comm communicator) {
  int size = 0;
  MPI_Comm_size(communicator, &size);
  const auto ranks = static_cast<std::size_t>(size);
  const int length = static_cast<int>(mine.size());
  std::vector<int> lengths(ranks), offsets(ranks);
  check_mpi(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, communicator), "MPI_Allgather");
  std::exclusive_scan(lengths.begin(), lengths.end(), offsets.begin(), 0);
  std::string all(static_cast<std::size_t>(offsets.back() + lengths.back()), '\0');
  check_mpi(
      MPI_Allgatherv(mine.data(), length, MPI_CHAR, all.data(), lengths.data(), offsets.data(), MPI_CHAR, communicator),
      "MPI_Allgatherv");
  std::vector<std::string> texts(ranks);
  for (std::size_t r = 0; r < ranks; ++r)
    texts[r] = all.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(lengths[r]));
  return texts;
}

}  // namespace ringtrain
