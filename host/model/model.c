#include "model/model.h"

#include <inttypes.h>
#include <string.h>

#include "arch/hparams.h"
#include "base/alloc.h"
#include "base/checked.h"
#include "base/threads.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "model/control.h"
#include "model/weight_homes.h"
#include "registry/registry.h"

/* The model embedded by builtin.S; empty in a build without one. */
extern const uint8_t gr_builtin_model[], gr_builtin_model_end[];

struct gr_model_params gr_model_params_default(void)
{
    return (struct gr_model_params){.n_gpu_layers = -1,
                                    .main_gpu = -1,
                                    .n_cpu_experts = -1,
                                    .use_mmap = true,
                                    .threads.poll = GR_THREADS_POLL_US,
                                    .threads_batch.poll = GR_THREADS_POLL_US};
}

/* Refuses GGUF files that are not language models. */
static int check_type(const struct gr_gguf *g)
{
    static const struct {
        const char *type, *text;
    } other[] = {
        {"adapter", "an adapter: give its model by -m, and this file by --lora"},
        {"imatrix", "an importance matrix: gpurun quantize --imatrix takes it"},
        {"mmproj", "the image part of a model: give the file with its language part"},
    };
    struct gr_str type;
    int rc = gr_gguf_opt_str(g, "general.type", "", &type);
    for (size_t i = 0; i < GR_COUNT(other) && !rc; i++)
        if (type.n == strlen(other[i].type) && !memcmp(type.p, other[i].type, type.n))
            rc = gr_fail(GR_E_UNSUPPORTED, "%s is %s", gr_gguf_path(g, 0), other[i].text);
    return rc;
}

static int find_arch(struct gr_model *m)
{
    struct gr_str name;
    int rc = check_type(m->gguf);
    if (!rc)
        rc = gr_gguf_str(m->gguf, "general.architecture", &name);
    if (rc)
        return rc;
    m->arch = gr_arch_find(name);
    if (m->arch)
        return 0;
    const char *near[GR_N_NEAREST];
    gr_arch_nearest(name, near);
    return gr_fail(GR_E_UNSUPPORTED,
                   "%s: architecture %s is not known to this version; the nearest known ones are "
                   "%s, %s and %s; gpurun list has all of them",
                   gr_gguf_path(m->gguf, 0), gr_quote(name.p, name.n), near[0], near[1], near[2]);
}

/* Runs `read`, which builds data from the metadata, within the memory budget of the file `path`. */
static int within_budget(struct gr_model *m, int (*read)(struct gr_model *m), const char *path)
{
    gr_budget_begin(&m->budget);
    int rc = read(m);
    return gr_budget_end(&m->budget) ? gr_gguf_too_much(path) : rc;
}

static int open_vocab(struct gr_model *m)
{
    return gr_vocab_open(&m->vocab, m->gguf);
}

/* Reads the vocabulary and its size, which binding compares with the embeddings. A file without
 * text has the size in a key, or else in the embeddings' shape. */
static int read_vocab(struct gr_model *m)
{
    char key[128];
    int rc = within_budget(m, open_vocab, gr_gguf_path(m->gguf, 0));
    if (rc)
        return rc;
    const struct gr_gguf_tensor *t = gr_gguf_find_tensor(m->gguf, "token_embd.weight");
    int64_t n = gr_vocab_size(m->vocab), rows = t ? (int64_t)t->ne[1] : n;
    snprintf(key, sizeof key, "%s.vocab_size", m->arch->name);
    if (gr_vocab_kind(m->vocab) == GR_VOCAB_NONE && n == 0)
        rc = gr_gguf_opt_i64(m->gguf, key, rows, &n);
    if (!rc && (n < 1 || n > GR_VOCAB_MAX_TOKENS))
        rc = gr_fail(GR_E_CORRUPT, "the vocabulary has %" PRId64 " tokens", n);
    if (!rc && m->hp.enc.decoder_start >= n)
        rc = gr_fail(GR_E_CORRUPT,
                     "key %s.decoder_start_token_id: a token below %" PRId64 " expected, %d found",
                     m->arch->name, n, m->hp.enc.decoder_start);
    m->hp.n_vocab = (int32_t)n;
    return rc;
}

/* Copies a string with a question mark for each byte of a control character (ASCII, and U+0080 to
 * U+009F), which would steer a terminal when the name is printed. */
static char *printable(struct gr_str s)
{
    char *p = gr_strndup(s.p, s.n);
    for (size_t i = 0; p && i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        bool wide = c == 0xc2 && i + 1 < s.n && ((unsigned char)s.p[i + 1] & 0xe0) == 0x80;
        if (c < 32 || c == 127 || wide)
            p[i] = '?';
        if (wide)
            p[++i] = '?';
    }
    return p;
}

/* Sets totals, name, and the storage type of most bytes of matrices. */
static int summarise(struct gr_model *m)
{
    uint64_t by_type[64] = {0}, most = 0;
    uint32_t best = GR_F32;
    for (uint64_t i = 0; i < gr_gguf_n_tensor(m->gguf); i++) {
        const struct gr_gguf_tensor *t = gr_gguf_tensor_at(m->gguf, i);
        m->n_params += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
        m->n_bytes += t->bytes;
        if (t->n_dim > 1 && t->dtype < 64 && (by_type[t->dtype] += t->bytes) > most)
            most = by_type[t->dtype], best = t->dtype;
    }
    struct gr_str name;
    int rc = gr_gguf_opt_str(m->gguf, "general.name", m->arch->name, &name);
    if (rc)
        return rc;
    m->name = printable(name);
    m->file_type = gr_strndup(gr_dtype_name(best), strlen(gr_dtype_name(best)));
    return m->name && m->file_type ? 0 : GR_E_NOMEM_HOST;
}

/* Reads the names of a classifier's scores, if the file has them. */
static int read_labels(struct gr_model *m)
{
    char key[128];
    const struct gr_gguf_kv *kv;
    struct gr_str name;
    snprintf(key, sizeof key, "%s.classifier.output_labels", m->arch->name);
    int rc = gr_gguf_opt_array(m->gguf, key, GR_GGUF_STR, &kv);
    if (rc || !kv || !kv->n)
        return rc;
    if (!(m->label = gr_calloc(kv->n, sizeof *m->label)))
        return GR_E_NOMEM_HOST;
    struct gr_gguf_strs it = gr_gguf_strs(kv);
    for (; gr_gguf_str_next(&it, &name); m->n_label++)
        if (!(m->label[m->n_label] = printable(name)))
            return GR_E_NOMEM_HOST;
    return 0;
}

static int read_names(struct gr_model *m)
{
    int rc = read_labels(m);
    return rc ? rc : summarise(m);
}

static int open_file(struct gr_model *m, const char *path, bool mapped)
{
    if (path) {
        gr_budget_begin(&m->budget);
        int rc = gr_gguf_open(&m->gguf, path, mapped);
        return gr_budget_end(&m->budget) ? gr_gguf_too_much(path) : rc;
    }
    /* cppcheck-suppress comparePointers ; both are labels of builtin.S */
    size_t size = (size_t)(gr_builtin_model_end - gr_builtin_model);
    if (!size)
        return gr_fail(GR_E_NO_MODEL, "this build has no model of its own; name one with -m FILE");
    return gr_gguf_open_memory(&m->gguf, gr_builtin_model, size, "built-in model");
}

/* Reads everything that sessions need from the file. */
static int read_all(struct gr_model *m, bool check_finite)
{
    int rc = find_arch(m);
    if (!rc)
        rc = gr_hparams_read(&m->hp, m->gguf, m->arch);
    if (!rc)
        rc = read_vocab(m);
    if (!rc)
        rc = gr_model_bind(m, check_finite);
    if (!rc)
        rc = gr_model_try_graph(m, &m->hp, NULL, m->weight, m->bias, NULL);
    if (!rc)
        rc = within_budget(m, read_names, gr_gguf_path(m->gguf, 0));
    return rc;
}

int gr_model_new(struct gr_model **out, const struct gr_model_params *p)
{
    struct gr_model *m = *out = gr_calloc(1, sizeof *m);
    if (!m)
        return GR_E_NOMEM_HOST;
    pthread_mutex_init(&m->lock, NULL);
    m->budget.limit = GR_GGUF_MAX_HELD;
    m->vocab_only = p->vocab_only;
    m->use_mlock = p->use_mlock;
    m->n_gpu_wanted = p->n_gpu_layers, m->require_gpu = p->require_gpu;
    m->progress = (struct gr_progress){.fn = p->progress, .user = p->progress_user};
    int rc = gr_split_read(&m->split, p);
    if (!rc)
        rc = gr_model_threads(&m->cpu, p);
    if (!rc)
        rc = gr_cpu_level_find(&m->cpu_level, p->cpu_level);
    if (rc)
        gr_model_free(out);
    return rc;
}

int gr_model_read(struct gr_model *m, const char *path, const struct gr_model_params *p)
{
    int rc = open_file(m, path, p->use_mmap);
    for (const char *const *kv = p->override_kv; kv && *kv && !rc; kv++)
        rc = gr_gguf_override(m->gguf, *kv);
    if (!rc && p->vocab_only)
        return within_budget(m, open_vocab, gr_gguf_path(m->gguf, 0));
    if (!rc)
        rc = read_all(m, p->check_tensors);
    if (!rc)
        rc = gr_control_open(m, p);
    if (!rc)
        rc = gr_weight_homes_read(m, p);
    return rc ? rc : gr_lora_open(m, p);
}

void gr_model_free(struct gr_model **model)
{
    struct gr_model *m = *model;
    while (m->n_rank_model > 0)
        gr_rank_model_free(&m->rank_model[--m->n_rank_model]);
    pthread_mutex_destroy(&m->lock);
    for (size_t i = 0; i < m->owned.n; i++)
        gr_free(((void **)m->owned.data)[i]);
    gr_vec_fini(&m->owned);
    gr_lora_close(m);
    gr_weight_homes_free(m);
    gr_free(m->weight);
    gr_free(m->bias);
    gr_free(m->scale);
    gr_free(m->name);
    gr_free(m->file_type);
    for (int32_t i = 0; i < m->n_label; i++)
        gr_free(m->label[i]);
    gr_free(m->label);
    gr_token_trie_free(&m->trie);
    gr_vocab_close(&m->vocab);
    gr_gguf_close(&m->gguf);
    gr_free(m);
    *model = NULL;
}

static int32_t gpu_layers(struct gr_model *m)
{
    pthread_mutex_lock(&m->lock);
    const struct gr_rank_model *rm = m->rank_model[0];
    int32_t n = rm->loaded ? gr_place_n_gpu(&rm->placed.place, m->hp.n_layer) : 0;
    pthread_mutex_unlock(&m->lock);
    return n;
}

void gr_model_info(const struct gr_model *m, struct gr_model_info *info)
{
    *info =
        (struct gr_model_info){.n_gpu_layers = gpu_layers((struct gr_model *)(uintptr_t)m),
                               .where = m->where,
                               .arch = m->arch ? m->arch->name : "",
                               .name = m->name ? m->name : "",
                               .file_type = m->file_type ? m->file_type : "",
                               .n_params = m->n_params,
                               .n_bytes = m->n_bytes,
                               .n_vocab = m->vocab_only ? gr_vocab_size(m->vocab) : m->hp.n_vocab,
                               .n_ctx_train = m->hp.n_ctx_train,
                               .n_learned_pos = m->hp.embd.n_learned_pos,
                               .n_layer = m->hp.n_layer,
                               .n_embd = m->hp.n_embd,
                               .n_head = m->hp.attn.n_head[0],
                               .n_head_kv = m->hp.attn.n_head_kv[0],
                               .no_logits = m->arch && m->arch->no_logits,
                               .no_cache = m->hp.no_cache,
                               .has_encoder = m->hp.enc.n_layer > 0,
                               .has_template = gr_gguf_find(m->gguf, "tokenizer.chat_template"),
                               .decoder_start = m->hp.enc.n_layer ? m->hp.enc.decoder_start : -1,
                               .pooling = m->vocab_only ? GR_POOLING_NONE : m->hp.pool.kind,
                               .n_label = m->n_label};
}

const char *gr_model_label(const struct gr_model *m, int32_t i)
{
    return i >= 0 && i < m->n_label ? m->label[i] : NULL;
}
