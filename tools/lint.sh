#!/bin/bash
# All that can be said about the tree without running it. tools/lint.sh [CHECK]...; CHECK is the
# name of a function below without its "check_". Ends with "N passed, M failed".
set -uo pipefail
cd "$(dirname "$0")/.."

# What git knows or would add, and is still there.
tracked() {
    git ls-files --cached --others --exclude-standard -- "$@" | sort -u |
        xargs -r ls -d 2>/dev/null
}
code() { tracked 'src/*.[ch]' 'tests/*.[ch]' 'modules/*.[ch]'; }

check_rooms() { tools/check-rooms.py; }

check_format() {
    code | xargs -r clang-format --dry-run -Werror 2>&1 |
        sed -nE 's/^([^ :]+):[0-9]+:[0-9]+: error.*/\1/p' | sort | uniq -c |
        awk '{ n++; print $2 ": not formatted (" $1 " places): make format" } END { exit n > 0 }'
}

# The four checks of text, whatever it says.
check_columns() { tools/check-text.py columns; }
check_blanks() { tools/check-text.py blanks; }
check_length() { tools/check-text.py length; }
check_names() { tools/check-text.py names; }

# A second compiler's warnings.
check_clang() {
    code | grep '\.c$' | xargs -r -n 8 -P "$(nproc)" clang -fsyntax-only -std=gnu11 \
        -D_GNU_SOURCE -DTARN_VERSION='"lint"' -Isrc -Imodules -Wall -Wextra -Werror \
        -Wno-unused-parameter -Wstrict-prototypes -Wmissing-prototypes -Wvla
}

check_cppcheck() {
    local queue
    mkdir -p build/cppcheck
    # It does not read the system's headers; of these it must know the macros.
    queue=$(echo '#include <sys/queue.h>' | ${CC:-gcc} -E -M -xc - | tr ' ' '\n' |
        grep '/queue\.h$')
    cppcheck --quiet --enable=warning,portability --inline-suppr --std=c11 -D_GNU_SOURCE \
        -D__x86_64__ -DTARN_VERSION='"lint"' -Isrc -Imodules --include="$queue" \
        --suppressions-list=tools/cppcheck.txt --cppcheck-build-dir=build/cppcheck \
        -j "$(nproc)" --error-exitcode=1 --template='{file}:{line}: {message} [{id}]' \
        $(code | grep '\.c$' | grep -v '^tests/fuzz') 2>&1
}

check_scripts() {
    local f bad=0
    for f in $(tracked '*.sh' .ci/run); do
        bash -n "$f" || bad=1
        [ "$(head -c2 "$f")" != '#!' ] || [ -x "$f" ] || { echo "$f: not executable"; bad=1; }
    done
    return $bad
}

check_links() { tools/check-links.py; }

# Python: one format, no unused names, types. Types are strict for the package, and looked at
# elsewhere as far as they are written down.
check_python() {
    local files bad=0
    mapfile -t files < <(tracked 'utils/*.py' 'tests/python/*.py' 'tools/*.py')
    black -q --check -l 100 "${files[@]}" || {
        black -l 100 --check "${files[@]}" 2>&1 | grep '^would'
        echo 'black -l 100 formats them'
        bad=1
    }
    # Tests import harness for the paths it sets.
    { pyflakes3 "${files[@]}" || true; } | grep -v "'harness' imported but unused" && bad=1
    (cd utils/python && mypy --no-error-summary --cache-dir=../../build/mypy -p tarn) || bad=1
    return $bad
}

# Several at a time, those that take long first: one of them has work for one processor only.
checks=("$@")
[ $# -gt 0 ] || checks=(python cppcheck clang format links rooms columns blanks length names \
    scripts)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
declare -A running=() began=() # by process

begin() { # CHECK
    "check_$1" >"$work/$1" 2>&1 &
    running[$!]=$1 began[$!]=$EPOCHREALTIME
}

# Says how the first one that is done went.
finish() {
    local pid status=0 check took
    [ ! -t 1 ] || printf '...   %s' "${running[*]}"
    wait -n -p pid || status=$?
    [ ! -t 1 ] || printf '\r\033[K'
    check=${running[$pid]}
    unset "running[$pid]"
    took=$(awk -v a="${began[$pid]}" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    if [ $status = 0 ]; then
        passed=$((passed + 1))
        echo "ok    $check  ${took}s"
    else
        failed=$((failed + 1))
        echo "FAIL  $check  ${took}s"
        head -n 60 "$work/$check" | sed 's/^/    | /'
    fi
}

for check in "${checks[@]}"; do
    [ ${#running[@]} -lt "$(nproc)" ] || finish
    begin "$check"
done
while [ ${#running[@]} -gt 0 ]; do finish; done
echo "$passed passed, $failed failed"
[ $passed = ${#checks[@]} ]
