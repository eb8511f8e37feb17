/* tarn_status, for the rooms. See ../tarn_status.h. */
#ifndef TARN_BASE_STATUS_H
#define TARN_BASE_STATUS_H
#include "../tarn_status.h"
#endif
