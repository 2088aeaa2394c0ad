#!/bin/bash
# Writes a README.md into the folder of a report of `make study`. It lists the program, the machine and the commands
# that made the report: results/study_record.sh results/twins
# With a name, also copies the report to results/studies/NAME, in smaller files for git: ... results/twins digits
# The copy may have 2 MiB (RECORD_MIB).
set -eu -o pipefail
cd "$(dirname "$0")/.."
[ $# -eq 1 ] || [ $# -eq 2 ] || { echo "usage: results/study_record.sh REPORT_FOLDER [NAME]" >&2; exit 2; }
report=${1%/}
name=${2:-}
[ -r "$report/log.tsv" ] || { echo "error: $report is no report of make study; run make study first" >&2; exit 1; }

{
  echo "# $(sed -n 's|.*<h1>\(.*\)</h1>.*|\1|p' "$report/report.html" | head -1)"
  echo
  echo "- Open \`report.html\` in a browser to read the report."
  echo "- \`report/\` has the figures and tables of the report."
  echo "- \`studies/\` has the study files as they ran."
  echo
  echo "The first table lists the program, the libraries and the machine that made the report. The second table lists the command of"
  echo "each study. \`make study\` ran these commands. Before them, it made the study files in \`$report/studies/\` and the data sets."
  echo
  echo "| what | |"
  echo "|---|---|"
  echo "| program | $(bin/ringtrain --version | head -1 | cut -d' ' -f2-) |"
  bin/ringtrain --version | sed -n '2,$s/^\([^:]*\): *\(.*\)/| \1 | \2 |/p' | grep -v '^| flags'
  echo "| machine | $(nproc) cores, $(lscpu | sed -n 's/^Model name: *//p' | head -1) |"
  echo "| system | $(. /etc/os-release && echo "$PRETTY_NAME"), Linux $(uname -r) |"
  echo "| figures | $("${PYTHON:-python3}" -c 'import sys, matplotlib, numpy, scipy; print("Python %d.%d" % sys.version_info[:2] + f", matplotlib {matplotlib.__version__}, NumPy {numpy.__version__}, SciPy {scipy.__version__}")') |"
  echo
  echo "| study | trials | minutes | command |"
  echo "|---|---|---|---|"
  # A study that was stopped and resumed has several lines. Their times are added up.
  awk -F '\t' '{ if (!($1 in seconds)) order[++n] = $1; seconds[$1] += $2; command[$1] = $4 }
    END { for (i = 1; i <= n; i++) printf "%s\t%.1f\t%s\n", order[i], seconds[order[i]] / 60, command[order[i]] }' "$report/log.tsv" |
    while IFS=$'\t' read -r study minutes command; do
      echo "| $study | $(find "results/$study" -mindepth 2 -maxdepth 2 -name run.json 2> /dev/null | wc -l) | $minutes | \`$command\` |"
    done
} > "$report/README.md.tmp"
mv "$report/README.md.tmp" "$report/README.md"

[ -n "$name" ] || exit 0
# Writes the new record beside the old one, which stays if something fails.
kept=results/studies/$name
new=$kept.tmp
rm -rf "${new:?}"
trap 'rm -rf "${new:?}"' EXIT
mkdir -p "$new"
cp -r "$report/report.html" "$report/report" "$report/studies" "$report/README.md" "$new/"
sed -i 's|^- `report/` has .*|&\n  Tables of losses, rates and noise scales at every point of a run are left out. `make study` writes them.|' "$new/README.md"
"${PYTHON:-python3}" results/shrink_report.py "$new"
rm -rf "${kept:?}"
mv "$new" "$kept"
echo "$kept: $(du -sh --apparent-size "$kept" | cut -f1)"
