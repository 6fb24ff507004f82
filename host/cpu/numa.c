/* NUMA placement of weights: each node gets the rows that its threads take first
 * (gr_cpu_take_near). These threads read the rows once, which allocates absent pages on their node,
 * and move the others by move_pages(2), which does not split the process's mappings as mbind(2)
 * would. */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/log.h"
#include "cpu/pools.h"

/* Pages per system call; smallest matrix worth moving, in bytes. */
#define PAGES 512
#define LEAST 65536
#define MOVE_OWN 2 /* MPOL_MF_MOVE of linux/mempolicy.h: only pages that no other process maps */

struct job {
    const struct gr_cpu_pools *pools;
    const struct gr_ten *w;
    size_t page;
    _Atomic int refused; /* errno */
};

static void move(struct job *j, uintptr_t lo, uintptr_t hi, int node)
{
    void *at[PAGES];
    int to[PAGES], status[PAGES], n = 0;
    volatile const char *byte;
    for (uintptr_t p = lo & ~(j->page - 1); p < hi && !j->refused; p += j->page) {
        byte = (const char *)GR_MAX(p, lo); /* touch: allocates the page */
        (void)*byte;
        at[n] = (void *)p, to[n++] = node;
        if (n < PAGES && p + j->page < hi)
            continue;
        if (syscall(SYS_move_pages, 0, (unsigned long)n, at, to, status, MOVE_OWN) < 0)
            j->refused = errno;
        n = 0;
    }
}

/* Moves this thread's share of its node's rows of each matrix. A page on a boundary belongs to the
 * rows that begin in it. */
static void move_share(void *arg, int i, int n)
{
    struct job *j = arg;
    const struct gr_pinning *s = j->pools->homes;
    int node = s->node[i], mine = 0, of = 1; /* threads of the node: before this one, all */
    for (int k = 0; k < n; k++) {
        mine += k < i && s->node[k] == node;
        of += k != i && s->node[k] == node;
    }
    int64_t rows = j->w->rows, lo = gr_pinning_first_row(s, rows, node),
            some = gr_pinning_first_row(s, rows, node + 1) - lo;
    int64_t first = lo + some * mine / of, end = lo + some * (mine + 1) / of;
    for (int64_t e = 0; e < j->w->batch && first < end; e++) {
        uintptr_t from = (uintptr_t)gr_ten_row(j->w, e, first);
        uintptr_t to = (uintptr_t)gr_ten_row(j->w, e, end - 1) +
                       gr_row_bytes(j->w->dtype, (uint64_t)j->w->cols);
        move(j, from, end == rows ? to : to & ~(j->page - 1), s->memory[node]);
    }
}

void gr_cpu_pools_numa_move(struct gr_cpu_pools *p, const struct gr_ten *w)
{
    struct job j = {.pools = p, .w = w, .page = (size_t)sysconf(_SC_PAGESIZE)};
    if (!p->homes || p->stays || !gr_ten_is(w) || !w->data || w->rows < 2 ||
        (size_t)(w->batch * w->rows * w->row_bytes) < LEAST)
        return;
    gr_threads_run(p->decode.threads, p->homes->n, move_share, &j);
    if (!j.refused)
        return;
    p->stays = true;
    gr_log(GR_LOG_WARN, "--numa: weights cannot be moved (%s) and stay where they are%s",
           strerror(j.refused),
           j.refused == EPERM || j.refused == ENOSYS
               ? "; a container must allow move_pages, with docker --cap-add SYS_NICE"
               : "");
}
