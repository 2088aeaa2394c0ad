# Sourced by the scripts that print or link data of a package, installed or fetched. `scratch` is a folder that is removed
# at the end of the script.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# fail MESSAGE [HINT]
fail() {
  echo "error: $1" >&2
  [ $# = 1 ] || echo "  hint: $2" >&2
  exit 1
}

# given_file VARIABLE EXPECTED: prints the file that the variable names, or nothing if it is not set.
given_file() {
  local file=${!1:-}
  [ -z "$file" ] || [ -r "$file" ] || fail "$1=$file cannot be read, expected $2"
  echo "$file"
}

# file_of_module MODULE FILE: prints the path of a file in an installed Python module, or nothing.
file_of_module() {
  local python folder
  for python in ${PYTHON:-} python3 /usr/bin/python3; do
    folder=$("$python" -c "import importlib.util as u; print(u.find_spec('$1').submodule_search_locations[0])" 2> /dev/null) || continue
    [ -r "$folder/$2" ] && echo "$folder/$2" && return
  done
  return 0
}

# debian_package NAME: downloads a package and prints its path, or nothing. $scratch/log has the reason.
debian_package() {
  command -v apt-get > /dev/null && command -v dpkg-deb > /dev/null || return 0
  chmod 755 "$scratch" # apt downloads as a user of its own
  local as_root=""
  [ "$(id -u)" = 0 ] || as_root="sudo -n"
  fetch() { (cd "$scratch" && apt-get download -qq "$1" > /dev/null 2> "$scratch/log"); }
  fetch "$1" || { $as_root apt-get update -qq > /dev/null 2>&1 && fetch "$1"; } || true
  find "$scratch" -name '*.deb'
}

# not_found WHAT PACKAGE HINT: ends with an error that has the last line of $scratch/log.
not_found() {
  fail "$1, and $2 could not be fetched$([ -s "$scratch/log" ] && echo ": $(tail -1 "$scratch/log")")" "$3"
}
