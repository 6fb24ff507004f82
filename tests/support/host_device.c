#include "support/host_device.h"

#include <string.h>

#include "base/alloc.h"

static void *host_alloc(struct gr_backend *b, size_t bytes)
{
    (void)b;
    return gr_calloc(bytes, 1);
}

static void host_free(struct gr_backend *b, void *p)
{
    (void)b;
    gr_free(p);
}

static int host_copy(struct gr_backend *b, void *dst, const void *src, size_t bytes)
{
    (void)b;
    memcpy(dst, src, bytes);
    return 0;
}

static int host_sync(struct gr_backend *b)
{
    (void)b;
    return 0;
}

const struct gr_backend_api host_device_api = {
    .alloc = host_alloc,
    .free = host_free,
    .upload = host_copy,
    .download = host_copy,
    .sync = host_sync,
};
