/* Text to token ids: split at added tokens, and cut between them as the vocabulary's kind does. */
#include <string.h>

#include "base/checked.h"
#include "gr/status.h"
#include "text/pre.h"
#include "text/text_impl.h"

/* Finds the longest added token at the start of p[0, n), a control token only within p[0, plain):
 * *best receives its id, or -1, and *len its length. */
static int added_at(struct gr_job *j, const char *p, size_t n, size_t plain, int32_t *best,
                    size_t *len)
{
    const struct gr_vocab *v = j->v;
    uint32_t node = 0;
    size_t i = 0;
    *best = -1;
    for (; i < n && (node = gr_trie_step(&v->added, node, (uint8_t)p[i])); i++) {
        int32_t id = v->added.id[node];
        if (id >= 0 && (i < plain || v->type[id] == GR_TOKEN_USER_DEFINED))
            *best = id, *len = i + 1;
    }
    return gr_job_count(j, i);
}

static bool is_blank(char c)
{
    return c && strchr(" \t\n\v\f\r", c);
}

/* Test models: each five bytes are the base-31 digits of a number; the id is that number modulo the
 * number of tokens. */
static int run_hash(struct gr_job *j, const char *p, size_t n)
{
    int rc = 0;
    for (size_t i = 0; i < n && !rc;) {
        uint64_t x = 0;
        for (size_t end = GR_MIN(i + 5, n); i < end; i++)
            x = x * 31 + (uint8_t)p[i];
        rc = gr_job_push(j, (int32_t)(x % (uint64_t)j->v->n_tok));
    }
    return rc;
}

/* Tokenizes text between two added tokens. */
static int run(struct gr_job *j, const char *p, size_t n)
{
    if (!n)
        return 0;
    switch (j->v->kind) {
    case GR_VOCAB_SPM:
        return gr_spm_run(j, p, n);
    case GR_VOCAB_BPE:
        return gr_dna_run(j, p, n);
    case GR_VOCAB_WORDPIECE:
        return gr_wordpiece_run(j, p, n);
    case GR_VOCAB_UNIGRAM:
        return gr_unigram_run(j, p, n);
    case GR_VOCAB_RWKV:
        return gr_rwkv_run(j, p, n);
    case GR_VOCAB_PLAMO:
        return gr_plamo_run(j, p, n);
    case GR_VOCAB_HASH:
        return run_hash(j, p, n);
    case GR_VOCAB_NONE:
        break;
    }
    return gr_fail(
        GR_E_UNSUPPORTED,
        "the model has no tokenizer (tokenizer.ggml.model is \"none\"): token ids are its only "
        "input, which gpurun replay takes");
}

/* Bytes at text[i, n) up to the first one of `input`; *at is the first part that does not end
 * before i. */
static size_t plain_at(const struct gr_text_span *input, size_t n_input, size_t *at, size_t i,
                       size_t n)
{
    while (*at < n_input && input[*at].hi <= i)
        ++*at;
    return *at == n_input ? n - i : input[*at].lo <= i ? 0 : input[*at].lo - i;
}

/* Splits the text at added tokens and tokenizes the parts between them. */
static int run_all(struct gr_job *j, const char *p, size_t n, const struct gr_text_span *input,
                   size_t n_input)
{
    const struct gr_vocab *v = j->v;
    size_t start = 0, i = 0, len = 0, part = 0;
    int rc = 0;
    while (i < n && !rc) {
        int32_t id;
        size_t plain = plain_at(input, n_input, &part, i, n);
        rc = added_at(j, p + i, n - i, plain, &id, &len);
        if (rc || id < 0) {
            i++;
            continue;
        }
        size_t end = i;
        while (v->flags[id] & GR_FLAG_LSTRIP && end > start && is_blank(p[end - 1]))
            end--;
        rc = run(j, p + start, end - start);
        if (!rc)
            rc = gr_job_push(j, id);
        i += len;
        while (v->flags[id] & GR_FLAG_RSTRIP && i < n && is_blank(p[i]))
            i++;
        start = i;
    }
    return rc ? rc : run(j, p + start, n - start);
}

int gr_tokenize(const struct gr_vocab *v, const char *text, size_t n, bool add_special,
                bool parse_special, struct gr_vec *ids)
{
    struct gr_text_span all = {0, n};
    return gr_tokenize_parts(v, text, n, add_special, &all, parse_special ? 0 : 1, ids);
}

int gr_tokenize_parts(const struct gr_vocab *v, const char *text, size_t n, bool add_special,
                      const struct gr_text_span *input, size_t n_input, struct gr_vec *ids)
{
    if (n > GR_TOKENIZE_MAX_BYTES)
        return gr_fail(GR_E_TOO_LARGE, "text of %zu bytes; at most %u can be tokenized at once", n,
                       GR_TOKENIZE_MAX_BYTES);
    if (v->kind == GR_VOCAB_NONE)
        return run(&(struct gr_job){.v = v}, "", 1);
    struct gr_job j = {.v = v, .ids = ids, .max_step = GR_MAX_STEPS(n)};
    size_t had = ids->n;
    int rc = add_special && v->first >= 0 ? gr_job_push(&j, v->first) : 0;
    if (!rc)
        rc = run_all(&j, n ? text : "", n, input, n_input);
    if (!rc && add_special && v->last >= 0)
        rc = gr_job_push(&j, v->last);
    if (rc)
        ids->n = had;
    gr_merge_fini(&j.merge);
    gr_vec_fini(&j.text);
    gr_splitter_free(&j.splitter);
    return rc;
}
