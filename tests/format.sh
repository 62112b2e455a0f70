#!/usr/bin/env bash
# Fails when a C++ file isn't formatted as .clang-format says; tests/format.sh --fix formats them. 77: skipped, because
# clang-format is missing or another major version than the one that formatted the files (their results differ).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v clang-format >/dev/null; then
  echo "format: clang-format is missing, skipped"
  exit 77
fi
version=$(clang-format --version | sed -n 's/.*version \([0-9]*\)\..*/\1/p')
if [[ $version != 14 ]]; then
  echo "format: clang-format is version $version, the files are formatted with 14, skipped"
  exit 77
fi
if ! git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  echo "format: not a git checkout, skipped"
  exit 77
fi
files=()
while read -r file; do
  [[ ! -f $file ]] || files+=("$file")
done < <(git ls-files --cached --others --exclude-standard -- '*.hpp' '*.cpp')
if [[ ${#files[@]} == 0 ]]; then
  echo "format: no C++ file yet"
  exit 0
fi
if [[ ${1:-} == --fix ]]; then
  clang-format -i "${files[@]}"
else
  clang-format --dry-run -Werror "${files[@]}"
fi
echo "format: ${#files[@]} files are fine"
