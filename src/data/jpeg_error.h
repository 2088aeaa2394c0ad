// libjpeg's errors as exceptions. Its C frames must not be unwound, so they are left with longjmp.
#pragma once

// Each of these needs the one before.
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
  jpeg_progress_mgr progress{};  // of limit_scans()
};

// For cinfo->err. Warnings about lost data are errors too (JpegReader says which).
jpeg_error_mgr* set_up(JpegErrors& errors);

// After jpeg_create_decompress(). Each scan of a progressive file goes over the whole picture, however few bytes it
// has: files of thousands of empty ones would keep a reader busy for hours. Encoders write ten or so.
void limit_scans(jpeg_decompress_struct& info, JpegErrors& errors);

// Runs `calls`, which calls libjpeg and must hold nothing that needs destruction.
template <class Calls>
void guarded(JpegErrors& errors, Calls calls) {
  if (setjmp(errors.escape) != 0) throw Error(cat("libjpeg: ", errors.text.data()));
  calls();
}

}  // namespace ringtrain
