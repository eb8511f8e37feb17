# A manual page of what a program says to --help:
#     PROGRAM --help | awk -v name=PROGRAM -v what="what it is" -v version=0.1.0 \
#         -v docs=/usr/share/doc/tarn -f tools/man.awk
# The first paragraph is the synopsis. A line in column 1 that ends with a colon is a heading, if
# indented lines follow; those are "option  text", which may go on in lines that are indented more,
# or examples, which stay as they are.
function plain(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    return text ~ /^[.']/ ? "\\&" text : text
}
function example(on) {
    if (on != in_example) print on ? ".PP\n.nf" : ".fi"
    in_example = on
}
function section(text) { example(0); print ".SH " text; item = -1; fresh = 1 }
function indent_of(line) { match(line, /^ */); return RLENGTH }
function item_begin(line,    at) {
    item = indent_of(line)
    line = substr(line, item + 1)
    at = line ~ /^[a-z]+ +\[/ ? match(line, / +/) : match(line, /   */)
    example(0)
    print ".TP\n.B " plain(at ? substr(line, 1, at - 1) : line)
    if (at) print plain(substr(line, at + RLENGTH))
}
# Is line i an item: an option, a subcommand, or words with a text behind them?
function is_item(i,    line, n) {
    line = lines[i]
    n = indent_of(line)
    return n > 0 && n < 8 && (substr(line, n + 1) ~ /^--?[A-Za-z]/ ||
        substr(line, n + 1) ~ /^[^ ].*[^ ]   *[^ ]/ || substr(line, n + 1) ~ /^[a-z]+ +\[/)
}
{ gsub(/\t/, "        "); lines[++count] = $0 }
END {
    title = toupper(name)
    printf ".TH %s 1 \"\" \"tarn %s\" \"tarn\"\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.nf\n", title,
        version, name, plain(what)
    sub(/^[Uu]sage: /, "", lines[1])
    for (i = 1; i <= count && lines[i] != ""; i++) {
        # However the program was called.
        gsub("[^ ]*/" name, name, lines[i])
        sub(/^ +/, i == 1 ? "" : "    ", lines[i])
        if (index(lines[i], "    " name) == 1) sub(/^ +/, "", lines[i])
        print plain(lines[i])
    }
    print ".fi"
    section("DESCRIPTION")
    for (; i <= count; i++) {
        line = lines[i]
        gsub("[^ ]*/" name, name, line)
        n = indent_of(line)
        if (line ~ /^[^ ].*:$/ && (lines[i + 1] ~ /^ / || lines[i + 2] ~ /^ /) && is_item(i + 1)) {
            sub(/:$/, "", line)
            section("\"" toupper(substr(line, 1, 1)) plain(substr(line, 2)) "\"")
        } else if (line == "") {
            example(0)
            item = -1
            fresh = 1
        } else if (item >= 0 && n > item + 1) {
            print plain(substr(line, n + 1))
        } else if (n > 0 && is_item(i)) {
            item_begin(line)
        } else if (n > 0) {
            item = -1
            example(1)
            print plain(line)
        } else {
            if (fresh || item >= 0 || in_example) { example(0); print ".PP" }
            fresh = 0
            item = -1
            print plain(line)
        }
    }
    section("SEE ALSO")
    print "The pages in " docs ", README.md first."
}
