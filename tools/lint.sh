#!/bin/bash
# All that can be said about the tree without running it. tools/lint.sh [CHECK]...; CHECK is the name of a function below
# without its "check_". Ends with "N passed, M failed".
set -uo pipefail
cd "$(dirname "$0")/.."

found() { find . \( -path ./build -o -path ./.git -o -path ./tests/tmp \) -prune -o -type f \( "$@" \) -print | sed 's|^\./||' | sort; }
code() { found -path './src/*.[ch]' -o -path './tests/*.[ch]' -o -path './modules/*.[ch]'; }
scripts() { found -name '*.sh' -o -path ./.ci/run; }

check_rooms() { tools/check-rooms.py; }

check_format() { code | xargs -r clang-format --dry-run -Werror 2>&1 | sed -nE 's/^([^ :]+):[0-9]+:[0-9]+: error.*/\1/p' | sort | uniq -c |
    awk '{ n++; print $2 ": not formatted (" $1 " places): make format" } END { exit n > 0 }'; }

# A file is one idea.
check_length() { code | xargs -r wc -l | awk '$2 != "total" && $1 > 1000 { print $2 ": " $1 " lines; look for the second idea"; n++ } END { exit n > 0 }'; }

# A second compiler's warnings.
check_clang() {
    code | grep '\.c$' | xargs -r -n 8 -P "$(nproc)" clang -fsyntax-only -std=gnu11 -D_GNU_SOURCE -DTARN_VERSION='"lint"' -Isrc -Imodules \
        -Wall -Wextra -Werror -Wno-unused-parameter -Wstrict-prototypes -Wmissing-prototypes -Wvla
}

check_cppcheck() {
    local queue
    mkdir -p build/cppcheck
    # It does not read the system's headers; of these it must know the macros.
    queue=$(echo '#include <sys/queue.h>' | "${CC:-gcc}" -E -M -xc - | tr ' ' '\n' | grep '/queue\.h$')
    cppcheck --quiet --enable=warning,portability --inline-suppr --std=c11 -D_GNU_SOURCE -D__x86_64__ -DTARN_VERSION='"lint"' -Isrc -Imodules --include="$queue" \
        --suppressions-list=tools/cppcheck.txt --cppcheck-build-dir=build/cppcheck -j "$(nproc)" --error-exitcode=1 \
        --template='{file}:{line}: {message} [{id}]' $(code | grep '\.c$' | grep -v '^tests/fuzz') 2>&1
}

check_scripts() {
    local f bad=0
    for f in $(scripts); do
        bash -n "$f" || bad=1
        [ "$(head -c2 "$f")" != '#!' ] || [ -x "$f" ] || { echo "$f: not executable"; bad=1; }
    done
    return $bad
}

check_links() { tools/check-links.py; }

# Python: one format, no unused names, types. Types are strict for the package, and looked at elsewhere as far as they are written down.
check_python() {
    local files bad=0
    mapfile -t files < <(found -path './utils/*.py' -o -path './tests/python/*.py' -o -path './tools/*.py')
    black -q --check -l 100 "${files[@]}" || { black -l 100 --check "${files[@]}" 2>&1 | grep '^would'; echo 'black -l 100 formats them'; bad=1; }
    # Tests import harness for the paths it sets.
    pyflakes3 "${files[@]}" | grep -v "'harness' imported but unused" && bad=1
    (cd utils/python && mypy --no-error-summary --cache-dir=../../build/mypy -p tarn) || bad=1
    return $bad
}

# Spaces at the end of lines, files without a last newline.
check_blanks() {
    local f bad=0
    while read -r f; do
        if grep -nHE '[[:blank:]]+$' "$f"; then bad=1; fi
        if [ -s "$f" ] && [ -n "$(tail -c1 "$f")" ]; then echo "$f: no newline at the end"; bad=1; fi
    done < <(found -name '*.[ch]' -o -name '*.sh' -o -name '*.tcl' -o -name '*.py' -o -name '*.md' -o -name Makefile -o -name '*.txt' | grep -v '^tests/fuzz/')
    return $bad
}

checks=("$@")
[ $# -gt 0 ] || checks=(rooms format length blanks scripts links python clang cppcheck)
passed=0 failed=0
for check in "${checks[@]}"; do
    start=$EPOCHREALTIME
    [ ! -t 1 ] || printf '...   %s' "$check"
    out=$("check_$check" 2>&1)
    status=$?
    [ ! -t 1 ] || printf '\r\033[K'
    took=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    if [ $status = 0 ]; then
        passed=$((passed + 1))
        echo "ok    $check  ${took}s"
    else
        failed=$((failed + 1))
        echo "FAIL  $check  ${took}s"
        printf '%s\n' "$out" | head -n 60 | sed 's/^/    | /'
    fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
