/* Load for Mooncake's master, as `tarn-benchmark meta` makes it for tarn: requests from templates
 * in which only the digits of keys change, answers that are looked at no more than they must be,
 * one thread for all connections, one call of each under way. Mooncake's own master_bench has
 * neither look-ups of what exists nor due times, and makes its requests anew for each call.
 *
 * Built within Mooncake's tree (docs/BENCHMARKS.md): it includes the declarations of its RPCs. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gflags/gflags.h>
#include <ylt/coro_rpc/impl/protocol/coro_rpc_protocol.hpp>
#include <ylt/struct_pack.hpp>

#include "rpc_service.h"

DEFINE_int32(port, 50051, "of the master, on this machine");
DEFINE_string(op, "get", "put, get or exists");
DEFINE_uint64(batch, 128, "keys of a call; 1: the calls for one key");
DEFINE_uint64(keys, 100000, "that are put before, and looked up");
DEFINE_uint64(value_size, 4096, "bytes of a value");
DEFINE_uint64(key_size, 64, "bytes of a key, 16 or more");
DEFINE_uint64(clients, 1, "connections");
DEFINE_uint64(puts, 0, "of 100 calls: so many are puts, whatever the operation is");
DEFINE_double(rate, 0, "calls a second of all connections, evenly spaced, 0: as fast as it goes");
DEFINE_double(seconds, 5, "");
DEFINE_uint64(segments, 16, "that are mounted");
DEFINE_uint64(segment_size, 512ull << 20, "bytes of each");

using mooncake::WrappedMasterService;
using protocol = coro_rpc::protocol::coro_rpc_protocol;
template <auto F>
using Result = util::function_return_type_t<decltype(F)>;

static uint64_t now_ns() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}
[[noreturn]] static void die(const char *what) {
    fprintf(stderr, "mooncake-load: %s\n", what);
    exit(1);
}

/* --- requests --- */

template <typename... Params, typename Buffer, typename... Args>
static void pack(Buffer &to, const std::tuple<Params...> *, Args &&...args) {
    struct_pack::serialize_to_with_offset(to, protocol::REQ_HEAD_LEN,
                                          (const std::remove_cvref_t<Params> &)args...);
}
template <auto F, typename... Args>
static std::string request(Args &&...args) {
    std::string bytes;
    pack(bytes, (util::function_parameters_t<decltype(F)> *)nullptr, std::forward<Args>(args)...);
    protocol::req_header header{};
    header.magic = protocol::magic_number;
    header.function_id = coro_rpc::func_id<F>();
    header.length = (uint32_t)(bytes.size() - protocol::REQ_HEAD_LEN);
    constexpr auto bare = struct_pack::sp_config::DISABLE_ALL_META_INFO;
    struct_pack::serialize_to<bare>(bytes.data(), struct_pack::get_needed_size<bare>(header),
                                    header);
    return bytes;
}

static const mooncake::UUID client_id{0x7461726e, (uint64_t)getpid()};

static std::string key(uint64_t number) {
    static const std::string stem = "vllm@meta-llama/Llama-3-70B@8@0@";
    char digits[17];
    snprintf(digits, sizeof(digits), "%016llx", (unsigned long long)number);
    std::string all = stem;
    all.resize(FLAGS_key_size - 16, '.');
    return all + digits;
}
enum Op { PUT, PUT_END, GET, EXISTS };
static const std::string tenant = "default";
static const uint64_t marker = 0xfedcba9876543210;

static std::string whole(Op op, const std::vector<std::string> &k) {
    const mooncake::ReplicateConfig how;
    const bool one = FLAGS_batch == 1;
    std::vector<mooncake::ObjectMeta> metas;
    for (const auto &name : k) metas.push_back({name, std::nullopt});
    switch (op) {
    case PUT:
        return one ? request<&WrappedMasterService::PutStart>(client_id, k[0], FLAGS_value_size,
                                                              how, tenant)
                   : request<&WrappedMasterService::BatchPutStart>(
                         client_id, k, std::vector<uint64_t>(k.size(), FLAGS_value_size), how,
                         tenant);
    case PUT_END:
        return one ? request<&WrappedMasterService::PutEnd>(client_id, metas[0],
                                                            mooncake::ReplicaType::MEMORY, tenant)
                   : request<&WrappedMasterService::BatchPutEnd>(
                         client_id, metas, mooncake::ReplicaType::MEMORY, tenant);
    case GET:
        return one ? request<&WrappedMasterService::GetReplicaList>(k[0], tenant)
                   : request<&WrappedMasterService::BatchGetReplicaList>(k, tenant);
    default:
        return one ? request<&WrappedMasterService::ExistKey>(k[0], tenant)
                   : request<&WrappedMasterService::BatchExistKey>(k, tenant);
    }
}

/* A request for a batch of any keys. */
struct Template {
    std::string bytes;
    std::vector<size_t> at; /* of the keys' digits */
    explicit Template(Op op) {
        bytes = whole(op, std::vector<std::string>(FLAGS_batch, key(marker)));
        const std::string digits = "fedcba9876543210";
        for (size_t i = 0; (i = bytes.find(digits, i)) != std::string::npos; i += 16)
            at.push_back(i);
        if (at.size() != FLAGS_batch) die("keys do not lie in requests as text");
    }
    const std::string &of(uint64_t first) {
        static const char hex[] = "0123456789abcdef";
        for (uint64_t i = 0; i < FLAGS_batch; i++)
            for (int d = 0; d < 16; d++) bytes[at[i] + d] = hex[(first + i) >> (60 - 4 * d) & 15];
        return bytes;
    }
};
static std::vector<Template> templates;

/* --- answers --- */

template <typename T>
static bool well(const T &one) {
    return one.has_value();
}
static bool well(const tl::expected<bool, mooncake::ErrorCode> &one) {
    return one.has_value() && *one;
}
template <auto F>
static std::vector<bool> results(std::string_view body) {
    Result<F> all;
    if (struct_pack::deserialize_to(all, body)) die("an answer of another form");
    std::vector<bool> good;
    if constexpr (requires { all.size(); })
        for (const auto &one : all) good.push_back(well(one));
    else
        good.push_back(well(all));
    return good;
}
static std::vector<bool> results_of(Op op, std::string_view body) {
    const bool one = FLAGS_batch == 1;
    switch (op) {
    case PUT:
        return one ? results<&WrappedMasterService::PutStart>(body)
                   : results<&WrappedMasterService::BatchPutStart>(body);
    case PUT_END:
        return one ? results<&WrappedMasterService::PutEnd>(body)
                   : results<&WrappedMasterService::BatchPutEnd>(body);
    case GET:
        return one ? results<&WrappedMasterService::GetReplicaList>(body)
                   : results<&WrappedMasterService::BatchGetReplicaList>(body);
    default:
        return one ? results<&WrappedMasterService::ExistKey>(body)
                   : results<&WrappedMasterService::BatchExistKey>(body);
    }
}

/* --- connections --- */

struct Conn {
    int fd;
    std::string in;
    size_t have = 0;
    bool busy = false;
    Op op;
    uint64_t first, from_ns, due_ns;
    Conn() : in(1 << 20, '\0') {
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_port = htons((uint16_t)FLAGS_port);
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        const int on = 1;
        fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (sockaddr *)&to, sizeof(to)) != 0) die("cannot connect");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    }
    void send(const std::string &bytes) {
        for (size_t at = 0; at < bytes.size();) {
            ssize_t n = ::send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
            if (n <= 0) die("the connection is gone");
            at += (size_t)n;
        }
    }
    /* Waits for the rest of what has begun. Its body is there until the next call. */
    std::string_view answer() {
        have = 0;
        for (size_t want = protocol::RESP_HEAD_LEN;;) {
            ssize_t n = recv(fd, in.data() + have, in.size() - have, 0);
            if (n <= 0) die("the connection is gone");
            have += (size_t)n;
            if (have < want) continue;
            protocol::resp_header header;
            (void)struct_pack::deserialize_to<struct_pack::sp_config::DISABLE_ALL_META_INFO>(
                header, std::string_view(in.data(), protocol::RESP_HEAD_LEN));
            if (header.err_code != 0) die("an RPC failed");
            want = protocol::RESP_HEAD_LEN + header.length;
            if (in.size() < want) in.resize(want);
            if (have >= want) return {in.data() + protocol::RESP_HEAD_LEN, header.length};
        }
    }
};

/* --- the load --- */

static Op own;
static std::mt19937_64 chance(getpid());
static uint64_t next_put, done_keys, hits, put_keys, put_tried;
static std::vector<uint32_t> took_us, put_took_us;
static size_t full_length[4]; /* of an answer in which nothing failed */

static void begin(Conn &c, Op op, uint64_t first, uint64_t from_ns) {
    c.op = op;
    c.first = first;
    c.from_ns = from_ns;
    c.busy = true;
    c.send(templates[op].of(first));
}

static void next(Conn &c, uint64_t from_ns) {
    if (own == PUT || (FLAGS_puts > 0 && chance() % 100 < FLAGS_puts))
        begin(c, PUT, (next_put += FLAGS_batch), from_ns);
    else
        begin(c, own,
              FLAGS_keys <= FLAGS_batch ? 0 : chance() % (FLAGS_keys / FLAGS_batch) * FLAGS_batch,
              from_ns);
}

static uint64_t good_of(Op op, std::string_view body, std::vector<bool> *which) {
    if (op != EXISTS && body.size() == full_length[op]) return FLAGS_batch;
    *which = results_of(op, body);
    uint64_t good = (uint64_t)std::count(which->begin(), which->end(), true);
    if (good == FLAGS_batch) full_length[op] = body.size();
    return good;
}

static void answered(Conn &c) {
    std::vector<bool> which;
    uint64_t good = good_of(c.op, c.answer(), &which);
    if (c.op == PUT && good == FLAGS_batch) {
        begin(c, PUT_END, c.first, c.from_ns);
        return;
    }
    if (c.op == PUT && good > 0) { /* those for which there was room */
        std::vector<std::string> some;
        for (uint64_t i = 0; i < FLAGS_batch; i++)
            if (which[i]) some.push_back(key(c.first + i));
        c.op = PUT_END;
        c.send(whole(PUT_END, some));
        return;
    }
    c.busy = false;
    auto took = (uint32_t)((now_ns() - c.from_ns) / 1000);
    if (c.op == PUT || c.op == PUT_END) {
        put_keys += good;
        put_tried += FLAGS_batch;
        put_took_us.push_back(took);
    } else {
        hits += good;
        done_keys += FLAGS_batch;
        took_us.push_back(took);
    }
}

static void mount(Conn &c) {
    for (uint64_t i = 0; i < FLAGS_segments; i++) {
        char name[32];
        snprintf(name, sizeof(name), "segment_%04llu", (unsigned long long)i);
        mooncake::Segment s;
        s.id = mooncake::UUID{i + 1, (uint64_t)getpid()};
        s.name = s.te_endpoint = name;
        s.base = 0x100000000ull + i * FLAGS_segment_size;
        s.size = FLAGS_segment_size;
        c.send(request<&WrappedMasterService::MountSegment>(s, client_id));
        if (!results<&WrappedMasterService::MountSegment>(c.answer())[0]) die("cannot mount");
    }
}

static void fill(Conn &c) {
    for (uint64_t k = 0; k < FLAGS_keys; k += FLAGS_batch)
        for (begin(c, PUT, k, 0); c.busy;) answered(c);
    put_keys = put_tried = 0;
    put_took_us.clear();
}

static void work(std::vector<Conn> &all, Conn &spare) {
    int epoll = epoll_create1(0);
    uint64_t start = now_ns(), end = start + (uint64_t)(FLAGS_seconds * 1e9), ping = start;
    double between = FLAGS_rate > 0 ? 1e9 / FLAGS_rate : 0; /* two calls of all connections */
    for (auto &c : all) {
        epoll_event e{};
        e.events = EPOLLIN;
        e.data.ptr = &c;
        epoll_ctl(epoll, EPOLL_CTL_ADD, c.fd, &e);
        c.due_ns = start + (uint64_t)(between * (double)(&c - all.data()));
    }
    for (uint64_t now = start;; now = now_ns()) {
        if (now - ping > 1000000000u) { /* or the master takes its segments away */
            ping = now;
            spare.send(request<&WrappedMasterService::Ping>(client_id));
            (void)spare.answer();
        }
        bool busy = now < end;
        for (auto &c : all) {
            if (!c.busy && now < end && c.due_ns <= now) {
                next(c, FLAGS_rate > 0 ? c.due_ns : now);
                c.due_ns += (uint64_t)(between * (double)FLAGS_clients);
            }
            busy |= c.busy;
        }
        if (!busy) break;
        epoll_event ready[64];
        int n = epoll_wait(epoll, ready, 64, FLAGS_rate > 0 ? 0 : 100);
        for (int i = 0; i < n; i++) answered(*(Conn *)ready[i].data.ptr);
    }
}

static void print_latency(const char *prefix, std::vector<uint32_t> &us) {
    if (us.empty()) return;
    std::sort(us.begin(), us.end());
    for (auto [name, share] : {std::pair{"p50", .5}, {"p99", .99}, {"p999", .999}})
        printf(", \"%s%s_us\": %u", prefix, name, us[(size_t)((double)us.size() * share)]);
    printf(", \"%smax_us\": %u", prefix, us.back());
}

int main(int argc, char **argv) {
    gflags::ParseCommandLineFlags(&argc, &argv, false);
    own = FLAGS_op == "put" ? PUT : FLAGS_op == "exists" ? EXISTS : GET;
    for (Op op : {PUT, PUT_END, GET, EXISTS}) templates.emplace_back(op);
    next_put = now_ns() / 1000 << 12;
    Conn spare;
    mount(spare);
    if (own != PUT) fill(spare);
    std::vector<Conn> all(FLAGS_clients);
    uint64_t start = now_ns();
    work(all, spare);
    double seconds = (double)(now_ns() - start) / 1e9;
    if (own == PUT) { /* those are the operation */
        done_keys = put_tried;
        hits = put_keys;
        took_us.swap(put_took_us);
    }
    printf("{\"op\": \"%s\", \"keys_done\": %llu, \"hits\": %llu, \"keys_per_s\": %.0f",
           FLAGS_op.c_str(), (unsigned long long)done_keys, (unsigned long long)hits,
           (double)(own == PUT ? hits : done_keys) / seconds);
    printf(", \"requests\": %zu, \"puts_done\": %zu, \"put_keys\": %llu, \"put_failed\": %llu",
           took_us.size() + put_took_us.size(), put_took_us.size(), (unsigned long long)put_keys,
           (unsigned long long)(put_tried - put_keys));
    print_latency("", took_us);
    print_latency("put_", put_took_us);
    puts("}");
    for (auto &c : all) close(c.fd);
    return 0;
}
