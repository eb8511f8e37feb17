#!/bin/sh
# join.sh DIR: the page of DIR/page.html, page.css and the scripts as a C array, with the hashes by
# which a browser knows its style and script (Content-Security-Policy), and one of all of it.
set -eu
scripts="dom units chart overview cache pool conductor lists ask" # in this order
hash_of() { sha256sum | cut -c1-64 | tr a-f A-F | basenc --base16 -d | base64; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
page=$work/page
cat "$1/page.css" >"$work/page.css"
for script in $scripts; do cat "$1/$script.js"; done >"$work/page.js"
awk -v dir="$work" '
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
echo "#define PAGE_STYLE \"$(hash_of <"$work/page.css")\""
echo "#define PAGE_SCRIPT \"$(hash_of <"$work/page.js")\""
echo "#define PAGE_HASH \"$(hash_of <"$page")\""
echo "static const unsigned char page_text[] = {"
od -An -v -tx1 "$page" | sed 's/ \(..\)/0x\1,/g'
echo "};"
