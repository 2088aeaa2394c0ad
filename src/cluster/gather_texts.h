// A text of each rank, on every rank of a communicator.
#pragma once

#include <string>
#include <vector>

#include "cluster/mpi_check.h"

namespace ringtrain {

// Collective; any lengths.
std::vector<std::string> gather_texts(const std::string& mine, MPI_Comm communicator);

}  // namespace ringtrain
