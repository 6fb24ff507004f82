/* Reads the vocabulary of a model file from its keys. */
#include <stdio.h>

#include "base/checked.h"
#include "gr/status.h"
#include "text/vocab.h"

#define K(name) "tokenizer.ggml." name

/* Memory owned while the source points into it. */
struct owned {
    struct gr_str *tokens, *merges;
    float *scores;
    int32_t *types;
};

/* Reads an array of strings as views into the file. */
static int strings(const struct gr_gguf *g, const char *key, uint64_t limit, struct gr_str **out,
                   uint64_t *n)
{
    const struct gr_gguf_kv *kv;
    int rc = gr_gguf_opt_array(g, key, GR_GGUF_STR, &kv);
    if (rc || !kv)
        return rc;
    if (kv->n > limit)
        return gr_fail(GR_E_CORRUPT, "%s: %llu items, more than %llu", key,
                       (unsigned long long)kv->n, (unsigned long long)limit);
    *n = kv->n;
    *out = gr_calloc(kv->n, sizeof **out);
    if (!*out)
        return GR_E_NOMEM_HOST;
    struct gr_gguf_strs it = gr_gguf_strs(kv);
    for (uint64_t i = 0; i < kv->n && gr_gguf_str_next(&it, *out + i); i++)
        ;
    return 0;
}

/* Finds an optional array of numbers, one per token. */
static int numbers(const struct gr_gguf *g, const char *key, uint64_t n_tok,
                   const struct gr_gguf_kv **kv)
{
    *kv = gr_gguf_find(g, key);
    if (!*kv)
        return 0;
    if ((*kv)->type != GR_GGUF_ARRAY)
        return gr_fail(GR_E_CORRUPT, "%s: expected an array, found %s", key,
                       gr_gguf_type_name((*kv)->type));
    if ((*kv)->n != n_tok)
        return gr_fail(GR_E_CORRUPT, "%s: %llu items, but %llu tokens", key,
                       (unsigned long long)(*kv)->n, (unsigned long long)n_tok);
    return 0;
}

static int load_scores(const struct gr_gguf *g, struct gr_vocab_source *s, struct owned *own)
{
    const struct gr_gguf_kv *kv;
    int rc = numbers(g, K("scores"), s->n_tok, &kv);
    if (rc || !kv)
        return rc;
    own->scores = gr_calloc(kv->n, sizeof *own->scores);
    if (!own->scores)
        return GR_E_NOMEM_HOST;
    for (uint64_t i = 0; i < kv->n; i++) {
        double x;
        int64_t whole = 0;
        if (!gr_gguf_item_f64(kv, i, &x) && !gr_gguf_item_i64(kv, i, &whole))
            return gr_fail(GR_E_CORRUPT, K("scores") ": expected numbers, found %s",
                           gr_gguf_type_name(kv->item));
        own->scores[i] = gr_gguf_item_f64(kv, i, &x) ? (float)x : (float)whole;
    }
    s->scores = own->scores, s->n_scores = kv->n;
    return 0;
}

static int load_types(const struct gr_gguf *g, struct gr_vocab_source *s, struct owned *own)
{
    const struct gr_gguf_kv *kv;
    int rc = numbers(g, K("token_type"), s->n_tok, &kv);
    if (rc || !kv)
        return rc;
    own->types = gr_calloc(kv->n, sizeof *own->types);
    if (!own->types)
        return GR_E_NOMEM_HOST;
    for (uint64_t i = 0; i < kv->n; i++) {
        int64_t x;
        if (!gr_gguf_item_i64(kv, i, &x) || x < 0 || x >= GR_TOKEN_N_TYPE)
            return gr_fail(GR_E_CORRUPT, K("token_type") ": item %llu is no number from 0 to %d",
                           (unsigned long long)i, GR_TOKEN_N_TYPE - 1);
        own->types[i] = (int32_t)x;
    }
    s->types = own->types, s->n_types = kv->n;
    return 0;
}

static int load_charsmap(const struct gr_gguf *g, struct gr_vocab_source *s)
{
    const struct gr_gguf_kv *kv = gr_gguf_find(g, K("precompiled_charsmap"));
    if (!kv)
        return 0;
    if (kv->type != GR_GGUF_ARRAY || (kv->item != GR_GGUF_U8 && kv->item != GR_GGUF_I8))
        return gr_fail(GR_E_CORRUPT, K("precompiled_charsmap") ": expected an array of bytes");
    s->charsmap = kv->data, s->charsmap_bytes = kv->n;
    return 0;
}

static int load_special(const struct gr_gguf *g, struct gr_vocab_source *s)
{
    static const char *const key[] = {
#define SPECIAL(NAME, field, key) K(key),
#include "text/special.def"
    };
    int rc = 0;
    for (int i = 0; i < GR_N_SPECIAL && !rc; i++)
        rc = gr_gguf_opt_i64(g, key[i], GR_ID_UNSET, &s->special[i]);
    return rc;
}

static int load_flags(const struct gr_gguf *g, struct gr_vocab_source *s)
{
    const struct {
        const char *key;
        int8_t *flag;
    } flags[] = {{K("add_bos_token"), &s->add_bos},
                 {K("add_eos_token"), &s->add_eos},
                 {K("add_sep_token"), &s->add_sep},
                 {K("add_space_prefix"), &s->add_space_prefix},
                 {K("remove_extra_whitespaces"), &s->remove_extra_whitespaces},
                 {K("normalizer.lowercase"), &s->lowercase},
                 {K("normalizer.strip_accents"), &s->strip_accents}};
    int rc = 0;
    for (size_t i = 0; i < GR_COUNT(flags) && !rc; i++) {
        bool on = false;
        if (!gr_gguf_find(g, flags[i].key))
            continue;
        rc = gr_gguf_bool(g, flags[i].key, &on);
        *flags[i].flag = on;
    }
    return rc;
}

/* Number of tokens of a file without texts: <architecture>.vocab_size, or the embedding's rows. */
static int count_none(const struct gr_gguf *g, struct gr_vocab_source *s)
{
    char key[128];
    uint32_t n = 0;
    snprintf(key, sizeof key, "%.*s.vocab_size", (int)GR_MIN(s->arch.n, (size_t)100), s->arch.p);
    const struct gr_gguf_tensor *t = gr_gguf_find_tensor(g, "token_embd.weight");
    if (!gr_gguf_find(g, key) && t)
        return s->n_tok = t->ne[1], 0;
    int rc = gr_gguf_opt_u32(g, key, 0, &n);
    s->n_tok = n;
    return rc;
}

static int load(const struct gr_gguf *g, struct gr_vocab_source *s, struct owned *own)
{
    int rc = gr_gguf_opt_str(g, K("pre"), "", &s->pre);
    if (!rc)
        rc = strings(g, K("tokens"), GR_VOCAB_MAX_TOKENS, &own->tokens, &s->n_tok);
    if (!rc)
        rc = strings(g, K("merges"), GR_VOCAB_MAX_MERGES, &own->merges, &s->n_merges);
    s->tokens = own->tokens, s->merges = own->merges;
    if (!rc)
        rc = load_scores(g, s, own);
    if (!rc)
        rc = load_types(g, s, own);
    if (!rc)
        rc = load_charsmap(g, s);
    if (!rc)
        rc = load_special(g, s);
    return rc ? rc : load_flags(g, s);
}

int gr_vocab_open(struct gr_vocab **out, const struct gr_gguf *g)
{
    struct gr_vocab_source s = gr_vocab_source_new("");
    struct owned own = {0};
    *out = NULL;
    int rc = gr_gguf_str(g, K("model"), &s.model);
    if (!rc)
        rc = gr_gguf_opt_str(g, "general.name", "", &s.name);
    if (!rc)
        rc = gr_gguf_opt_str(g, "general.architecture", "", &s.arch);
    if (!rc)
        rc = gr_str_is(s.model, "none") || gr_str_is(s.model, "no_vocab") ? count_none(g, &s)
                                                                          : load(g, &s, &own);
    if (!rc)
        rc = gr_vocab_open_source(out, &s);
    gr_free(own.tokens);
    gr_free(own.merges);
    gr_free(own.scores);
    gr_free(own.types);
    return rc;
}
