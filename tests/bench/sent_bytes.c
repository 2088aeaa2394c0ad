/* Counts the bytes that a rank sends from point to point, for benchmarks of how ranks communicate. It is preloaded. At
   the end each rank writes the number of its bytes to $SENT_BYTES.RANK. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static long long bytes;

static void count(int elements, MPI_Datatype type) {
  int size = 0;
  PMPI_Type_size(type, &size);
  bytes += (long long)elements * size;
}

int MPI_Isend(const void* values, int elements, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  count(elements, type);
  return PMPI_Isend(values, elements, type, to, tag, comm, request);
}

int MPI_Send(const void* values, int elements, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  count(elements, type);
  return PMPI_Send(values, elements, type, to, tag, comm);
}

int MPI_Issend(const void* values, int elements, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  count(elements, type);
  return PMPI_Issend(values, elements, type, to, tag, comm, request);
}

int MPI_Finalize(void) {
  const char* path = getenv("SENT_BYTES");
  if (path != NULL) {
    int rank = 0;
    char name[4096];
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(name, sizeof name, "%s.%d", path, rank);
    FILE* file = fopen(name, "w");
    if (file != NULL) {
      fprintf(file, "%lld\n", bytes);
      fclose(file);
    }
  }
  return PMPI_Finalize();
}
