#!/bin/bash
# Prints the proper names of a word list, one per line: data_prep/proper_names.sh [WORDS]
# A word is printed if it starts with a capital, and if its second and third letter are no capitals ("MacArthur" stays).
# Possessives ("Adam's"), acronyms ("NATO") and words of one or two letters (mostly symbols of chemical elements: "Ag")
# are left out.
set -eu
words=${1:-/usr/share/dict/words}
[ -r "$words" ] || { echo "error: there is no word list at $words; install Debian's package wamerican (make setup), or name a list" >&2; exit 1; }
# grep works on bytes, so the result does not depend on the locale. \xc3[\x80-\x9e] are the accented capitals in UTF-8.
LC_ALL=C grep -P "^([A-Z]|\xc3[\x80-\x9e])[^A-Z][^A-Z]" "$words" | LC_ALL=C grep -v "'s$" | LC_ALL=C sort -u
