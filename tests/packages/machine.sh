# Sourced: a Debian in a directory, booted with systemd in namespaces of its own, network included.
#
#     machine_boot ROOT    returns when its systemd is up; 77 where the kernel does not let us
#     machine COMMAND...   runs there, as root
#     machine_halt
#
# What is mounted in its namespace goes with it.

machine_pid= machine_cgroup= machine_shell=

machine_boot() {
    local root=$1 child
    machine_cgroup=$(mktemp -d)
    mount -t cgroup2 none "$machine_cgroup" && mkdir "$machine_cgroup/tarn-test-$$" || return 77
    (
        echo "$BASHPID" >"$machine_cgroup/tarn-test-$$/cgroup.procs"
        exec unshare --mount --uts --ipc --net --pid --cgroup --fork --kill-child \
            --propagation private bash "${BASH_SOURCE[0]}" "$root"
    ) </dev/null >"$root/boot.log" 2>&1 &
    machine_shell=$!
    for ((i = 0; i < 300; i++)); do
        child=$(pgrep -P "$machine_shell" || true)
        if [ "$(cat "/proc/$child/comm" 2>/dev/null)" = systemd ]; then
            machine_pid=$child
            case $(machine systemctl is-system-running 2>/dev/null) in
            running | degraded) return 0 ;;
            esac
        fi
        kill -0 "$machine_shell" 2>/dev/null || break
        sleep 0.1
    done
    cat "$root/boot.log"
    return 77
}

machine() {
    nsenter -t "$machine_pid" --mount --uts --ipc --net --pid --cgroup env -i \
        PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"
}

machine_halt() {
    # With the first process of a namespace all of them end.
    [ -z "$machine_pid" ] || kill -KILL "$machine_pid" 2>/dev/null || true
    [ -z "$machine_shell" ] || { wait "$machine_shell" || true; } 2>/dev/null
    [ -n "$machine_cgroup" ] || return 0
    for ((i = 0; i < 50; i++)); do
        find "$machine_cgroup/tarn-test-$$" -depth -type d -exec rmdir {} + 2>/dev/null && break
        sleep 0.1
    done
    umount "$machine_cgroup" && rmdir "$machine_cgroup"
}

# Process 1 of the namespaces: a root that systemd likes.
machine_init() {
    set -e
    mount --bind "$1" "$1"
    cd "$1"
    mount -t proc proc proc
    mount -t sysfs -o ro sysfs sys
    mount -t cgroup2 cgroup sys/fs/cgroup
    mount -t tmpfs -o mode=755 tmpfs run
    mount -t tmpfs -o mode=755 tmpfs dev
    for name in null zero full random urandom tty; do
        touch "dev/$name"
        mount --bind "/dev/$name" "dev/$name"
    done
    ln -s /proc/self/fd dev/fd
    mkdir -p dev/shm dev/pts old
    mount -t tmpfs -o mode=1777 tmpfs dev/shm
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    pivot_root . old
    cd /
    umount -l /old
    exec env -i container=tarn-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --log-target=console --show-status=no
}

[ "${BASH_SOURCE[0]}" != "$0" ] || machine_init "$@"
