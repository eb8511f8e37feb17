#!/bin/sh
# The tests of one topic: run.sh TOPIC. A topic is a file beside this one; it has `t NAME
# COMMAND...` lines. Each prints `ok NAME`, `not ok NAME: why` or `skip NAME: why`; the last line
# says that the topic came to its end.
cd /tests
. ./lib.sh
. ./wire.sh
failed=0
t wire wire_up
if [ "$failed" = 0 ]; then . "./$1.sh"; fi
stop_all
echo "end of $1"
[ "$failed" = 0 ]
