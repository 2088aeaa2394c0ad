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
};

// For cinfo->err. Warnings about lost data are errors too (JpegReader says which).
jpeg_error_mgr* set_up(JpegErrors& errors);

// Runs `calls`, which calls libjpeg and must hold nothing that needs destruction.
template <class Calls>
void guarded(JpegErrors& errors, Calls calls) {
  if (setjmp(errors.escape) != 0) throw Error(cat("libjpeg: ", errors.text.data()));
  calls();
}

}  // namespace ringtrain
