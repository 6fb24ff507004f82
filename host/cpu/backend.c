/* The CPU backend: memory, the choice of implementations, and the runs of segments. */
#ifdef GR_HAS_LEVEL_avx2
#include <cpuid.h>
#endif
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "cpu/cpu.h"
#include "cpu/impl/impl.h"
#include "cpu/pools.h"
#include "gr/status.h"
#include "quant/quant.h"

#define ALIGN 256

struct cpu {
    struct gr_backend base;
    enum gr_cpu_level level;
    struct gr_cpu_pools pools;
    const _Atomic int *cancel;
    void (*progress)(int32_t n_node, void *user);
    void *progress_user;
    gr_time_fn *timer;
    void *timer_user;
    void *shared, *local; /* scratch for every segment made; local: a piece for each thread */
    size_t shared_bytes, local_bytes;
};

/* A prepared segment. */
struct exec {
    struct gr_node *node;
    const struct gr_cpu_impl **impl; /* [n_node] */
    int n_node;
    struct gr_tap *tap;
    int n_tap;
    const struct gr_cpu_pool *pool;
};

static struct cpu *cpu_of(struct gr_backend *b)
{
    return (struct cpu *)(void *)b;
}

/* ---- memory ---- */

/* Blocks of this size have a mapping of their own, so that madvise affects nothing else. */
#define HUGE_LEAST ((size_t)32 << 20)

static void *cpu_alloc(struct gr_backend *b, size_t bytes)
{
    size_t total;
    (void)b;
    if (!gr_add(&total, bytes, (size_t)ALIGN))
        return gr_fail(GR_E_NOMEM_HOST, "out of host memory: %zu bytes asked for", bytes), NULL;
    char *block = gr_calloc(total, 1); /* aligned to 64: its address fits in the gap in front */
    if (!block)
        return NULL;
    if (total > HUGE_LEAST)
        gr_alloc_huge(block, total);
    char *p = block + ALIGN - (uintptr_t)block % ALIGN;
    memcpy(p - sizeof block, &block, sizeof block);
    return p;
}

static void cpu_free(struct gr_backend *b, void *p)
{
    char *block = NULL;
    (void)b;
    if (p)
        memcpy(&block, (char *)p - sizeof block, sizeof block);
    gr_free(block);
}

static int cpu_copy(struct gr_backend *b, void *dst, const void *src, size_t bytes)
{
    (void)b;
    memcpy(dst, src, bytes);
    return 0;
}

static int cpu_clear(struct gr_backend *b, void *dst, size_t bytes)
{
    (void)b;
    memset(dst, 0, bytes);
    return 0;
}

/* Nothing is ever queued: there is nothing to wait for. */
static int cpu_sync(struct gr_backend *b)
{
    (void)b;
    return 0;
}

/* ---- weights ---- */

static int cpu_can_borrow(struct gr_backend *b)
{
    (void)b;
    return 1;
}

static size_t cpu_weight_bytes(struct gr_backend *b, const struct gr_ten *host, bool matrix)
{
    (void)b, (void)matrix;
    return GR_PAD((size_t)(host->batch * host->rows) *
                      gr_row_bytes(host->dtype, (uint64_t)host->cols),
                  (size_t)ALIGN);
}

/* Copies rows without gaps. Nothing beyond the last row is read: it may be the end of a file. */
static int cpu_weight_upload(struct gr_backend *b, const struct gr_ten *host, bool matrix,
                             void *dst, struct gr_ten *out)
{
    size_t row = gr_row_bytes(host->dtype, (uint64_t)host->cols);
    (void)b, (void)matrix;
    *out = *host;
    out->data = dst;
    out->row_bytes = (int64_t)row;
    for (int64_t r = 0; dst && r < host->batch * host->rows; r++)
        memcpy((char *)dst + (size_t)r * row, gr_ten_row(host, 0, r), row);
    return 0;
}

/* ---- levels ---- */

static const char *const level_name[GR_CPU_N_LEVEL] = {"auto", "ref", "avx2", "avx512", "amx"};

const char *gr_cpu_level_name(enum gr_cpu_level level)
{
    return level_name[level];
}

#ifdef GR_HAS_LEVEL_avx2
static bool has_avx2(void)
{
    unsigned a, b, c, d;
    /* gcc 12 has no name for F16C in __builtin_cpu_supports. Support of the registers by the
     * operating system is covered by AVX2. */
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
    return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

bool gr_cpu_has(enum gr_cpu_level level)
{
    switch (level) {
    case GR_CPU_AUTO:
    case GR_CPU_REF:
        return true;
#ifdef GR_HAS_LEVEL_avx2
    case GR_CPU_AVX2:
        return has_avx2();
    case GR_CPU_AVX512:
        return has_avx512();
#endif
#ifdef GR_HAS_LEVEL_amx
    case GR_CPU_AMX:
        return has_avx512() && gr_amx_usable();
#endif
    default:
        return false;
    }
}

static enum gr_cpu_level best_level(void)
{
    enum gr_cpu_level level = GR_CPU_N_LEVEL - 1;
    while (!gr_cpu_has(level))
        level--;
    return level;
}

/* Resolves GR_CPU_AUTO to the best level available. */
static int settle_level(enum gr_cpu_level *level)
{
    const enum gr_cpu_level best = best_level();
    if (!gr_cpu_has(*level))
        return gr_fail(GR_E_INVALID,
                       "CPU level %s: this processor, system or build lacks its instructions; the "
                       "best here is %s",
                       level_name[*level], level_name[best]);
    *level = *level == GR_CPU_AUTO ? best : *level;
    return 0;
}

int gr_cpu_level_find(enum gr_cpu_level *out, const char *name)
{
    *out = GR_CPU_AUTO;
    while (name && *out < GR_CPU_N_LEVEL && strcmp(name, level_name[*out]) != 0)
        ++*out;
    if (*out < GR_CPU_N_LEVEL)
        return settle_level(out);
    *out = GR_CPU_AUTO;
    return gr_fail(GR_E_INVALID, "CPU level %s: auto, ref, avx2, avx512 or amx expected",
                   gr_quote(name, strlen(name)));
}

static const struct gr_cpu_impl *const reference[GR_N_OP] = {
#define OP(NAME, args, operands, meaning) &gr_ref_##args,
#define BETWEEN(NAME, args, operands, meaning)
#include "gr/op.def"
#undef OP
};

#ifdef GR_HAS_LEVEL_avx2
extern const struct gr_cpu_impl *const gr_avx2_table[GR_N_OP], *const gr_avx512_table[GR_N_OP];
#endif
#ifdef GR_HAS_LEVEL_amx
extern const struct gr_cpu_impl *const gr_amx_table[GR_N_OP]; /* matrix products; other operations
                                                                 use the AVX-512 table */
#endif

double gr_cpu_prompt_ops(const struct gr_backend *b)
{
    static const double ops[GR_CPU_N_LEVEL] = {
        [GR_CPU_REF] = 1e9, [GR_CPU_AVX2] = 90e9, [GR_CPU_AVX512] = 250e9, [GR_CPU_AMX] = 750e9};
    const struct cpu *c = (const void *)b;
    return ops[c->level] * c->pools.batch.n;
}

static const struct gr_cpu_impl *fast_of(enum gr_cpu_level level, enum gr_op op)
{
    (void)op;
    switch (level) {
#ifdef GR_HAS_LEVEL_avx2
    case GR_CPU_AVX2:
        return gr_avx2_table[op];
    case GR_CPU_AVX512:
        return gr_avx512_table[op];
#endif
#ifdef GR_HAS_LEVEL_amx
    case GR_CPU_AMX:
        return gr_amx_table[op] ? gr_amx_table[op] : gr_avx512_table[op];
#endif
    default:
        return NULL;
    }
}

static const struct gr_cpu_impl *choose(const struct cpu *c, const struct gr_node *n)
{
    const struct gr_cpu_impl *fast = fast_of(c->level, n->op);
    return fast && (!fast->takes || fast->takes(n)) ? fast : reference[n->op];
}

/* ---- segments ---- */

static int check_node(const struct gr_node *node)
{
    const struct gr_op_info *op = gr_op_info(node->op);
    for (const struct gr_operand *o = op->operands; o->role; o++) {
        const struct gr_ten *t = (const void *)((const char *)&node->a + o->offset);
        const char *type = gr_dtype_name(t->dtype);
        if (!gr_ten_is(t))
            continue;
        if (!t->data)
            return gr_fail(GR_E_INTERNAL, "%s, layer %d: %s has no memory", op->name, node->layer,
                           o->name);
        if (t->dtype != GR_I32 && t->dtype != GR_F64 && !gr_quant_find(t->dtype))
            return gr_fail(
                GR_E_UNSUPPORTED,
                "%s, layer %d: %s is stored as %s, which the CPU backend cannot compute with; "
                "convert it to another type",
                op->name, node->layer, o->name, type);
        if (!gr_row_bytes(t->dtype, (uint64_t)t->cols))
            return gr_fail(GR_E_UNSUPPORTED,
                           "%s, layer %d: %s has rows of %lld, no whole blocks of %s", op->name,
                           node->layer, o->name, (long long)t->cols, type);
    }
    return 0;
}

/* Grows a scratch buffer to at least `bytes` for each of n threads. */
static int grow(void **scratch, size_t *has, size_t bytes, int n)
{
    bytes = GR_PAD(bytes, 256);
    if (bytes <= *has)
        return 0;
    void *p = gr_calloc((size_t)n, bytes);
    if (!p)
        return GR_E_NOMEM_HOST;
    gr_free(*scratch);
    *scratch = p, *has = bytes;
    return 0;
}

static struct gr_cpu_need need_of(const struct gr_cpu_impl *impl, const struct gr_node *n)
{
    return impl->need ? impl->need(n) : (struct gr_cpu_need){0, 0};
}

static size_t cpu_segment_scratch(struct gr_backend *b, const struct gr_segment *s,
                                  const struct gr_device_opt *opt)
{
    (void)opt;
    const struct cpu *c = cpu_of(b);
    size_t shared = 0, local = 0;
    for (int32_t i = 0; i < s->n_node; i++) {
        struct gr_cpu_need need = need_of(choose(c, &s->node[i]), &s->node[i]);
        shared = GR_MAX(shared, GR_PAD(need.shared, (size_t)ALIGN));
        local = GR_MAX(local, GR_PAD(need.local, (size_t)ALIGN));
    }
    return shared + local * (size_t)gr_cpu_pools_most(&c->pools);
}

static int prepare(struct cpu *c, struct exec *e)
{
    int64_t rows = 0; /* highest number of rows of a matrix product */
    for (int i = 0; i < e->n_node; i++) {
        const struct gr_node *n = &e->node[i];
        int rc = check_node(n);
        if (rc)
            return rc;
        e->impl[i] = choose(c, n);
        struct gr_cpu_need need = need_of(e->impl[i], n);
        if ((rc = grow(&c->shared, &c->shared_bytes, need.shared, 1)) ||
            (rc = grow(&c->local, &c->local_bytes, need.local, gr_cpu_pools_most(&c->pools))))
            return rc;
        if (n->op == GR_OP_MATMUL)
            rows = GR_MAX(rows, n->a.matmul.x.rows);
    }
    e->pool = rows == 1 ? &c->pools.decode : &c->pools.batch;
    return 0;
}

static void cpu_segment_free(struct gr_backend *b, void **exec)
{
    struct exec *e = *exec;
    (void)b;
    if (!e)
        return;
    gr_free(e->node);
    gr_free(e->impl);
    gr_free(e->tap);
    gr_free(e);
    *exec = NULL;
}

static int cpu_segment_new(struct gr_backend *b, const struct gr_segment *s, void **exec)
{
    size_t n_node = (size_t)s->n_node, n_tap = (size_t)s->n_tap;
    int rc = GR_E_NOMEM_HOST;
    struct exec *e = *exec = gr_calloc(1, sizeof *e);
    if (!e)
        return rc;
    e->node = gr_calloc(n_node, sizeof *e->node);
    e->impl = gr_calloc(n_node, sizeof *e->impl);
    e->tap = gr_calloc(n_tap, sizeof *e->tap);
    if (e->node && e->impl && e->tap) {
        if (n_node)
            memcpy(e->node, s->node, n_node * sizeof *e->node);
        if (n_tap)
            memcpy(e->tap, s->tap, n_tap * sizeof *e->tap);
        e->n_node = s->n_node, e->n_tap = s->n_tap;
        rc = prepare(cpu_of(b), e);
    }
    if (rc)
        cpu_segment_free(b, exec);
    return rc;
}

static void move_to(struct gr_ten *t, uint32_t value, void *to)
{
    if (t->value == value)
        t->data = (char *)to + t->offset;
}

static void cpu_segment_move(struct gr_backend *b, void *exec, uint32_t value, void *to)
{
    struct exec *e = exec;
    (void)b;
    for (int i = 0; i < e->n_node; i++)
        for (const struct gr_operand *o = gr_op_info(e->node[i].op)->operands; o->role; o++)
            move_to(gr_node_ten(&e->node[i], o), value, to);
    for (int i = 0; i < e->n_tap; i++)
        move_to(&e->tap[i].ten, value, to);
}

/* ---- running ---- */

struct run {
    struct cpu *cpu;
    const struct exec *exec;
    int lo, hi;                                /* nodes */
    _Atomic int stop_at;                       /* the run ends after this node */
    struct gr_cpu_queue next[2][GR_NODES_MAX]; /* of even and of odd nodes */
};

static bool cancelled(const struct cpu *c)
{
    return c->cancel && atomic_load_explicit(c->cancel, memory_order_relaxed);
}

/* Before the barrier thread 0 decides whether to stop, so that all threads see the same decision
 * after it, and clears the counters of the next node, which are not in use. */
static void run_thread(void *arg, int ith, int nth)
{
    struct run *r = arg;
    struct cpu *c = r->cpu;
    const struct gr_cpu_pool *pool = r->exec->pool;
    struct gr_cpu_work w = {.ith = ith,
                            .nth = nth,
                            .shared = c->shared,
                            .local = (char *)c->local + (size_t)ith * c->local_bytes,
                            .pool = pool->threads,
                            .homes = c->pools.homes,
                            .home = gr_cpu_pools_home(&c->pools, pool, ith)};
    for (int i = r->lo; i < r->hi; i++) {
        w.next = r->next[i % 2];
        for (int k = 0; ith == 0 && k < (c->pools.homes ? c->pools.homes->n_node : 1); k++)
            atomic_store_explicit(&r->next[(i + 1) % 2][k].n, 0, memory_order_relaxed);
        r->exec->impl[i]->run(&r->exec->node[i], &w);
        if (ith == 0 && c->progress)
            c->progress(i + 1, c->progress_user);
        if (i + 1 == r->hi)
            break;
        if (ith == 0 && cancelled(c))
            atomic_store_explicit(&r->stop_at, i, memory_order_relaxed);
        gr_threads_barrier(pool->threads);
        if (atomic_load_explicit(&r->stop_at, memory_order_relaxed) <= i)
            break;
    }
}

static int run_untimed(struct cpu *c, const struct exec *e, int lo, int hi)
{
    struct run r = {.cpu = c, .exec = e, .lo = lo, .hi = hi, .stop_at = hi};
    if (cancelled(c))
        return gr_fail(GR_E_CANCELLED, "cancelled");
    if (lo < hi)
        gr_threads_run(e->pool->threads, e->pool->n, run_thread, &r);
    return atomic_load(&r.stop_at) < hi ? gr_fail(GR_E_CANCELLED, "cancelled") : 0;
}

/* Runs nodes [lo, hi); with a timer one at a time, between two readings of the clock. `start` is
 * the start time of the segment's first node. */
static int run_nodes(struct cpu *c, const struct exec *e, int lo, int hi, int64_t start)
{
    int rc = 0;
    if (!c->timer)
        return run_untimed(c, e, lo, hi);
    for (int i = lo; i < hi && !rc; i++) {
        const struct gr_node *n = &e->node[i];
        int64_t begin = gr_now_ns();
        rc = run_untimed(c, e, i, i + 1);
        struct gr_op_time t = {.op = n->op,
                               .layer = n->layer,
                               .start_ns = begin - start,
                               .ns = gr_now_ns() - begin,
                               .bytes = n->op == GR_OP_ATTN
                                            ? gr_attn_bytes(n, gr_cpu_i32(&n->a.attn.span, 0))
                                            : gr_node_bytes(n)};
        if (!rc)
            c->timer(&t, c->timer_user);
    }
    return rc;
}

static int cpu_segment_run(struct gr_backend *b, void *exec, gr_tap_fn *tap_fn, void *user)
{
    struct cpu *c = cpu_of(b);
    const struct exec *e = exec;
    int64_t start = gr_now_ns();
    int done = 0, rc = 0;
    for (int i = 0; tap_fn && i < e->n_tap && !rc; i++) {
        const struct gr_tap *tap = &e->tap[i];
        rc = run_nodes(c, e, done, tap->node + 1, start);
        done = tap->node + 1;
        if (!rc)
            tap_fn(tap, &tap->ten, user);
    }
    return rc ? rc : run_nodes(c, e, done, e->n_node, start);
}

static int cpu_set_timer(struct gr_backend *b, gr_time_fn *fn, void *user)
{
    cpu_of(b)->timer = fn, cpu_of(b)->timer_user = user;
    return 0;
}

static void cpu_set_cancel(struct gr_backend *b, const _Atomic int *flag)
{
    cpu_of(b)->cancel = flag;
}

static void cpu_set_progress(struct gr_backend *b, void (*fn)(int32_t n_node, void *user),
                             void *user)
{
    cpu_of(b)->progress = fn, cpu_of(b)->progress_user = user;
}

/* ---- opening ---- */

static void cpu_close(struct gr_backend **b)
{
    struct cpu *c = *b ? cpu_of(*b) : NULL;
    if (!c)
        return;
    gr_cpu_pools_fini(&c->pools);
    gr_free(c->shared);
    gr_free(c->local);
    gr_free(c);
    *b = NULL;
}

static const struct gr_backend_api api = {
    .name = "CPU",
    .alloc = cpu_alloc,
    .free = cpu_free,
    .host_alloc = cpu_alloc,
    .host_free = cpu_free,
    .clear = cpu_clear,
    .upload = cpu_copy,
    .uploaded = cpu_sync,
    .download = cpu_copy,
    .collect = cpu_copy,
    .sync = cpu_sync,
    .can_borrow = cpu_can_borrow,
    .weight_bytes = cpu_weight_bytes,
    .weight_upload = cpu_weight_upload,
    .segment_scratch = cpu_segment_scratch,
    .segment_new = cpu_segment_new,
    .segment_move = cpu_segment_move,
    .segment_run = cpu_segment_run,
    .segment_free = cpu_segment_free,
    .set_timer = cpu_set_timer,
    .set_cancel = cpu_set_cancel,
    .set_progress = cpu_set_progress,
    .close = cpu_close,
};

int gr_cpu_open_as(struct gr_backend **out, int n_threads_decode, int n_threads_batch,
                   enum gr_cpu_level level, const struct gr_cpu_use *use)
{
    *out = NULL;
    int rc = settle_level(&level);
    if (rc)
        return rc;
    struct cpu *c = gr_calloc(1, sizeof *c);
    if (!c)
        return GR_E_NOMEM_HOST;
    c->base.api = &api;
    c->level = level;
    rc = gr_cpu_pools_init(&c->pools, n_threads_decode, n_threads_batch, use);
    *out = &c->base;
    if (rc)
        cpu_close(out);
    return rc;
}

int gr_cpu_open(struct gr_backend **out, int n_threads_decode, int n_threads_batch,
                enum gr_cpu_level level)
{
    return gr_cpu_open_as(out, n_threads_decode, n_threads_batch, level, NULL);
}

void gr_cpu_numa_move(struct gr_backend *b, const struct gr_ten *w)
{
    gr_cpu_pools_numa_move(&cpu_of(b)->pools, w);
}
