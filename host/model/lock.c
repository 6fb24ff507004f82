#include "model/lock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/log.h"
#include "gr/dtype.h"
#include "model/model.h"

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static size_t bytes_of(const struct gr_ten *w)
{
    return (size_t)(w->batch * w->rows) * gr_row_bytes(w->dtype, (uint64_t)w->cols);
}

/* Calls fn with the pages of each weight that the CPU reads, until it returns an errno; returns
 * that. *bytes: of the weights that it was called with, without the last one of a failure. */
static int each(const struct gr_rank_model *rm, int (*fn)(void *p, size_t n), uint64_t *bytes)
{
    const struct gr_weights *w = &rm->placed;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; w->weight && i < (size_t)(rm->hp.n_layer + 1) * GR_N_SLOT; i++) {
        const struct gr_ten *t = &w->weight[i];
        if (!gr_ten_is(t) || !t->data || gr_weights_device(&rm->placed, rm, i) != 0)
            continue;
        uintptr_t lo = (uintptr_t)t->data & ~(page - 1), hi = (uintptr_t)t->data + bytes_of(t);
        int error = fn((void *)lo, (size_t)(hi - lo));
        if (error)
            return error;
        *bytes += bytes_of(t);
    }
    return 0;
}

static int lock(void *p, size_t n)
{
    return mlock(p, n) ? errno : 0;
}

static int unlock(void *p, size_t n)
{
    (void)munlock(p, n);
    return 0;
}

void gr_weights_lock(const struct gr_rank_model *rm)
{
    uint64_t bytes = 0;
    struct rlimit r = {0};
    char limit[48] = "no limit";
    int error = each(rm, lock, &bytes);
    if (!getrlimit(RLIMIT_MEMLOCK, &r) && r.rlim_cur != RLIM_INFINITY)
        snprintf(limit, sizeof limit, "a limit of %.1f MiB", mib((uint64_t)r.rlim_cur));
    if (error)
        gr_log(GR_LOG_WARN,
               "--mlock: %s after %.1f MiB of weights, with %s; ulimit -l N, in KiB, raises it",
               strerror(error), mib(bytes), limit);
    else
        gr_log(GR_LOG_DEBUG, "--mlock: %.1f MiB of weights are locked in memory", mib(bytes));
}

void gr_weights_unlock(const struct gr_rank_model *rm)
{
    uint64_t bytes = 0;
    (void)each(rm, unlock, &bytes);
}
