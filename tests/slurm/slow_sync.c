// This library is preloaded into ringtrain. With it, a checkpoint takes a second to reach the disk, so that a test can
// act in that time.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int fsync(int file) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path);
  if (length > 7 && memcmp(path + length - 7, ".h5.tmp", 7) == 0) {
    // fsync is called twice: by HDF5's own flush, and before the file gets its name.
    struct timespec left = {0, 500 * 1000 * 1000};
    while (nanosleep(&left, &left) != 0) {
    }
  }
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}
