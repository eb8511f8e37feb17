/* The suite over a transport that no file of src/ knows. */
#define SUITE "pipe"
#include "suite.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"
#include "../modules/pipe.c"

int main(int argc, char **argv) {
    if (transport_register(&pipe_transport) != TARN_OK) return 1;
    return test_main(argc, argv);
}
