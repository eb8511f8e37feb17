/* What ThreadSanitizer cannot see. Data threads move bytes of the pool for connections that know
 * nothing of each other. Who may touch which extent when is agreed between processes, by grants and
 * leases, and a reader that comes too late finds out by epoch, lease and CRC: it would see only
 * threads of one host and an address, and its list of such addresses makes a host stand still for
 * minutes. Between these two, which nest, it looks at no access of this thread. */
#ifndef TARN_BASE_TSAN_H
#define TARN_BASE_TSAN_H

#ifdef __SANITIZE_THREAD__
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
#define TSAN_POOL_BEGIN()                                                                          \
    (AnnotateIgnoreReadsBegin(__FILE__, __LINE__), AnnotateIgnoreWritesBegin(__FILE__, __LINE__))
#define TSAN_POOL_END()                                                                            \
    (AnnotateIgnoreWritesEnd(__FILE__, __LINE__), AnnotateIgnoreReadsEnd(__FILE__, __LINE__))
#else
#define TSAN_POOL_BEGIN() ((void)0)
#define TSAN_POOL_END()   ((void)0)
#endif

#endif
