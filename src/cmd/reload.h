/* DEBUG RELOAD and LOADAOF. */
#ifndef TARN_CMD_RELOAD_H
#define TARN_CMD_RELOAD_H

/* At the end of a turn, when nobody on the stack holds anything of the books. */
void reload_settle(void);

#endif
