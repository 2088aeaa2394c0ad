#!/bin/bash
# Installs the results of `make all`: programs, man pages, completion, configurations, Slurm scripts, plots, pages, a
# module file.
#   PREFIX=/opt/ringtrain [DESTDIR=folder for packagers] .ci/install.sh
set -euo pipefail
prefix=${PREFIX:-/usr/local}
# Not every shell expands the ~ of `make install PREFIX=~/programs`.
# shellcheck disable=SC2088
case $prefix in "~/"*) prefix=$HOME/${prefix#"~/"} ;; esac
prefix=$(realpath -m "$prefix") # before cd: it may be relative
cd "$(dirname "$0")/.."
to=${DESTDIR:-}$prefix
if [ "$(realpath -m "$to")" = "$(realpath .)" ]; then
  echo "error: PREFIX is $prefix, where the program was built: its bin/ would be replaced. Set another one, such as PREFIX=\$HOME/.local" >&2
  exit 1
fi
share=$to/share/ringtrain
share_in_man=${prefix//-/\\\\-}/share/ringtrain
for program in ringtrain ringtrain-data; do
  [ -x bin/$program ] || { echo "error: bin/$program is not there: run make all first" >&2; exit 1; }
done
mkdir -p "$to"/{bin,lib/ringtrain,share/man/man1,share/bash-completion/completions,share/doc} "$share"/{results,slurm} ||
  { echo "error: $to cannot be written: set PREFIX to a folder of yours, or install as root" >&2; exit 1; }

# Installs the programs, and next to them the libraries that they open.
for program in ringtrain ringtrain-data; do
  install -s bin/$program "$to/lib/ringtrain/"
  ln -sfn ../lib/ringtrain/$program "$to/bin/$program"
  # The man page names pages and scripts as they lie in the checkout. Here they lie below the prefix.
  bin/$program --manual-page | sed -E "s#\b(configs|data_prep|results)/[A-Za-z_/]+\.(md|py)#${share_in_man}/&#g" | gzip -9n > "$to/share/man/man1/$program.1.gz"
  bin/$program --bash-completion > "$to/share/bash-completion/completions/$program"
done
for library in bin/*.so; do
  [ ! -e "$library" ] || install -m 755 "$library" "$to/lib/ringtrain/"
done

# Installs the files that the programs come with, in folders with the same names as in the checkout. The scripts look
# for the programs in bin/, and the pages name them so. share/doc/ringtrain is the same folder as share/ringtrain.
ln -sfn ../../bin "$share/bin"
ln -sfn ../ringtrain "$to/share/doc/ringtrain"
cp -r configs "$share/"
install -D -t "$share/data_prep" data_prep/{proper_names.sh,choose_pictures.py}
install -D -t "$share/tests" tests/mpirun.sh
install -D -t "$share/tests/golden" tests/golden/check_export.py
cp slurm/*.sbatch slurm/*.sh "$share/slurm/"
if [ ! -e "$share/slurm/site.env" ] || cmp -s slurm/site.env "$share/slurm/site.env"; then
  cp slurm/site.env "$share/slurm/"
else
  cp slurm/site.env "$share/slurm/site.env.new"
  echo "slurm/site.env was edited and stays; the new one is $prefix/share/ringtrain/slurm/site.env.new"
fi
cp results/{plot,plot_bench,report,table,follow,contact_sheet}.py "$share/results/"
cp -r results/reporting results/reference "$share/results/"
rm -rf "$share/results/reporting/__pycache__"

# Installs the pages: README.md, what it links to, what these pages link to, and so on.
declare -A installed
install_page() {
  local link
  if [ ! -f "$1" ] || [ -n "${installed[$1]:-}" ]; then return; fi
  installed[$1]=yes
  install -D -m 644 "$1" "$share/$1"
  [[ $1 == *.md ]] || return 0
  while read -r link; do
    install_page "$(realpath -m --relative-to=. "$(dirname "$1")/$link")"
  done < <(grep -oE '\]\([^)#:]+' "$1" | cut -c 3-)
}
for page in README.md results/bench/*.md; do
  install_page "$page"
done

version=$(sed -n 's/^#define RINGTRAIN_COMMIT "\(.*\)"$/\1/p' build/generated/build_info.h)
mkdir -p "$to/share/modulefiles/ringtrain"
sed -e "s|@PREFIX@|$prefix|g" -e "s|@VERSION@|$version|g" slurm/modulefile > "$to/share/modulefiles/ringtrain/$version"

echo "installed in $prefix. Without its bin/ on PATH:"
echo "  export PATH=$prefix/bin:\$PATH        or: module use $prefix/share/modulefiles && module load ringtrain"
echo "completion (bash-completion finds /usr and /usr/local by itself):"
for program in ringtrain ringtrain-data; do
  echo "  . $prefix/share/bash-completion/completions/$program"
done
echo "experiments: $prefix/share/ringtrain/configs; batch scripts: $prefix/share/ringtrain/slurm; pages: $prefix/share/doc/ringtrain"
