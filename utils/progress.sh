# Sourced by the scripts beside it: what they wait for, on standard error. On a terminal one line
# that is written over, else a line every ten seconds.
progress_said=$SECONDS progress_shown=

progress() { # TEXT
    local text=$*
    if [ -t 2 ]; then
        printf '\r%s\033[K' "${text:0:79}" >&2
        progress_shown=1
    elif [ $((SECONDS - progress_said)) -ge 10 ]; then
        echo "$*" >&2
        progress_said=$SECONDS
    fi
}

progress_end() {
    [ -z "$progress_shown" ] || printf '\r\033[K' >&2
    progress_said=$SECONDS progress_shown=
}
