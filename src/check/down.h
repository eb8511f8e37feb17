/* A file of the books in the form that tarn 0.1 reads. */
#ifndef TARN_CHECK_DOWN_H
#define TARN_CHECK_DOWN_H

/* Says what it does. The file as it was stays beside it, as PATH.0.2. Returns the exit status. */
int file_down(const char *path);

#endif
