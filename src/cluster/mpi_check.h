// Includes mpi.h without its C++ bindings, and turns error codes into exceptions. Only files of this folder include it.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <source_location>
#include <string>

#include "base/error.h"

namespace ringtrain {

// Works only on communicators that return errors (MPI_ERRORS_RETURN).
inline void check_mpi(int code, const char* call, std::source_location where = std::source_location::current()) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(cat(call, " failed: ", text), "another rank may have ended; look for its message above", where);
}

}  // namespace ringtrain
