/* A shared object, and no module. */
int nosymbol_answer(void) __attribute__((visibility("default")));
int nosymbol_answer(void) {
    return 42;
}
