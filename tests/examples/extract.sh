#!/usr/bin/env bash
# extract.sh PRELUDE FOLDER...: prints a C++ file in which the example of each header of the folders is the body of a
# function. An example is the first indented block of the comment that opens a header, if it is code: "//   …" with a
# semicolon. Names that it doesn't declare come from PRELUDE. An expression may stand without its semicolon.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
prelude=$1
shift
echo "#include \"$prelude\""
count=0
while read -r header; do
  example=$(awk '!/^\/\// { exit } /^\/\/   / { inside = 1; print substr($0, 6); next } inside { exit }' "$header")
  [[ $example == *";"* ]] || continue
  namespace=${header%%/*}
  count=$((count + 1))
  first=$(grep -n -m 1 '^//   ' "$header" | cut -d: -f1)
  printf '#include "%s"\nnamespace %s {\nauto example_%d() {\n#line %d "%s"\n' "$header" "$namespace" "$count" "$first" "$header"
  # A line that ends an expression gets its semicolon.
  sed -E 's,[[:space:]]*//.*$,,; /^((for|if|while|try) |#)/!s,([^;{}\,(+*/?:&|=<-])$,\1;,' <<<"$example"
  printf '}\n}  // namespace %s\n' "$namespace"
done < <(git ls-files --cached --others --exclude-standard -- "${@/%//*.hpp}" | sort)
[[ $count -gt 0 ]] || { echo "extract.sh: no example in $*" >&2; exit 1; }
