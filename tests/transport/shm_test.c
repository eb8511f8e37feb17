/* The suite over shm. */
#define SUITE "shm"
#include "suite.h"

TEST_MAIN()
