/* A model file with its matrices in another storage type.
 *
 * Converted: tensors of two or more dimensions whose name ends in "weight", but for those in `kept`
 * below. Everything else, and what has the type already, is copied byte for byte. Not every tensor
 * gets the type that was asked for:
 * - The matrix that makes logits (output, or token_embd where there is no output) decides over
 *   every token: it gets at least Q6_K, Q8_0 where its rows do not fit.
 * - Rows that are no multiple of 256 get the simple type next to a K type: Q2_K and Q3_K become
 *   Q4_0, Q4_K becomes Q5_0, Q5_K becomes Q5_1, Q6_K becomes Q8_0.
 * - Rows that are no multiple of 32 become F16. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "base/threads.h"
#include "gguf/gguf.h"
#include "gpurun.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "quant/quant.h"

/* Matrices that are small, looked up exactly or fed to operations on f32. */
static const char *const kept[] = {
    "_norm.",         "ffn_gate_inp",  "position_embd", "token_types", "attn_rel_b",
    "_inject.",       "conv1d.",       "shortconv.",    "time_mix_w",  "time_mix_a",
    "time_mix_v0",    "time_mix_v1",   "time_mix_v2",   "time_mix_g1", "time_mix_g2",
    "time_mix_first", "time_mix_lerp", "time_mix_decay"};

/* What general.file_type says of a file of this type; for a K type the number of the mix closest
 * to it, "small". */
static const struct {
    uint32_t type, file_type;
} file_types[] = {{GR_F32, 0},   {GR_F16, 1},   {GR_Q4_0, 2},  {GR_Q4_1, 3},  {GR_Q8_0, 7},
                  {GR_Q5_0, 8},  {GR_Q5_1, 9},  {GR_Q2_K, 10}, {GR_Q3_K, 11}, {GR_Q4_K, 14},
                  {GR_Q5_K, 16}, {GR_Q6_K, 18}, {GR_BF16, 32}};

enum { CHUNK = 1 << 20 }; /* elements read, converted and written together */

struct convert {
    struct gr_gguf *in;
    struct gr_gguf_writer *out;
    struct gr_threads *pool;
    uint32_t type;  /* asked for */
    uint32_t *plan; /* [n_tensor] type of each tensor in the new file */
    uint64_t bytes; /* of the new tensors */
    uint8_t *src, *dst;
    float *x, *ones; /* [CHUNK] */
};

/* One chunk in work. */
struct chunk {
    struct convert *c;
    const struct gr_dtype_info *from, *to;
    size_t n;
    size_t bad[512]; /* [threads] first element that cannot be stored, or n */
};

static bool ends_with(struct gr_str s, const char *tail)
{
    size_t n = strlen(tail);
    return s.n >= n && memcmp(s.p + s.n - n, tail, n) == 0;
}

static bool is_converted(const struct gr_gguf_tensor *t)
{
    if (t->n_dim < 2 || t->bytes == gr_row_bytes(t->dtype, t->ne[0]) ||
        !ends_with(t->name, "weight"))
        return false;
    for (size_t i = 0; i < GR_COUNT(kept); i++)
        if (memmem(t->name.p, t->name.n, kept[i], strlen(kept[i])))
            return false;
    return true;
}

static bool makes_logits(const struct gr_gguf *g, const struct gr_gguf_tensor *t)
{
    return gr_str_is(t->name, gr_gguf_find_tensor(g, "output.weight") ? "output.weight"
                                                                      : "token_embd.weight");
}

/* The type itself where rows of ne0 elements are whole blocks of it, else the next one that fits.
 */
static uint32_t fitting(uint32_t type, uint64_t ne0)
{
    if (ne0 % gr_dtype_find(type)->block == 0)
        return type;
    switch (ne0 % 32 ? GR_F32 : type) {
    case GR_Q2_K:
    case GR_Q3_K:
        return GR_Q4_0;
    case GR_Q4_K:
        return GR_Q5_0;
    case GR_Q5_K:
        return GR_Q5_1;
    case GR_Q6_K:
        return GR_Q8_0;
    default:
        return GR_F16;
    }
}

static uint32_t choose(const struct gr_gguf *g, const struct gr_gguf_tensor *t, uint32_t type)
{
    const struct gr_dtype_info *d = gr_dtype_find(type);
    if (!is_converted(t))
        return t->dtype;
    if (makes_logits(g, t) && d->block > 1 && type != GR_Q8_0)
        type = GR_Q6_K;
    return fitting(type, t->ne[0]);
}

static int find_type(const char *name, uint32_t *type)
{
#define KNOWN_0(name)
#define KNOWN_3(name)
#define KNOWN_1(name) " " name
#define QUANT(NAME, name, id, n, bytes, codec) KNOWN_##codec(name)
    static const char known[] =
#include "gr/quant.def"
        ;
#undef QUANT
    const struct gr_dtype_info *d = gr_dtype_find_name(name);
    if (!d || !d->codec || !gr_quant_find(d->id)->quantize)
        return gr_fail(GR_E_INVALID, "storage type %s cannot be written, use one of:%s",
                       gr_quote(name, strlen(name)), known);
    *type = d->id;
    return 0;
}

/* Chooses types, refuses sources that cannot be read, and adds the tensors to the writer. */
static int plan(struct convert *c)
{
    uint64_t n = gr_gguf_n_tensor(c->in);
    bool again = false;
    c->plan = gr_calloc(n, sizeof *c->plan);
    if (!c->plan)
        return GR_E_NOMEM_HOST;
    for (uint64_t i = 0; i < n; i++) {
        const struct gr_gguf_tensor *t = gr_gguf_tensor_at(c->in, i);
        uint64_t bytes;
        uint32_t type = c->plan[i] = choose(c->in, t, c->type);
        if (type != t->dtype && !gr_quant_find(t->dtype))
            return gr_fail(GR_E_UNSUPPORTED,
                           "%s: tensor %s is stored as %s, which cannot be converted; take a "
                           "file in f32, f16 or bf16",
                           gr_gguf_path(c->in, t->part), gr_quote(t->name.p, t->name.n),
                           gr_dtype_name(t->dtype));
        if (!gr_tensor_bytes(type, t->ne, t->n_dim, &bytes) || !gr_add(&c->bytes, c->bytes, bytes))
            return gr_fail(GR_E_TOO_LARGE, "tensor %s is too large as %s",
                           gr_quote(t->name.p, t->name.n), gr_dtype_name(type));
        int e = gr_gguf_add_tensor(c->out, t->name, type, t->n_dim, t->ne);
        if (e)
            return e;
        again |= type != t->dtype && gr_dtype_find(t->dtype)->block > 1;
    }
    if (again)
        gr_log(GR_LOG_WARN, "%s is quantised already: the errors of both types add up",
               gr_gguf_path(c->in, 0));
    return 0;
}

static int set_keys(struct convert *c)
{
    int e = gr_gguf_copy_all(c->out, c->in);
    for (size_t i = 0; !e && i < GR_COUNT(file_types); i++)
        if (file_types[i].type == c->type)
            e = gr_gguf_set_u32(c->out, "general.file_type", file_types[i].file_type);
    return e ? e : gr_gguf_set_u32(c->out, "general.quantization_version", 2);
}

/* Largest magnitude that a type keeps: block types have f16 scales. */
static float limit(uint32_t type)
{
    return type == GR_F32 ? 0x1.fffffep127f : type == GR_BF16 ? 0x1.fep127f : 65504.f;
}

/* Thread i of n: its share of a chunk, in units of the largest block. */
static void convert_share(void *arg, int i, int n)
{
    struct chunk *k = arg;
    struct convert *c = k->c;
    size_t share = GR_PAD((k->n + (size_t)n - 1) / (size_t)n, 256);
    size_t lo = GR_MIN((size_t)i * share, k->n), hi = GR_MIN(lo + share, k->n);
    float most = limit(k->to->id);
    gr_quant_find(k->from->id)
        ->dequantize(c->src + lo / k->from->block * k->from->block_bytes, c->x + lo, hi - lo);
    k->bad[i] = k->n;
    for (size_t at = hi; at-- > lo;)
        if (!(fabsf(c->x[at]) <= most))
            k->bad[i] = at;
    gr_quant_find(k->to->id)->quantize(c->x + lo, c->dst + lo / k->to->block * k->to->block_bytes,
                                       hi - lo, c->ones);
}

static int refuse(const struct convert *c, const struct gr_gguf_tensor *t, uint64_t at, float x,
                  uint32_t type)
{
    const char *path = gr_gguf_path(c->in, t->part), *name = gr_quote(t->name.p, t->name.n);
    if (!isfinite(x))
        return gr_fail(GR_E_CORRUPT,
                       "%s: tensor %s: element %" PRIu64 " is %g, expected a finite number", path,
                       name, at, (double)x);
    return gr_fail(GR_E_UNSUPPORTED,
                   "%s: tensor %s: element %" PRIu64
                   " is %g, and %s holds magnitudes up to %g; use bf16 or f32",
                   path, name, at, (double)x, gr_dtype_name(type), (double)limit(type));
}

static int convert_tensor(struct convert *c, const struct gr_gguf_tensor *t, uint32_t type)
{
    struct chunk k = {.c = c, .from = gr_dtype_find(t->dtype), .to = gr_dtype_find(type)};
    uint64_t n = t->bytes / k.from->block_bytes * k.from->block;
    int e, n_threads = gr_threads_count(c->pool);
    for (uint64_t at = 0; at < n; at += k.n) {
        k.n = (size_t)GR_MIN(n - at, (uint64_t)CHUNK);
        if ((e = gr_gguf_read(c->in, t, at / k.from->block * k.from->block_bytes, c->src,
                              gr_row_bytes(k.from->id, k.n))))
            return e;
        gr_threads_run(c->pool, n_threads, convert_share, &k);
        for (int i = 0; i < n_threads; i++)
            if (k.bad[i] < k.n)
                return refuse(c, t, at + k.bad[i], c->x[k.bad[i]], type);
        if ((e = gr_gguf_write(c->out, c->dst, gr_row_bytes(type, k.n))))
            return e;
    }
    return 0;
}

static int copy_tensor(struct convert *c, const struct gr_gguf_tensor *t)
{
    for (uint64_t at = 0; at < t->bytes;) {
        size_t n = (size_t)GR_MIN(t->bytes - at, (uint64_t)CHUNK);
        int e = gr_gguf_read(c->in, t, at, c->src, n);
        if (!e)
            e = gr_gguf_write(c->out, c->src, n);
        if (e)
            return e;
        at += n;
    }
    return 0;
}

static int write_tensors(struct convert *c)
{
    uint64_t n = gr_gguf_n_tensor(c->in);
    for (uint64_t i = 0; i < n; i++) {
        const struct gr_gguf_tensor *t = gr_gguf_tensor_at(c->in, i);
        uint32_t type = c->plan[i];
        gr_log(GR_LOG_INFO, "%" PRIu64 "/%" PRIu64 " %s: %s%s%s", i + 1, n,
               gr_quote(t->name.p, t->name.n), gr_dtype_name(t->dtype),
               type == t->dtype ? "" : " -> ", type == t->dtype ? "" : gr_dtype_name(type));
        int e = type == t->dtype ? copy_tensor(c, t) : convert_tensor(c, t, type);
        if (e)
            return e;
    }
    return 0;
}

static int alloc_buffers(struct convert *c)
{
    c->src = gr_calloc(CHUNK, sizeof(float));
    c->dst = gr_calloc(CHUNK, sizeof(float));
    c->x = gr_calloc(CHUNK, sizeof(float));
    c->ones = gr_calloc(CHUNK, sizeof(float));
    if (!c->src || !c->dst || !c->x || !c->ones)
        return GR_E_NOMEM_HOST;
    for (int i = 0; i < CHUNK; i++)
        c->ones[i] = 1;
    return 0;
}

static void report(const struct convert *c)
{
    uint64_t before = 0, n_elem = 0;
    for (uint64_t i = 0; i < gr_gguf_n_tensor(c->in); i++) {
        const struct gr_gguf_tensor *t = gr_gguf_tensor_at(c->in, i);
        before += t->bytes;
        n_elem += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    }
    gr_log(GR_LOG_INFO, "weights: %.2f MiB before, %.2f MiB now, %.2f bits each",
           (double)before * 0x1p-20, (double)c->bytes * 0x1p-20,
           n_elem ? (double)c->bytes * 8 / (double)n_elem : 0);
}

int gr_quantize_file(const char *in, const char *out, const char *type, int32_t n_threads)
{
    struct convert c = {0};
    int n = n_threads > 0 ? GR_MIN(n_threads, 512) : gr_threads_online();
    int e = find_type(type, &c.type);
    if (!e)
        e = gr_gguf_open(&c.in, in, false);
    if (!e)
        e = gr_gguf_writer_new(&c.out);
    if (!e)
        e = set_keys(&c);
    if (!e)
        e = plan(&c);
    if (!e)
        e = alloc_buffers(&c);
    if (!e)
        e = gr_threads_new(&c.pool, n);
    if (!e)
        e = gr_gguf_begin(c.out, out);
    if (!e)
        e = write_tensors(&c);
    if (!e)
        e = gr_gguf_unchanged(c.in);
    if (!e)
        e = gr_gguf_commit(c.out);
    if (!e)
        report(&c);
    gr_threads_free(&c.pool);
    gr_free(c.ones);
    gr_free(c.x);
    gr_free(c.dst);
    gr_free(c.src);
    gr_free(c.plan);
    gr_gguf_writer_free(&c.out);
    gr_gguf_close(&c.in);
    return e;
}
