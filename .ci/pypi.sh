# Sourced by the scripts that download packages from PyPI in fixed versions with fixed checksums, without the Python
# packages that they depend on.

# Prints a python3 that has pip.
python_with_pip() {
  local candidate
  for candidate in ${PYTHON:-} python3 /usr/bin/python3; do
    "$candidate" -m pip --version > /dev/null 2>&1 && echo "$candidate" && return
  done
  echo "no python3 with pip was found (Debian: apt-get install python3-pip)" >&2
  return 1
}

# download_wheels FOLDER [PIP OPTION...] < lines of PACKAGE==VERSION --hash=sha256:...
download_wheels() {
  local folder=$1 python
  shift
  python=$(python_with_pip) || return
  cat > "$folder/requirements.txt"
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes "$@" \
    --dest "$folder" -r "$folder/requirements.txt" < /dev/null
}
