/* KV_STORE, KV_SHIFT, KV_COPY. */
#include "cuda/grid.h"
#include "cuda/launch_attn.h"
#include "gr/kernel/kv.h"
#include "gr/planes.h"

enum { THREADS = GR_KV_WARPS * 32 };

static int check_type(uint32_t type)
{
    if (gr_cache_type(type))
        return 0;
    return gr_fail(GR_E_UNSUPPORTED, "cache: expected a type that a cache has, found %s",
                   gr_dtype_name(type));
}

/* Turns Q of the same tokens in the same launch, unless attention does. */
static const struct gr_args_rope *rope_behind(const struct gr_launcher *l,
                                              const struct gr_args_kv_store *a)
{
    const struct gr_node *n = gr_launch_behind(l, 1);
    const struct gr_args_rope *r = n ? &n->a.rope : NULL;
    bool goes = n && n->op == GR_OP_ROPE && gr_rope_vec4(r) && !gr_ten_overlap(&r->y, &a->k) &&
                !gr_ten_overlap(&r->y, &a->v) && !gr_ten_overlap(&r->y, &a->cs) &&
                !gr_ten_overlap(&r->y, &a->cells) && !gr_attn_turns(l, 1);
    return goes ? r : NULL;
}

int gr_cuda_kv_store(struct gr_launcher *l, const struct gr_args_kv_store *a)
{
    int64_t n = a->k.rows * ((a->k.cols + 31) / 32 + (a->v.cols + 31) / 32);
    int rc = check_type(a->k_cache.dtype);
    if (!rc && gr_ten_is(&a->v))
        rc = check_type(a->v_cache.dtype);
    const struct gr_args_rope *rope = rc ? NULL : rope_behind(l, a);
    if (rc || !rope)
        return rc ? rc
                  : gr_launch_items(l, "gr_kv_store", n, GR_KV_WARPS, THREADS, 0, a, sizeof *a);
    int64_t n_store = (n + GR_KV_WARPS - 1) / GR_KV_WARPS;
    struct gr_kernel_kv_store_rope both = {*a, *rope, (uint32_t)n_store};
    gr_launch_skip(l, 1);
    return gr_launch_items(l, "gr_kv_store_rope", n_store * THREADS + gr_rope_runs(rope), THREADS,
                           THREADS, 0, &both, sizeof both);
}

/* True when runs of 4 pairs are aligned: 16 bytes of f32, 8 of the other types. */
static bool runs_of_4(const struct gr_args_kv_shift *a)
{
    int64_t bytes = a->k_cache.dtype == GR_F32 ? 16 : 8;
    return a->d_head % 8 == 0 && a->cs.cols % 8 == 0 && gr_ten_vec4(&a->cs) &&
           (int64_t)((uintptr_t)a->k_cache.data % 16) % bytes == 0 &&
           a->k_cache.row_bytes % bytes == 0;
}

int gr_cuda_kv_shift(struct gr_launcher *l, const struct gr_args_kv_shift *a)
{
    int64_t n_head = a->delta.cols * (a->k_cache.cols / a->d_head), n_rot = a->cs.cols;
    int rc = check_type(a->k_cache.dtype);
    if (rc || n_rot == 0)
        return rc;
    if (gr_planes_are(a->k_cache.dtype))
        return gr_launch_items(l, "gr_kv_shift_blocks", n_head, GR_KV_WARPS, THREADS,
                               (uint32_t)((n_rot + 31) / 32 * 128 * GR_KV_WARPS), a, sizeof *a);
    if (runs_of_4(a))
        return gr_launch_items(l, "gr_kv_shift_4", n_head * (n_rot / 8), THREADS, THREADS, 0, a,
                               sizeof *a);
    return gr_launch_items(l, "gr_kv_shift_1", n_head * (n_rot / 2), THREADS, THREADS, 0, a,
                           sizeof *a);
}

int gr_cuda_kv_copy(struct gr_launcher *l, const struct gr_args_kv_copy *a)
{
    const struct gr_ten *t = &a->cache; /* planes with what aligns them */
    size_t bytes = t->planes ? (size_t)gr_planes_row(t->dtype, t->cols)
                             : gr_row_bytes(t->dtype, (uint64_t)t->cols);
    uintptr_t all = (uintptr_t)t->data | (uintptr_t)t->row_bytes | bytes;
    unsigned piece = all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 2;
    const char *kernel = piece == 16  ? "gr_kv_copy_16"
                         : piece == 4 ? "gr_kv_copy_4"
                                      : "gr_kv_copy_2";
    struct gr_kernel_kv_copy c = {*a, (uint32_t)(bytes / piece)};
    return gr_launch_items(l, kernel, a->src.cols * c.n_piece, THREADS, THREADS, 0, &c, sizeof c);
}
