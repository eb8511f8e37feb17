#!/bin/sh
# join.sh DIR: the page of DIR/page.html, .css and .js as a C array, with the hashes by which a
# browser knows its style and script (Content-Security-Policy), and one of all of it.
set -eu
hash_of() { sha256sum | cut -c1-64 | tr a-f A-F | basenc --base16 -d | base64; }
# What stands between the tags: everything, with the newline before its end.
part() { cat "$1/page.$2"; }
page=$(mktemp)
trap 'rm -f "$page"' EXIT
awk -v dir="$1" '
    function insert(name, line) {
        printf "%s", before
        while ((getline line < (dir "/" name)) > 0) print line
        printf "%s\n", after
    }
    match($0, /@page\.(css|js)@/) {
        before = substr($0, 1, RSTART - 1)
        after = substr($0, RSTART + RLENGTH)
        insert(substr($0, RSTART + 1, RLENGTH - 2))
        next
    }
    { print }' "$1/page.html" >"$page"
echo "#define PAGE_STYLE \"$(part "$1" css | hash_of)\""
echo "#define PAGE_SCRIPT \"$(part "$1" js | hash_of)\""
echo "#define PAGE_HASH \"$(hash_of <"$page")\""
echo "static const unsigned char page_text[] = {"
od -An -v -tx1 "$page" | sed 's/ \(..\)/0x\1,/g'
echo "};"
