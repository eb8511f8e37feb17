/* The suite over tcp. */
#define SUITE "tcp"
#include "suite.h"

TEST_MAIN()
