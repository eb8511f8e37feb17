# Holds the output of Redis' suite (second file) against a list of what is expected (first file).
# Prints a line of figures and one for every difference; exit status 1 when there is one. With
# update=FILE writes a list of what was seen.
function note(name) { if (!(name in seen)) { seen[name] = 1; order[++names] = name } }
function complain(text) { print "  " text; differences++ }

{ input = FILENAME == ARGV[1] ? 1 : 2 }
input == 1 { some = sub(/^\?/, "") ? "?" : "" }
input == 1 && /^[+0] / {
    name = substr($0, 3)
    wanted[name] = substr($0, 1, 1)
    optional[name] = some
    next
}
input == 1 && /^[-x] [^|]*\| / {
    name = $0; sub(/^[-x] [^|]*\| /, "", name)
    reason[name] = substr($0, 3, length($0) - length(name) - 5)
    wanted[name] = "-"
    optional[name] = some
    mark[name] = substr($0, 1, 1)
    next
}
input == 1 && /^= / { option = $0; next }
input == 1 { next }

/^\[ok\]: / {
    name = substr($0, 7); sub(/ \([0-9]+ ms\)$/, "", name)
    note(name)
    if (!(name in outcome) || (without && !(name in failed_without)))
        outcome[name] = without ? "0" : "+"
    detail = 0; next
}
/^\[err\]: / {
    name = substr($0, 8); named = sub(/ in tests\/[^ ]*$/, "", name)
    if (!named) { stray[++strays] = name; detail = 0; next } # not within a test
    note(name); outcome[name] = "-"; if (without) failed_without[name] = 1
    detail = name; lines = 0; next
}
/^--- without a pool$/ { without = 1; over = 0; detail = 0; next }
/^\[skip\]: / { name = substr($0, 9); note(name); skipped[name] = 1; detail = 0; next }
/^\[ignore\]: / { ignored++; detail = 0; next }
/^\[exception\]: / { stray[++strays] = $0; ended = 1; detail = 0; next }
/\(IN PROGRESS\) / {
    stray[++strays] = "no progress in: " substr($0, index($0, "(IN PROGRESS)") + 14)
    next
}
/^\[[0-9]+\/[0-9]+ done\]: / { done = 1; detail = 0; next }
/^\[(testing|ready|server-|TIMEOUT)/ || /^=== / || /^Testing / || /^$/ { detail = 0; next }
/^ *The End$/ { over = 1; detail = 0; next }
detail != 0 && !over && lines < 4 { why[detail] = why[detail] "\n      " $0; lines++ }

END {
    for (i = 1; i <= names; i++) {
        name = order[i]
        if (!(name in outcome)) { left_out++; continue }
        if (outcome[name] == "-") failed++
        else passed++
        want = name in wanted ? wanted[name] : ""
        if (outcome[name] == "-" && want == "-") known++
        else if (outcome[name] == "-") complain("fails: " name why[name])
        else if (want == "-") complain("passes by now: " name)
        else if (want == "+" && outcome[name] == "0")
            complain("passes only with pool-size 0: " name why[name])
        else if (want == "") complain("not in the list: " name)
    }
    # a test that cannot pass may fail outside of its own lines
    for (i = 1; i <= strays && all == ""; i++) complain("outside of a test: " stray[i])
    if (!done) complain("the file was not run to its end")
    if (external == "")
        for (name in wanted)
            if (optional[name] != "" && !(name in seen)) continue
            else if (wanted[name] != "-" && !(name in outcome)) complain("was not run: " name)
            else if (!(name in seen)) complain("is not in the suite, or out of reach: " name)
    printf "%s: %d passed, %d failed%s, %d left out, %d ignored by the suite; %s\n",
        file, passed, failed, known ? " (" known " as listed)" : "", left_out, ignored,
        differences ? differences " not as listed" : "as listed"
    if (update != "" && done) {
        print "# " file ": what passes (+), what passes with pool-size 0 (0),",
            "what cannot, and why (-)" >update
        if (option != "") print option >update
        for (i = 1; i <= names; i++) {
            name = order[i]
            if (name in outcome && outcome[name] != "-")
                print optional[name] outcome[name] " " name >update
            else if (name in outcome || name in reason)
                print optional[name] (name in mark ? mark[name] : "-") " " \
                    (name in reason ? reason[name] : "TODO") " | " name >update
        }
    }
    exit differences ? 1 : 0
}
