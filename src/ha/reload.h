/* DEBUG RELOAD and LOADAOF. */
#ifndef TARN_HA_RELOAD_H
#define TARN_HA_RELOAD_H

struct client;
void debug_reload(struct client *c);
void debug_loadaof(struct client *c);
/* At the end of a turn, when nobody on the stack holds anything of the books. */
void reload_settle(void);

#endif
