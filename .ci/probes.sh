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

# Sets cflags and libs of one library. They come from X_HOME if it is set, else from pkg-config, else from the system's
# folders.
find_library() { # variable, header, library ("" = header only), Debian package, module/spack name, pkg-config names...
  local variable=$1 header=$2 library=$3 package=$4 module=$5 home folder="" name
  shift 5
  home=${!variable:-}
  if [ -n "$home" ]; then
    [ -e "$home/include/$header" ] || fail "$variable=$home has no include/$header" "Set $variable to the folder that holds include/ and lib/ of $module, or unset it."
    cflags="-isystem $home/include" libs=""
    [ "$home" -ef /usr ] && cflags="" # with -isystem, it would come before the compiler's own headers
    if [ -n "$library" ]; then
      folder=$(library_folder "$home" "$library")
      [ -n "$folder" ] || fail "$variable=$home has no lib/lib$library" "Set $variable to the folder that holds include/ and lib/ of $module, or unset it."
      libs="-L$folder -Wl,-rpath,$folder -l$library"
    fi
    # shellcheck disable=SC2086
    links "$header" $cflags $libs || fail "$variable=$home: a program with $header does not build" "$(grep -m1 -i error "$scratch/log")"
    return
  fi
  for name in "$@"; do
    pkg-config --exists "$name" 2> /dev/null || continue
    cflags=$(pkg-config --cflags "$name" | sed 's/-I */-isystem /g') libs=$(pkg-config --libs "$name")
    # shellcheck disable=SC2086
    links "$header" $cflags $libs && return
  done
  cflags="" libs="${library:+-l$library}"
  # shellcheck disable=SC2086
  links "$header" $libs && return
  fail "$module was not found ($header${library:+, lib$library})" \
    "Debian: apt-get install $package (make setup does it) · modules: module load $module · spack: spack load $module · or set $variable."
}

# Prints why a download failed, from its log. When pip reaches no server, it ends with "No matching distribution found" and
# names the cause before.
why_not_fetched() {
  local cause
  cause=$(sed -n 's/.*Caused by \([A-Za-z]*Error.*\)/\1/p' "$1" | head -1 | tr -d '"`$' | cut -c1-200)
  if [ -n "$cause" ]; then echo "$cause"; else tail -1 "$1"; fi
}
