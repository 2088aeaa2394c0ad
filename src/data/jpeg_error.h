// Turns libjpeg's errors into exceptions. An exception must not pass through libjpeg's C functions. An error therefore
// leaves them by longjmp, and is thrown after that.
#pragma once

// Each of these headers needs the one before.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <array>
#include <csetjmp>
#include <string>

#include "base/error.h"

namespace ringtrain {

struct JpegErrors : jpeg_error_mgr {
  std::jmp_buf escape;
  std::array<char, JMSG_LENGTH_MAX> text;
  std::array<char, JMSG_LENGTH_MAX> warning{};  // the first warning that is no error
  jpeg_progress_mgr progress{};                 // for limit_scans()
};

// Returns the value for cinfo->err. Warnings about lost data are errors too; JpegReader lists them.
jpeg_error_mgr* set_up(JpegErrors& errors);

// Limits the number of scans to 500. Call it after jpeg_create_decompress(). Each scan of a progressive file goes over
// the whole picture, even if the scan has few bytes. A file with thousands of empty scans would keep a reader busy for
// hours. Encoders write about ten scans.
void limit_scans(jpeg_decompress_struct& info, JpegErrors& errors);

// Runs `calls`, which calls libjpeg. `calls` must not own objects with destructors.
template <class Calls>
void guarded(JpegErrors& errors, Calls calls) {
  if (setjmp(errors.escape) != 0) throw Error(cat("libjpeg: ", errors.text.data()));
  calls();
}

}  // namespace ringtrain
