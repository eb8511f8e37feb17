/* The symbol is there, but is no data. */
void tarn_module_v1(void) __attribute__((visibility("default")));
void tarn_module_v1(void) {}
