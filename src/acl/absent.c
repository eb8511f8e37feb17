/* Commands of Redis 7.0 that are not there: other data types, bits, scripts, a cluster. Rules may
 * name them all the same, so that an ACL file of Redis is read as it is; they have no effect unless
 * a module brings a command of that name. */
#include <string.h>
#include <strings.h>

#include "acl/internal.h"

/* Between spaces. */
static const char names[] =
    "asking bitcount bitfield bitfield_ro bitop bitpos blmove blmpop blpop brpop brpoplpush "
    "bzmpop bzpopmax bzpopmin cluster|addslots cluster|addslotsrange cluster|bumpepoch "
    "cluster|count-failure-reports cluster|countkeysinslot cluster|delslots cluster|delslotsrange "
    "cluster|failover cluster|flushslots cluster|forget cluster|getkeysinslot cluster|keyslot "
    "cluster|links cluster|meet cluster|replicas cluster|replicate cluster|reset "
    "cluster|saveconfig cluster|set-config-epoch cluster|setslot cluster|slaves dump eval eval_ro "
    "evalsha evalsha_ro fcall fcall_ro function|delete function|dump function|kill function|list "
    "function|load function|restore function|stats geoadd geodist geohash geopos georadius "
    "georadius_ro georadiusbymember georadiusbymember_ro geosearch geosearchstore getbit hdel "
    "hexists hget hgetall hincrby hincrbyfloat hkeys hlen hmget hmset hrandfield hscan hset "
    "hsetnx hstrlen hvals lcs lindex linsert llen lmove lmpop lpop lpos lpush lpushx lrange lrem "
    "lset ltrim migrate move pfadd pfcount pfdebug pfmerge pfselftest readonly readwrite restore "
    "restore-asking rpop rpoplpush rpush rpushx sadd scard script|debug script|load sdiff "
    "sdiffstore sentinel sentinel|ckquorum sentinel|config sentinel|debug sentinel|failover "
    "sentinel|flushconfig sentinel|get-master-addr-by-name sentinel|help sentinel|info-cache "
    "sentinel|is-master-down-by-addr sentinel|master sentinel|masters sentinel|monitor "
    "sentinel|myid sentinel|pending-scripts sentinel|remove sentinel|replicas sentinel|reset "
    "sentinel|sentinels sentinel|set sentinel|simulate-failure sentinel|slaves setbit sinter "
    "sintercard sinterstore sismember smembers smismember smove sort sort_ro spop srandmember "
    "srem sscan sunion sunionstore swapdb sync xack xadd xautoclaim xclaim xdel xgroup "
    "xgroup|create xgroup|createconsumer xgroup|delconsumer xgroup|destroy xgroup|help "
    "xgroup|setid xinfo xinfo|consumers xinfo|groups xinfo|help xinfo|stream xlen xpending xrange "
    "xread xreadgroup xrevrange xsetid xtrim zadd zcard zcount zdiff zdiffstore zincrby zinter "
    "zintercard zinterstore zlexcount zmpop zmscore zpopmax zpopmin zrandmember zrange "
    "zrangebylex zrangebyscore zrangestore zrank zrem zremrangebylex zremrangebyrank "
    "zremrangebyscore zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan zscore zunion "
    "zunionstore";

/* The next of them, from *at_p on; empty: there are no more. */
static struct span absent_next(const char **at_p) {
    struct span word = {*at_p, strcspn(*at_p, " ")};
    *at_p += word.len + strspn(*at_p + word.len, " ");
    return word;
}

bool acl_absent(struct span name) {
    const char *at = names;
    for (struct span word; (word = absent_next(&at)).len > 0;)
        if (word.len == name.len && strncasecmp(word.data, name.data, name.len) == 0) return true;
    return false;
}

bool acl_absent_container(struct span name) {
    const char *at = names;
    for (struct span word; (word = absent_next(&at)).len > 0;)
        if (word.len > name.len && word.data[name.len] == '|' &&
            strncasecmp(word.data, name.data, name.len) == 0)
            return true;
    return false;
}
