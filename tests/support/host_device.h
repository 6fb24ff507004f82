/* A device whose memory is the host's: allocation, copies, and nothing that computes. */
#ifndef TESTS_SUPPORT_HOST_DEVICE_H
#define TESTS_SUPPORT_HOST_DEVICE_H

#include "gr/backend.h"

extern const struct gr_backend_api host_device_api;

#endif
