// This library is preloaded into ringtrain. It disturbs calls of the file system, the memory, the clock and the
// transport.
//
//   RINGTRAIN_FAULTS="call=pwrite,path=*/checkpoints/*,rank=0,from=3,count=1,do=ENOSPC; ..."
//
// A rule acts on calls number `from`, ..., `from + count - 1` (count=0: all calls from there on) among the calls that
// match it. It can match one of the names in `call` (joined by |), the path of the file (a pattern as in the shell),
// the rank, and for malloc a size of at least `size` bytes. `do` is the name of an errno, or
//   short          reads and writes transfer half of the bytes
//   sleep:MS       waits before the call
//   hang           never returns
//   silly          unlink: the file stays under another name, as on NFS when a process has it open
//   signal:N       sends a signal to this process; parent:N to the process that has started it (mpirun)
//   shift:S        clock only: the wall clock is S seconds off
// The first time that a rule acts is noted in the file RINGTRAIN_FAULTS_HITS as "RULE RANK PID CALL PATH". At
// MPI_Finalize the number of matching calls is written to the file RINGTRAIN_FAULTS_COUNTS as "RULE RANK NUMBER".
// Programs other than ringtrain and ringtrain-data are not affected.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <mpi.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { none, opening, reading, writing, syncing, renaming, linking, removing, locking, cutting, making, statting,
       allocating, clocking, sending, finalizing, kinds };
static const char* const names[kinds] = {"", "open", "read", "write", "fsync", "rename", "link", "unlink", "flock",
                                         "ftruncate", "mkdir", "fstat", "malloc", "clock", "send", "finalize"};
static const struct { const char* name; int value; } errors[] = {
    {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"EIO", EIO},         {"ESTALE", ESTALE}, {"EROFS", EROFS},
    {"EACCES", EACCES}, {"ENOLCK", ENOLCK}, {"ENOSYS", ENOSYS}, {"ENOMEM", ENOMEM}, {"EINTR", EINTR},
    {"EPERM", EPERM},   {"ENOENT", ENOENT}, {"EMLINK", EMLINK}, {"EOPNOTSUPP", EOPNOTSUPP},
    {"EMFILE", EMFILE}, {"ENFILE", ENFILE}};

struct rule {
  unsigned calls;
  char path[256], action[16];
  int rank, error;
  long from, count, size, amount;
  atomic_long seen;
  atomic_int noted;
};
static struct rule rules[64];
static int rule_count, own_rank = -1;
static unsigned wanted;  // the calls that any rule names
static char hits[PATH_MAX];

#define REAL(name)                                                              \
  ({                                                                            \
    static __typeof__(&name) real_;                                             \
    if (real_ == NULL) real_ = (__typeof__(&name))dlsym(RTLD_NEXT, #name);      \
    real_;                                                                      \
  })

static void set(struct rule* rule, const char* key, char* value) {
  if (strcmp(key, "call") == 0) {
    for (char *rest = value, *word; (word = strsep(&rest, "|")) != NULL;)
      for (int kind = 1; kind < kinds; ++kind)
        if (strcmp(word, names[kind]) == 0) rule->calls |= 1u << kind;
  } else if (strcmp(key, "path") == 0) {
    snprintf(rule->path, sizeof rule->path, "%s", value);
  } else if (strcmp(key, "rank") == 0) {
    rule->rank = atoi(value);
  } else if (strcmp(key, "from") == 0) {
    rule->from = atol(value);
  } else if (strcmp(key, "count") == 0) {
    rule->count = atol(value);
  } else if (strcmp(key, "size") == 0) {
    rule->size = atol(value);
  } else if (strcmp(key, "do") == 0) {
    char* amount = strchr(value, ':');
    if (amount != NULL) {
      *amount = '\0';
      rule->amount = atol(amount + 1);
    }
    snprintf(rule->action, sizeof rule->action, "%s", value);
    for (size_t i = 0; i < sizeof errors / sizeof *errors; ++i)
      if (strcmp(value, errors[i].name) == 0) rule->error = errors[i].value;
  }
}

__attribute__((constructor)) static void read_rules(void) {
  const char* text = getenv("RINGTRAIN_FAULTS");
  if (text == NULL || strncmp(program_invocation_short_name, "ringtrain", 9) != 0) return;
  const char* ranks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
  for (int i = 0; i < 3 && own_rank < 0; ++i)
    if (getenv(ranks[i]) != NULL) own_rank = atoi(getenv(ranks[i]));
  if (getenv("RINGTRAIN_FAULTS_HITS") != NULL) snprintf(hits, sizeof hits, "%s", getenv("RINGTRAIN_FAULTS_HITS"));
  static char copy[16384];
  snprintf(copy, sizeof copy, "%s", text);
  unsigned calls = 0;
  for (char *rest = copy, *line; (line = strsep(&rest, ";")) != NULL && rule_count < 64;) {
    struct rule* rule = &rules[rule_count];
    *rule = (struct rule){.rank = -1, .from = 1, .count = 1};
    for (char *word, *inner = line; (word = strsep(&inner, ",")) != NULL;) {
      while (*word == ' ') ++word;
      char* value = strchr(word, '=');
      if (value == NULL) continue;
      *value++ = '\0';
      set(rule, word, value);
    }
    if (rule->rank >= 0 && rule->rank != own_rank) rule->calls = 0;
    calls |= rule->calls;
    ++rule_count;
  }
  wanted = calls;
}

static void append(const char* path, const char* line) {
  const int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return;
  syscall(SYS_write, file, line, strlen(line));
  syscall(SYS_close, file);
}

static void note(struct rule* rule, int kind, const char* path) {
  if (hits[0] == '\0' || atomic_exchange(&rule->noted, 1) != 0) return;
  char line[PATH_MAX + 100];
  snprintf(line, sizeof line, "%d %d %d %s %s\n", (int)(rule - rules), own_rank, (int)getpid(), names[kind],
           path != NULL ? path : "-");
  append(hits, line);
}

static void write_counts(void) {
  const char* path = getenv("RINGTRAIN_FAULTS_COUNTS");
  char line[100];
  for (int i = 0; path != NULL && i < rule_count; ++i) {
    snprintf(line, sizeof line, "%d %d %ld\n", i, own_rank, atomic_load(&rules[i].seen));
    append(path, line);
  }
}

static void sleep_ms(long ms) {
  struct timespec left = {ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

enum { go_on = 0, half = -1, silly = -2 };  // other values are an errno

// Asks the rules about a call. Waits, hangs and sends signals itself.
static int ask(int kind, const char* path, long size) {
  int answer = go_on;
  for (int i = 0; i < rule_count; ++i) {
    struct rule* rule = &rules[i];
    if ((rule->calls >> kind & 1u) == 0 || size < rule->size) continue;
    if (rule->path[0] != '\0' && (path == NULL || fnmatch(rule->path, path, 0) != 0)) continue;
    const long number = atomic_fetch_add(&rule->seen, 1) + 1;
    if (number < rule->from || (rule->count > 0 && number >= rule->from + rule->count)) continue;
    note(rule, kind, path);
    if (strcmp(rule->action, "sleep") == 0) sleep_ms(rule->amount);
    if (strcmp(rule->action, "hang") == 0)
      for (;;) pause();
    if (strcmp(rule->action, "signal") == 0) kill(getpid(), (int)rule->amount);
    if (strcmp(rule->action, "parent") == 0) kill(getppid(), (int)rule->amount);
    if (strcmp(rule->action, "short") == 0) answer = half;
    if (strcmp(rule->action, "silly") == 0) answer = silly;
    if (rule->error != 0) answer = rule->error;
  }
  return answer;
}

static int ask_path(int kind, const char* path) {
  if ((wanted >> kind & 1u) == 0 || path == NULL) return go_on;
  char whole[PATH_MAX];
  if (path[0] != '/' && getcwd(whole, sizeof whole / 2) != NULL) {
    strncat(whole, "/", 2);
    strncat(whole, path, sizeof whole / 2 - 2);
    path = whole;
  }
  return ask(kind, path, 0);
}

static int ask_file(int kind, int file) {
  if ((wanted >> kind & 1u) == 0) return go_on;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return go_on;
  path[length] = '\0';
  const int kept = errno, answer = ask(kind, path, 0);
  errno = kept;
  return answer;
}

static int refuse(int answer) {
  errno = answer;
  return -1;
}

// ---- Files ---------------------------------------------------------------------------------------------------------

// Rules about `mkdir` also hold for files that are opened for writing.
static int ask_open(const char* path, int flags) {
  int answer = ask_path(opening, path);
  if (answer <= 0 && (flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0 && (wanted >> making & 1u) != 0)
    answer = ask_path(making, path);
  return answer > 0 ? answer : go_on;
}

#define OPEN(name)                                             \
  int name(const char* path, int flags, ...) {                 \
    va_list rest;                                              \
    va_start(rest, flags);                                     \
    const int mode = va_arg(rest, int);                        \
    va_end(rest);                                              \
    const int answer = ask_open(path, flags);                  \
    return answer > 0 ? refuse(answer) : REAL(name)(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

static int open_flags(const char* mode) {
  return mode[0] == 'r' && strchr(mode, '+') == NULL ? O_RDONLY : O_WRONLY;
}
FILE* fopen(const char* path, const char* mode) {
  const int answer = ask_open(path, open_flags(mode));
  return answer > 0 ? (errno = answer, NULL) : REAL(fopen)(path, mode);
}
FILE* fopen64(const char* path, const char* mode) {
  const int answer = ask_open(path, open_flags(mode));
  return answer > 0 ? (errno = answer, NULL) : REAL(fopen64)(path, mode);
}

#define TRANSFER(kind, type, name, places, ...)                 \
  ssize_t name places {                                         \
    const int answer = ask_file(kind, file);                    \
    if (answer > 0) return refuse(answer);                      \
    if (answer == half && bytes > 1) bytes /= 2;                \
    return REAL(name)(__VA_ARGS__);                             \
  }
TRANSFER(reading, void*, read, (int file, void* to, size_t bytes), file, to, bytes)
TRANSFER(reading, void*, pread, (int file, void* to, size_t bytes, off_t at), file, to, bytes, at)
TRANSFER(reading, void*, pread64, (int file, void* to, size_t bytes, off64_t at), file, to, bytes, at)
TRANSFER(writing, const void*, write, (int file, const void* from, size_t bytes), file, from, bytes)
TRANSFER(writing, const void*, pwrite, (int file, const void* from, size_t bytes, off_t at), file, from, bytes, at)
TRANSFER(writing, const void*, pwrite64, (int file, const void* from, size_t bytes, off64_t at), file, from, bytes, at)

ssize_t writev(int file, const struct iovec* parts, int count) {
  const int answer = ask_file(writing, file);
  return answer > 0 ? refuse(answer) : REAL(writev)(file, parts, answer == half && count > 1 ? 1 : count);
}

#define ON_FILE(kind, name)                              \
  int name(int file) {                                   \
    const int answer = ask_file(kind, file);             \
    return answer > 0 ? refuse(answer) : REAL(name)(file); \
  }
ON_FILE(syncing, fsync)
ON_FILE(syncing, fdatasync)

int fstat(int file, struct stat* out) {
  const int answer = ask_file(statting, file);
  return answer > 0 ? refuse(answer) : REAL(fstat)(file, out);
}
int flock(int file, int operation) {
  const int answer = ask_file(locking, file);
  return answer > 0 ? refuse(answer) : ((int (*)(int, int))dlsym(RTLD_NEXT, "flock"))(file, operation);
}
int ftruncate(int file, off_t bytes) {
  const int answer = ask_file(cutting, file);
  return answer > 0 ? refuse(answer) : REAL(ftruncate)(file, bytes);
}
int ftruncate64(int file, off64_t bytes) {
  const int answer = ask_file(cutting, file);
  return answer > 0 ? refuse(answer) : REAL(ftruncate64)(file, bytes);
}
int rename(const char* from, const char* to) {
  const int answer = ask_path(renaming, to);
  return answer > 0 ? refuse(answer) : REAL(rename)(from, to);
}
int link(const char* from, const char* to) {
  const int answer = ask_path(linking, to);
  return answer > 0 ? refuse(answer) : REAL(link)(from, to);
}
int unlink(const char* path) {
  const int answer = ask_path(removing, path);
  if (answer == silly) {
    static atomic_int number;
    char other[PATH_MAX];
    const char* slash = strrchr(path, '/');
    const int folder = slash != NULL ? (int)(slash - path) + 1 : 0;
    snprintf(other, sizeof other, "%.*s.nfs%08d", folder, path, 1 + atomic_fetch_add(&number, 1));
    return REAL(rename)(path, other);
  }
  return answer > 0 ? refuse(answer) : REAL(unlink)(path);
}
int mkdir(const char* path, mode_t mode) {
  const int answer = ask_path(making, path);
  return answer > 0 ? refuse(answer) : ((int (*)(const char*, mode_t))dlsym(RTLD_NEXT, "mkdir"))(path, mode);
}

// ---- Memory: the C library's own functions need no look-up, which would allocate memory -------------------------

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

static int has_memory(size_t bytes) {
  if ((wanted >> allocating & 1u) == 0) return 1;
  const int kept = errno, answer = ask(allocating, NULL, bytes > LONG_MAX ? LONG_MAX : (long)bytes);
  errno = answer > 0 ? ENOMEM : kept;
  return answer <= 0;
}
void* malloc(size_t bytes) { return has_memory(bytes) ? __libc_malloc(bytes) : NULL; }
void* calloc(size_t count, size_t bytes) { return has_memory(count * bytes) ? __libc_calloc(count, bytes) : NULL; }
void* realloc(void* old, size_t bytes) { return has_memory(bytes) ? __libc_realloc(old, bytes) : NULL; }
void* aligned_alloc(size_t to, size_t bytes) { return has_memory(bytes) ? __libc_memalign(to, bytes) : NULL; }
void* memalign(size_t to, size_t bytes) { return has_memory(bytes) ? __libc_memalign(to, bytes) : NULL; }
int posix_memalign(void** out, size_t to, size_t bytes) {
  if (!has_memory(bytes)) return ENOMEM;
  *out = __libc_memalign(to, bytes);
  return *out != NULL ? 0 : ENOMEM;
}

// ---- The wall clock ------------------------------------------------------------------------------------------------

static long shift(void) {
  if ((wanted >> clocking & 1u) == 0) return 0;
  static _Thread_local int inside = 0;
  if (inside) return 0;
  inside = 1;
  long seconds = 0;
  ask(clocking, NULL, 0);
  for (int i = 0; i < rule_count; ++i) {
    const struct rule* rule = &rules[i];
    const long seen = atomic_load(&rule->seen);
    if ((rule->calls >> clocking & 1u) != 0 && seen >= rule->from &&
        (rule->count == 0 || seen < rule->from + rule->count))
      seconds += rule->amount;
  }
  inside = 0;
  return seconds;
}
int clock_gettime(clockid_t clock, struct timespec* out) {
  const int code = REAL(clock_gettime)(clock, out);
  if (clock == CLOCK_REALTIME && code == 0) out->tv_sec += shift();
  return code;
}
int gettimeofday(struct timeval* restrict out, void* restrict zone) {
  const int code = ((int (*)(struct timeval*, void*))dlsym(RTLD_NEXT, "gettimeofday"))(out, zone);
  if (code == 0 && out != NULL) out->tv_sec += shift();
  return code;
}
time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != NULL) *out = now.tv_sec;
  return now.tv_sec;
}

// ---- Messages ------------------------------------------------------------------------------------------------------

int MPI_Isend(const void* from, int count, MPI_Datatype type, int to, int tag, MPI_Comm group, MPI_Request* request) {
  if ((wanted >> sending & 1u) != 0) ask(sending, NULL, 0);
  return REAL(MPI_Isend)(from, count, type, to, tag, group, request);
}
int MPI_Finalize(void) {
  if ((wanted >> finalizing & 1u) != 0) ask(finalizing, NULL, 0);
  write_counts();
  return REAL(MPI_Finalize)();
}
