#include "data/hdf5.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "data/hdf5_internal.h"

namespace ringtrain::h5 {
namespace {

constexpr const char* open_for_writing = "already open for";  // HDF5's words, before "write" or "SWMR write"

// Returns what to do about HDF5's reason for a failure; "": nothing is known.
std::string advice_on(const std::string& reason, const std::string& path) {
  if (reason.find("truncated file") != std::string::npos)
    return "the file is an incomplete copy, or its writer was interrupted: copy or make it again";
  if (reason.find(open_for_writing) != std::string::npos)
    return cat("close it there; if no process has it open: h5clear -s ", path);
  return advice_for_writing(reason, path);
}

// Returns what to do if a file cannot be opened. The bytes of a file that may not be read are not at fault.
std::string advice_for_opening(int reason, const std::string& path) {
  if (reason != EACCES && reason != EPERM) return "";
  return cat("its owner can let you read it, and the folders above it: chmod a+r ", shell_command({path}));
}

#if H5_VERSION_GE(1, 10, 2)
constexpr H5F_libver_t oldest_format = H5F_LIBVER_V18;
#else
constexpr H5F_libver_t oldest_format = H5F_LIBVER_LATEST;
#endif

// Returns how other files become HDF5 files: what numpy loads is written with h5py.
std::string with_numpy(const std::string& path, const std::string& body) {
  return cat("convert it once, in Python:\n    import h5py, numpy\n    with h5py.File(",
             python_text(std::filesystem::path(path).replace_extension(".h5").string()), ", 'w') as f: ", body);
}

// MATLAB's format v4 begins with five small numbers, of which the last is the length of a name that follows.
bool is_matlab_4(const std::string& start) {
  std::array<std::int32_t, 5> header{};
  if (start.size() <= sizeof header) return false;
  std::memcpy(header.data(), start.data(), sizeof header);
  const auto [type, rows, columns, is_complex, length] = header;
  return type >= 0 && type < 53 && type % 10 < 3 && rows >= 0 && columns >= 0 && (is_complex == 0 || is_complex == 1) &&
         length > 1 && length < 64 && start.size() >= sizeof header + static_cast<std::size_t>(length) &&
         start[sizeof header + static_cast<std::size_t>(length) - 1] == '\0' && start[sizeof header] > ' ';
}

// Throws Error for a file without HDF5's signature. MATLAB's older .mat files have none, and a .mat file that is cut
// off may have lost it.
[[noreturn]] void refuse_other_format(const std::string& path) {
  const std::string start = first_bytes(path, 128);
  const auto refuse = [&](const std::string& format, const std::string& advice) {
    throw Error(cat(path, ": is ", format, ", not an HDF5 file"), advice);
  };
  constexpr const char* save_again = "in MATLAB: load it, and save it as HDF5: save('FILE.mat', 'X', 'Y', '-v7.3')";
  if (start.starts_with("MATLAB 5.0 MAT-file")) refuse("a .mat file of MATLAB's formats v5 to v7", save_again);
  if (start.starts_with("MATLAB 7.3 MAT-file"))
    throw Error(cat(path, ": is a .mat file of MATLAB 7.3 that is cut off: its HDF5 part is missing"),
                "copy or make it again");
  if (is_matlab_4(start)) refuse("a .mat file of MATLAB's format v4", save_again);
  if (start.starts_with("\x93NUMPY"))
    refuse("one NumPy array (.npy)", with_numpy(path, cat("f['images'] = numpy.load(", python_text(path),
                                                          "); f['labels'] = numpy.load('LABELS.npy')")));
  if (start.starts_with("PK\x03\x04") && path.ends_with(".npz"))
    refuse("a NumPy .npz file", with_numpy(path, cat("f.update(numpy.load(", python_text(path), "))")));
  if (start.starts_with("PK\x03\x04")) refuse("a zip file", "unpack it, and give the HDF5 file in it");
  if (const ForeignFile other = foreign_file(start)) refuse(other.format, other.advice);
  throw Error(cat(path, ": is not an HDF5 file"));
}

// Keeps the first description of HDF5's error stack that is not empty. The innermost error comes first.
herr_t keep_first_description(unsigned, const H5E_error2_t* error, void* result) {
  auto& text = *static_cast<std::string*>(result);
  if (text.empty() && error->desc != nullptr) text = error->desc;
  return 0;
}

// If the metadata of a file cannot be written (disk full), closing fails: HDF5 frees a part of its data about the file,
// keeps the file's id and crashes later. The file's descriptor is therefore redirected to anonymous memory, so that
// closing succeeds.
herr_t close_file(hid_t id) {
  if (H5Fflush(id, H5F_SCOPE_LOCAL) >= 0) return H5Fclose(id);
  const std::string reason = innermost_description();
  void* descriptor = nullptr;
  if (H5Fget_vfd_handle(id, H5P_DEFAULT, &descriptor) >= 0 && descriptor != nullptr) {
    const int memory = ::memfd_create("ringtrain-failed-file", MFD_CLOEXEC);
    if (memory >= 0) {
      ::dup2(memory, *static_cast<int*>(descriptor));
      ::close(memory);
    }
  }
  H5Fclose(id);
  H5Eclear2(H5E_DEFAULT);
  H5Epush2(H5E_DEFAULT, __FILE__, __func__, __LINE__, H5E_ERR_CLS, H5E_FILE, H5E_CANTCLOSEFILE, "%s", reason.c_str());
  return -1;
}

Handle file_access(const std::string& path, H5F_close_degree_t close_degree) {
  Handle access(checked(H5Pcreate(H5P_FILE_ACCESS), path, "cannot set file properties"), H5Pclose);
  checked(H5Pset_fclose_degree(access.get(), close_degree), path, "cannot set file properties");
  // No sieve buffer: small writes fail at once and not when the data set is closed; small reads do not fetch 64 KiB.
  checked(H5Pset_sieve_buf_size(access.get(), 1), path, "cannot set file properties");
  return access;
}

std::recursive_mutex& library_lock() {
  static auto* mutex = new std::recursive_mutex;  // never destroyed: handles may outlive static objects
  return *mutex;
}

}  // namespace

Guard::Guard() : lock_(library_lock()) {
  static thread_local bool quiet = false;
  if (quiet) return;
  static std::once_flag once;
  std::call_once(once, [] {
    // The variable also holds for the files that HDF5 opens itself, because a link or a virtual data set names them. A
    // file that is open with and without locking would be an error.
    ::setenv("HDF5_USE_FILE_LOCKING", "FALSE", 0);
    H5dont_atexit();  // handles close everything; HDF5's own clean-up crashes on a file that a full disk left half
                      // closed
    H5open();
  });
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  quiet = true;
}

std::string innermost_description() {
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first_description, &text);
  H5Eclear2(H5E_DEFAULT);
  // The file driver puts errno into a long line with times, descriptors and addresses. Only its error message is kept.
  const std::string marker = "error message = '";
  if (const auto begin = text.find(marker); begin != std::string::npos) {
    const auto end = text.find('\'', begin + marker.size());
    text = text.substr(begin + marker.size(), end - begin - marker.size());
  }
  return text.empty() ? "HDF5 gave no reason" : text;
}

void fail(const std::string& path, const std::string& what, std::source_location where) {
  // HDF5 does not always say that memory was missing. It said "can't find property in skip list".
  const bool lacks_memory = errno == ENOMEM;
  const std::string reason = innermost_description();
  throw Error(cat(path, ": ", what, ": ", reason, lacks_memory ? " (out of memory)" : ""), advice_on(reason, path),
              where);
}

Handle& Handle::operator=(Handle&& other) noexcept {
  std::swap(id_, other.id_);
  std::swap(close_, other.close_);
  return *this;
}

Handle::~Handle() {
  if (id_ < 0) return;
  const Guard guard;
  if (close_(id_) < 0) H5Eclear2(H5E_DEFAULT);
}

File File::create(const std::string& path) {
  const Guard guard;
  if (std::filesystem::exists(std::filesystem::symlink_status(path))) {
    throw Error(cat(path, ": exists already"), "remove it, or choose another name");
  }
  const Handle access = file_access(path, H5F_CLOSE_STRONG);
  checked(H5Pset_alignment(access.get(), 4096, 4096), path, "cannot set the alignment");
  // The format of HDF5 1.8 has a checksum in each piece of metadata, so that the library finds damage. In older formats
  // a flipped bit can make it read through a null pointer.
  checked(H5Pset_libver_bounds(access.get(), oldest_format, H5F_LIBVER_LATEST), path, "cannot set the file's format");
  const Handle creation(checked(H5Pcreate(H5P_FILE_CREATE), path, "cannot set file properties"), H5Pclose);
  H5Pset_obj_track_times(creation.get(), false);  // the same content gives the same bytes
  File file;
  file.path_ = path;
  file.handle_ = {checked(H5Fcreate(path.c_str(), H5F_ACC_EXCL, creation.get(), access.get()), path, "cannot create"),
                  close_file};
  return file;
}

File File::open(const std::string& path) {
  const Guard guard;
  struct stat status {};
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (const int reason = errno; descriptor < 0)
    throw Error(cat(path, ": cannot open: ", std::strerror(reason)), advice_for_opening(reason, path));
  const int stated = ::fstat(descriptor, &status);
  ::close(descriptor);
  if (stated != 0) throw Error(cat(path, ": cannot open: ", std::strerror(errno)));
  if (S_ISDIR(status.st_mode)) throw Error(cat(path, ": is a directory, not an HDF5 file"));
  if (status.st_size == 0) throw Error(cat(path, ": is empty (0 bytes), not an HDF5 file"));
  // HDF5 itself opens the files of links and virtual data sets in this way. A file that is open in two ways is an
  // error, and a virtual data set then reads zeros.
  const Handle access = file_access(path, H5F_CLOSE_WEAK);
  File file;
  file.path_ = path;
  const hid_t id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get());
  if (id < 0) {
    const htri_t is_hdf5 = H5Fis_hdf5(path.c_str());
    if (is_hdf5 == 0) refuse_other_format(path);
    H5Eclear2(H5E_DEFAULT);
    H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get());  // brings back the message, which H5Fis_hdf5 has cleared
    const std::string reason = innermost_description();
    const std::string advice = advice_on(reason, path);
    if (reason.find(open_for_writing) != std::string::npos)
      throw Error(cat(path, ": is open for writing, or its writer was killed"), advice);
    throw Error(
        cat(path, ": cannot open as HDF5: ", reason),
        advice.empty() ? "the file is damaged or cut off, or a newer HDF5 wrote it: copy or make it again" : advice);
  }
  file.handle_ = {id, close_file};
  return file;
}

bool File::has(const std::string& object) const {
  const Guard guard;
  if (object.empty() || object == "/") return true;
  // H5Lexists fails if a parent group is missing, so each parent is looked up first.
  for (std::size_t end = 0; end != std::string::npos;) {
    end = object.find('/', end + 1);
    const htri_t found = H5Lexists(id(), object.substr(0, end).c_str(), H5P_DEFAULT);
    if (found <= 0) {
      H5Eclear2(H5E_DEFAULT);
      return false;
    }
  }
  return true;
}

std::vector<std::string> File::list(const std::string& group) const {
  const Guard guard;
  const std::string what = cat("cannot list group '", group, "'");
  const Handle handle(checked(H5Gopen2(id(), group.c_str(), H5P_DEFAULT), path_, what), H5Gclose);
  H5G_info_t info{};
  checked(H5Gget_info(handle.get(), &info), path_, what);
  std::vector<std::string> names;
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    const auto member = [&](char* text, std::size_t size) {
      return checked(H5Lget_name_by_idx(handle.get(), ".", H5_INDEX_NAME, H5_ITER_INC, i, text, size, H5P_DEFAULT),
                     path_, what);
    };
    std::string name(static_cast<std::size_t>(member(nullptr, 0)), '\0');
    member(name.data(), name.size() + 1);
    names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

void File::make_group(const std::string& group) {
  const Guard guard;
  if (has(group)) return;
  if (const std::size_t slash = group.rfind('/'); slash != std::string::npos && slash > 0)
    make_group(group.substr(0, slash));
  const Handle creation(checked(H5Pcreate(H5P_GROUP_CREATE), path_, "cannot set group properties"), H5Pclose);
  H5Pset_obj_track_times(creation.get(), false);
  const Handle made(checked(H5Gcreate2(id(), group.c_str(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), path_,
                            cat("cannot make group '", group, "'")),
                    H5Gclose);
}

void File::fail(const std::string& what, std::source_location where) const {
  const Guard guard;
  h5::fail(path_, what, where);
}

void File::flush() {
  const Guard guard;
  checked(H5Fflush(id(), H5F_SCOPE_LOCAL), path_, "cannot write");
  void* descriptor = nullptr;
  checked(H5Fget_vfd_handle(id(), H5P_DEFAULT, &descriptor), path_, "cannot find the file descriptor");
  if (::fsync(*static_cast<int*>(descriptor)) != 0) {
    const int reason = errno;
    throw Error(cat(path_, ": cannot sync: ", std::strerror(reason)), advice_for_writing(reason, path_));
  }
}

void File::close() {
  const Guard guard;
  if (id() < 0) return;
  const hid_t id_of_file = id();
  handle_.release();
  checked(close_file(id_of_file), path_, "cannot write");
}

}  // namespace ringtrain::h5
