/* The functions behind the command table, and how a large argument reaches the pool.
 *
 * One function per command; it finds its arguments in c->argv and answers exactly once, or starts a
 * job that does. The table has checked arity, authentication and the like before. */
#ifndef TARN_CMD_FAMILIES_H
#define TARN_CMD_FAMILIES_H

#include <sys/uio.h>
#include "cmd/cmd.h"

/* --- puts, look-ups (cmd_put.c, cmd_get.c) --- */

void cmd_putstart(struct client *c);
void cmd_putend(struct client *c);
void cmd_putrevoke(struct client *c);
void cmd_mputstart(struct client *c);
void cmd_mputend(struct client *c);
void cmd_mputrevoke(struct client *c);
void cmd_getreplicas(struct client *c);
void cmd_mgetreplicas(struct client *c);
void cmd_release(struct client *c);
void cmd_exists(struct client *c);
void cmd_mexists(struct client *c);
void cmd_prefixlen(struct client *c);

/* --- removal, pins, quotas (cmd_evict.c) --- */

void cmd_evict(struct client *c);
void cmd_del(struct client *c);
void cmd_removematch(struct client *c);
void cmd_pin(struct client *c);
void cmd_pinhard(struct client *c);
void cmd_kvevents_read(struct client *c);
void cmd_kvevents_walk(struct client *c);
void cmd_kvevents_info(struct client *c);
void cmd_kvevents_read(struct client *c);
void cmd_kvevents_walk(struct client *c);
void cmd_kvevents_info(struct client *c);
void cmd_quota_set(struct client *c);
void cmd_quota_get(struct client *c);
void cmd_quota_list(struct client *c);
void cmd_quota_del(struct client *c);

/* --- the pool of many machines (cmd_segment.c, cmd_node.c, cmd_node_work.c, cmd_replica.c,
 * cmd_report.c) --- */

void cmd_segment_mount(struct client *c);
void cmd_segment_keys(struct client *c);
void cmd_segment_unmount(struct client *c);
void cmd_segment_list(struct client *c);
void cmd_segment_attach(struct client *c);
void cmd_segment_info(struct client *c);
void cmd_segment_drain(struct client *c);
void cmd_node_join(struct client *c);
void cmd_node_up(struct client *c);
void cmd_node_list(struct client *c);
void cmd_node_info(struct client *c);
void cmd_node_drain(struct client *c);
void cmd_node_maintenance(struct client *c);
void cmd_node_leave(struct client *c);
void cmd_node_heartbeat(struct client *c);
void cmd_node_fenced(struct client *c);
void cmd_node_done(struct client *c);
void cmd_node_evicted(struct client *c);
void cmd_node_offer(struct client *c);
void cmd_replica_copy(struct client *c);
void cmd_replica_move(struct client *c);
void cmd_replica_drop(struct client *c);
void cmd_replica_tasks(struct client *c);
void cmd_replica_cancel(struct client *c);
void cmd_replica_list(struct client *c);
void cmd_replica_report(struct client *c);

/* --- in-band values (cmd_string*.c) --- */

void cmd_get(struct client *c);
void cmd_set(struct client *c);
void cmd_mget(struct client *c);
void cmd_mset(struct client *c);
void cmd_msetnx(struct client *c);
void cmd_setnx(struct client *c);
void cmd_setex(struct client *c);
void cmd_psetex(struct client *c);
void cmd_getset(struct client *c);
void cmd_getdel(struct client *c);
void cmd_getex(struct client *c);
void cmd_getrange(struct client *c);
void cmd_substr(struct client *c);
void cmd_setrange(struct client *c);
void cmd_strlen(struct client *c);
void cmd_append(struct client *c);
void cmd_incr(struct client *c);
void cmd_decr(struct client *c);
void cmd_incrby(struct client *c);
void cmd_decrby(struct client *c);
void cmd_incrbyfloat(struct client *c);

/* --- keys (cmd_key.c, cmd_copy.c, cmd_scan.c) --- */

void cmd_ttl(struct client *c);
void cmd_pttl(struct client *c);
void cmd_expire(struct client *c);
void cmd_pexpire(struct client *c);
void cmd_expireat(struct client *c);
void cmd_pexpireat(struct client *c);
void cmd_expiretime(struct client *c);
void cmd_pexpiretime(struct client *c);
void cmd_persist(struct client *c);
void cmd_copy(struct client *c);
void cmd_rename(struct client *c);
void cmd_renamenx(struct client *c);
void cmd_type(struct client *c);
void cmd_touch(struct client *c);
void cmd_keys(struct client *c);
void cmd_scan(struct client *c);
void cmd_randomkey(struct client *c);
void cmd_dbsize(struct client *c);
void cmd_flushall(struct client *c);
void cmd_flushdb(struct client *c);
void cmd_object_encoding(struct client *c);
void cmd_object_freq(struct client *c);
void cmd_object_idletime(struct client *c);
void cmd_object_refcount(struct client *c);
void cmd_memory_usage(struct client *c);

/* --- connection (cmd_connection.c, cmd_client.c) --- */

void cmd_ping(struct client *c);
void cmd_echo(struct client *c);
void cmd_auth(struct client *c);
void cmd_hello(struct client *c);
void cmd_select(struct client *c);
void cmd_quit(struct client *c);
void cmd_reset(struct client *c);
void cmd_client_list(struct client *c);
void cmd_client_info(struct client *c);
void cmd_client_id(struct client *c);
void cmd_client_setname(struct client *c);
void cmd_client_getname(struct client *c);
void cmd_client_setinfo(struct client *c);
void cmd_client_kill(struct client *c);
void cmd_client_pause(struct client *c);
void cmd_client_unpause(struct client *c);
void cmd_client_reply(struct client *c);
void cmd_client_no_evict(struct client *c);
void cmd_client_no_touch(struct client *c);
void cmd_client_getredir(struct client *c);
void cmd_client_tracking(struct client *c);
void cmd_client_trackinginfo(struct client *c);
void cmd_client_caching(struct client *c);
void cmd_client_unblock(struct client *c);

/* --- transactions, messages (cmd_multi.c, cmd_pubsub.c) --- */

void cmd_multi(struct client *c);
void cmd_exec(struct client *c);
void cmd_discard(struct client *c);
void cmd_watch(struct client *c);
void cmd_unwatch(struct client *c);
void cmd_subscribe(struct client *c);
void cmd_unsubscribe(struct client *c);
void cmd_psubscribe(struct client *c);
void cmd_punsubscribe(struct client *c);
void cmd_ssubscribe(struct client *c);
void cmd_sunsubscribe(struct client *c);
void cmd_publish(struct client *c);
void cmd_spublish(struct client *c);
void cmd_pubsub_channels(struct client *c);
void cmd_pubsub_shardchannels(struct client *c);
void cmd_pubsub_numsub(struct client *c);
void cmd_pubsub_shardnumsub(struct client *c);
void cmd_pubsub_numpat(struct client *c);

/* --- server (cmd_server.c, cmd_info.c, cmd_config.c, cmd_command.c, cmd_slowlog.c, cmd_memory.c)
 * --- */

void cmd_help(struct client *c); /* of any container */
void cmd_info(struct client *c);
void cmd_config_get(struct client *c);
void cmd_config_set(struct client *c);
void cmd_config_rewrite(struct client *c);
void cmd_config_resetstat(struct client *c);
void cmd_command(struct client *c);
void cmd_command_count(struct client *c);
void cmd_command_list(struct client *c);
void cmd_command_info(struct client *c);
void cmd_command_docs(struct client *c);
void cmd_command_getkeys(struct client *c);
void cmd_command_getkeysandflags(struct client *c);
void cmd_monitor(struct client *c);
void cmd_slowlog_get(struct client *c);
void cmd_slowlog_len(struct client *c);
void cmd_slowlog_reset(struct client *c);
void cmd_latency_history(struct client *c);
void cmd_latency_latest(struct client *c);
void cmd_latency_reset(struct client *c);
void cmd_latency_graph(struct client *c);
void cmd_latency_doctor(struct client *c);
void cmd_latency_histogram(struct client *c);
void cmd_memory_stats(struct client *c);
void cmd_memory_doctor(struct client *c);
void cmd_memory_malloc_stats(struct client *c);
void cmd_memory_purge(struct client *c);
void cmd_shutdown(struct client *c);
void cmd_save(struct client *c);
void cmd_bgsave(struct client *c);
void cmd_bgrewriteaof(struct client *c);
void cmd_lastsave(struct client *c);
void cmd_debug(struct client *c);
void cmd_time(struct client *c);
void cmd_lolwut(struct client *c);
void cmd_role(struct client *c);
void cmd_replicaof(struct client *c);
void cmd_failover(struct client *c);
void cmd_psync(struct client *c);
void cmd_replconf(struct client *c);
void cmd_wait(struct client *c);
void cmd_acl_whoami(struct client *c);
void cmd_acl_setuser(struct client *c);
void cmd_acl_getuser(struct client *c);
void cmd_acl_deluser(struct client *c);
void cmd_acl_list(struct client *c);
void cmd_acl_users(struct client *c);
void cmd_acl_cat(struct client *c);
void cmd_acl_genpass(struct client *c);
void cmd_acl_log(struct client *c);
void cmd_acl_load(struct client *c);
void cmd_acl_save(struct client *c);
void cmd_acl_dryrun(struct client *c);
void cmd_cluster_off(struct client *c);
void cmd_script_kill(struct client *c);
void cmd_script_exists(struct client *c);
void cmd_module_list(struct client *c);
void cmd_module_load(struct client *c);
void cmd_module_loadex(struct client *c);
void cmd_module_unload(struct client *c);
void cmd_function_flush(struct client *c);

#endif
