# Functions with which the scripts configure*.sh look for libraries. They source this file.
CXX=${CXX:-g++}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() { # what is wrong, what to do
  echo "error: $1" >&2
  [ -n "${2:-}" ] && echo "       $2" >&2
  exit 1
}

# Returns whether a program with this header links with these flags.
links() { # header, flags...
  local header=$1
  shift
  printf '#include <cstdio>\n#include <%s>\nint main() { return 0; }\n' "$header" > "$scratch/probe.cpp" # jpeglib.h needs FILE
  "$CXX" -std=c++20 "$scratch/probe.cpp" -o "$scratch/probe" "$@" 2> "$scratch/log"
}

# Prints the value of a macro of a header.
macro() { # name, header, flags...
  local name=$1 header=$2
  shift 2
  printf '#include <%s>\nringtrain_value %s\n' "$header" "$name" |
    "$CXX" -std=c++20 -x c++ -E -P - "$@" 2> /dev/null | sed -n 's/^ringtrain_value //p' | tr -d '" '
}

# Prints the library's folder below X_HOME.
library_folder() { # home, library name
  local folder
  for folder in "$1/lib64" "$1/lib" "$1/lib/$("$CXX" -dumpmachine)" "$1/lib/$(uname -m)-linux-gnu" "$1"; do
    ls "$folder/lib$2".* > /dev/null 2>&1 && echo "$folder" && return
  done
}
