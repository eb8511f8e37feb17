/* The connection itself. */

COMMAND(ping, "PING", F, "Answers.", CONNECTION("1.0.0"), TAKES(MAYBE(WORD, "message")),
        REPLY("PONG, or the message"))
COMMAND(echo, "ECHO", L | F, "Answers with the message.", CONNECTION("1.0.0"),
        TAKES(ARG(WORD, "message")), REPLY("the message"))
COMMAND(auth, "AUTH", EARLY | CMD_NO_AUTH, "Shows the password.", CONNECTION("1.0.0"),
        TAKES(MAYBE(WORD, "username"), ARG(WORD, "password")), REPLY("OK"), ERRORS("WRONGPASS"))
COMMAND(hello, "HELLO", EARLY | CMD_NO_AUTH, "Chooses the protocol, and tells who is there.",
        CONNECTION("6.0.0"),
        TAKES(MAYBE(BLOCK, NULL,
                    OF(ARG(NUMBER, "protover", IN(hello, proto),
                           ELSE("Protocol version is not an integer or out of range")),
                       MAYBE(BLOCK, NULL,
                             OF(NAMED("AUTH", WORD, "username", IN(hello, user)),
                                ARG(WORD, "password", IN(hello, password)))),
                       OPTION("SETNAME", WORD, "clientname", IN(hello, name))))),
        UNKNOWN("Syntax error in HELLO option '*'"),
        REPLY("a map of server, version, proto, id, mode, role and modules"),
        ERRORS("NOAUTH NOPROTO WRONGPASS"))
COMMAND(select, "SELECT", L | F, "Chooses a number below databases; all name the one keyspace.",
        CONNECTION("1.0.0"), TAKES(ARG(NUMBER, "index")), REPLY("OK"))
COMMAND(quit, "QUIT", EARLY | CMD_NO_AUTH, "Closes the connection.", CONNECTION("1.0.0"),
        TAKES(WORDS), REPLY("OK"))
COMMAND(reset, "RESET", EARLY | CMD_NO_AUTH, "Makes the connection as new.", CONNECTION("6.2.0"),
        REPLY("RESET"))
CONTAINER(client, "CLIENT", "Looks at connections and changes them.",
          GROUP(NULL, "connection", "2.4.0"))
COMMAND(client_id, "CLIENT|ID", N, "Tells the number of this connection.", CONNECTION("5.0.0"),
        REPLY("the number"))
COMMAND(client_info, "CLIENT|INFO", N, "Describes this connection.", CONNECTION("6.2.0"),
        REPLY("a line of text"))
COMMAND(client_list, "CLIENT|LIST", A, "Describes all connections.", CONNECTION("2.4.0"),
        TAKES(ANY_OF(CLIENT_TYPE, NAMED("ID", VALUES, "client-id", MANY, IN(clients, ids)))),
        EACH_ONCE, REPLY("lines of text"))
COMMAND(client_kill, "CLIENT|KILL", A, "Closes connections.", CONNECTION("2.4.0"),
        TAKES(ONE_OF(ARG(WORD, "ip:port", IN(clients, alone)),
                     ARG(ONEOF, NULL,
                         OF(NAMED("ID", NUMBER, "client-id", RANGE(1, INT64_MAX), IN(clients, id),
                                  ELSE("client-id should be greater than 0")),
                            CLIENT_TYPE, NAMED("USER", WORD, "username", IN(clients, user)),
                            NAMED("ADDR", WORD, "ip:port", IN(clients, addr)),
                            NAMED("LADDR", WORD, "ip:port", IN(clients, laddr)),
                            NAMED("SKIPME", ONEOF, NULL, OF(TOKEN("YES"), TOKEN("NO")),
                                  IN(clients, me))),
                         MANY))),
        REPLY("how many; with an address alone OK"))
COMMAND(client_near, "CLIENT|NEAR", N | CMD_NO_MULTI,
        "Names a unix socket at which this connection goes on, if it comes from this machine.",
        CONNECTION("0.2.0"), TAKES(ARG(WORD, "ip:port"), ARG(WORD, "server-ip:port")),
        REPLY("an array of two names in the abstract namespace, and a word"), ERRORS("LIMIT"))
COMMAND(client_getname, "CLIENT|GETNAME", N, "Tells the name of this connection.",
        CONNECTION("2.6.9"), REPLY("the name; nil: none"))
COMMAND(client_setname, "CLIENT|SETNAME", N, "Names this connection.", CONNECTION("2.6.9"),
        TAKES(ARG(WORD, "connection-name")), REPLY("OK"))
COMMAND(client_setinfo, "CLIENT|SETINFO", N, "Tells about this client: library, version, host.",
        CONNECTION("7.2.0"),
        TAKES(ONE_OF(NAMED("LIB-NAME", WORD, "libname"), NAMED("LIB-VER", WORD, "libver"),
                     NAMED("TARN-HOST", WORD, "hostname"), NAMED("TARN-RACK", WORD, "label"),
                     NAMED("TARN-NODE", WORD, "node"), NAMED("TARN-MAP", WORD, "epoch"),
                     NAMED("TARN-TRACEPARENT", WORD, "traceparent"))),
        REPLY("OK"))
COMMAND(client_pause, "CLIENT|PAUSE", A, "Holds the commands of all clients back for a time.",
        CONNECTION("3.0.0"),
        TAKES(ARG(NUMBER, "timeout", RANGE(0, INT64_C(1) << 50), IN(choice, number),
                  ELSE("timeout is not an integer or out of range")),
              ANY_OF_IN(choice, which, TOKEN("WRITE"), TOKEN("ALL"))),
        UNKNOWN("CLIENT PAUSE mode must be WRITE or ALL"), EACH_ONCE, REPLY("OK"))
COMMAND(client_unpause, "CLIENT|UNPAUSE", A, "Ends a pause.", CONNECTION("6.2.0"), REPLY("OK"))
COMMAND(client_reply, "CLIENT|REPLY", N | CMD_NO_MULTI, "Says whether this client wants replies.",
        CONNECTION("3.2.0"),
        TAKES(ONE_OF_IN(choice, which, TOKEN("ON"), TOKEN("OFF"), TOKEN("SKIP"))),
        REPLY("OK of ON; none of OFF and SKIP"))
COMMAND(client_no_evict, "CLIENT|NO-EVICT", A,
        "Keeps this connection where others would be closed for room.", CONNECTION("7.0.0"),
        TAKES(ONE_OF_IN(choice, which, TOKEN("ON"), TOKEN("OFF"))), REPLY("OK"))
COMMAND(client_no_touch, "CLIENT|NO-TOUCH", N,
        "Accepted; reads by this client count as accesses all the same.", CONNECTION("7.2.0"),
        TAKES(ONE_OF_IN(choice, which, TOKEN("ON"), TOKEN("OFF"))), REPLY("OK"))
COMMAND(client_getredir, "CLIENT|GETREDIR", N,
        "Tells that messages of tracking go to this connection (0), or that it is off (-1).",
        CONNECTION("6.0.0"), REPLY("0 or -1"))
COMMAND(client_tracking, "CLIENT|TRACKING", N,
        "Says whether this connection hears of changes to keys that it has read.",
        CONNECTION("6.0.0"), TAKES(ONE_OF(TOKEN("ON"), TOKEN("OFF")), WORDS), REPLY("OK"))
COMMAND(client_trackinginfo, "CLIENT|TRACKINGINFO", N, "Tells whether tracking is on.",
        CONNECTION("6.2.0"), REPLY("a map of flags, redirect and prefixes"))
COMMAND(client_caching, "CLIENT|CACHING", N, "Refused: there is neither OPTIN nor OPTOUT.",
        CONNECTION("6.0.0"), TAKES(ONE_OF(TOKEN("YES"), TOKEN("NO"))), REPLY("an error"))
COMMAND(client_unblock, "CLIENT|UNBLOCK", A, "Ends the wait of another connection.",
        CONNECTION("5.0.0"),
        TAKES(ARG(NUMBER, "client-id", IN(choice, number)),
              ANY_OF_IN(choice, which, TOKEN("TIMEOUT"), TOKEN("ERROR"))),
        UNKNOWN("CLIENT UNBLOCK reason should be TIMEOUT or ERROR"), EACH_ONCE,
        REPLY("1; 0: it does not wait"))
HELP(client_help, "CLIENT|HELP", CONNECTION("5.0.0"))
