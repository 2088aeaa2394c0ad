#!/bin/bash
# Finds GoogleTest and writes build/gtest.mk, which the Makefile includes when it builds tests. Without GoogleTest it
# writes nothing and ends with an error, so that the next build looks again.
set -u
output=${1:?usage: .ci/configure_gtest.sh OUTPUT}
. "$(dirname "$0")/probes.sh"

find_library GTEST_HOME gtest/gtest.h gtest libgtest-dev googletest gtest
libs="-lgtest_main $libs -lpthread"
cat > "$output" << END || exit 1
# Written by .ci/configure_gtest.sh.
GTEST_CFLAGS := $cflags
GTEST_LIBS := $(grep -oE -- '-(L|Wl,)[^ ]*' <<< "$libs" | tr '\n' ' ') $libs
END
echo "  GoogleTest found"
