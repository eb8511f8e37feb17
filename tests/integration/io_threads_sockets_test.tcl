# Peers that do not read, half close or vanish, where threads move their values (io-threads).
source [file join [file dirname [info script]] harness.tcl]
set more_options {--io-threads 3 --io-threads-do-reads yes}
source [file join [file dirname [info script]] robust_sockets_test.tcl]
