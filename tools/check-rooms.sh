#!/bin/bash
# Holds the includes of src/ against tools/rooms.txt: a room includes rooms of a lower rank only, only `net` knows libevent, and
# only `tls` knows OpenSSL. The public headers right under src/ (tarn.h, tarn_status.h, module.h) have no rank. Every room is in the table
# and has a README.md. A module sees module.h, the public headers, base (of which it has its own copy), and the headers of transport.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
files=$({ find src modules -name '*.[ch]' 2>/dev/null || true; } | sort)
[ -n "$files" ] || exit 0

# shellcheck disable=SC2086
awk '
    function bad(text) { printf "%s:%d: %s\n", FILENAME, FNR, text; errors++ }
    function normal(path,    n, part, out, i, j) { # a/b/../c -> a/c
        n = split(path, part, "/"); j = 0
        for (i = 1; i <= n; i++)
            if (part[i] == "..") j--
            else if (part[i] != ".") out[++j] = part[i]
        path = out[1]
        for (i = 2; i <= j; i++) path = path "/" out[i]
        return path
    }
    function room_of(path,    part, n) { n = split(path, part, "/"); return part[1] == "src" ? (n > 2 ? part[2] : "") : part[1] }
    FILENAME == "tools/rooms.txt" { if (!/^#/ && NF == 2) rank[$1] = $2; next }
    FNR == 1 {
        own = room_of(FILENAME); dir = FILENAME; sub(/[^\/]*$/, "", dir)
        if (own != "" && own != "modules" && !(own in rank)) bad("room " own " is not in tools/rooms.txt")
    }
    /^[ \t]*#[ \t]*include[ \t]*</ {
        if (own != "net" && $0 ~ /<(event2\/|event\.h|evutil\.h|ev[a-z]*\.h)/) bad("only src/net includes libevent")
        if (own != "tls" && $0 ~ /<openssl\//) bad("only src/tls includes OpenSSL")
        next
    }
    /^[ \t]*#[ \t]*include[ \t]*"/ {
        name = $0; sub(/^[^"]*"/, "", name); sub(/".*/, "", name)
        target = normal(dir name)
        if (!(target in known)) target = normal("src/" name)
        if (own == "modules" && !(target in known)) target = normal("modules/" name)
        if (!(target in known)) { bad("\"" name "\" is neither beside this file nor under src"); next }
        to = room_of(target)
        if (own == "modules") {
            if (to != "" && to != "modules" && to != "base" && target !~ /^src\/transport\/[a-z_]*\.h$/) bad("a module sees src/module.h, base and src/transport/*.h, not " target)
        } else if (to == "" || to == own) {
            next
        } else if (own == "" && FILENAME == "src/module.h" && to == "base") {
            next
        } else if (own == "") {
            bad("a public header includes " target)
        } else if (rank[to] >= rank[own])
            bad("room " own " (rank " rank[own] ") includes " target " (rank " rank[to] ")")
    }
    BEGIN { while (("find src modules -name \"*.h\" 2>/dev/null" | getline path) > 0) known[path] = 1 }
    END { exit errors > 0 }
' tools/rooms.txt $files || status=1

for room in src/*/; do
    [ -n "$(ls "$room"*.c "$room"*.h "$room"*/*.c 2>/dev/null)" ] || continue
    [ -f "${room}README.md" ] || { echo "${room}: no README.md"; status=1; }
done
exit $status
