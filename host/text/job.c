/* One call of gr_tokenize: its text as normalised, its ids, and the limit on its steps. */
#include "gr/status.h"
#include "text/text_impl.h"
#include "text/utf8.h"

int gr_job_push(struct gr_job *j, int32_t id)
{
    return gr_vec_append(j->ids, &id, 1, sizeof id);
}

int gr_job_count(struct gr_job *j, uint64_t n)
{
    j->n_step += n;
    return j->n_step <= j->max_step
               ? 0
               : gr_fail(GR_E_TOO_LARGE,
                         "the text takes more than %llu steps: the vocabulary has long tokens "
                         "that it begins in too many places",
                         (unsigned long long)j->max_step);
}

int gr_job_push_bytes(struct gr_job *j, const char *p, size_t n)
{
    const struct gr_vocab *v = j->v;
    int32_t unk = v->special[GR_SPECIAL_UNK];
    bool all = true;
    for (size_t i = 0; i < n; i++)
        all = all && v->byte_id[(uint8_t)p[i]] >= 0;
    if (!all)
        return unk >= 0 ? gr_job_push(j, unk) : 0;
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++)
        rc = gr_job_push(j, v->byte_id[(uint8_t)p[i]]);
    return rc;
}

int gr_job_escape(struct gr_job *j, const char *p, size_t n)
{
    int rc = 0;
    for (size_t i = 0, end; i < n && !rc; i = end) {
        for (end = i; end < n && p[end] != ' ';)
            end++;
        rc = gr_vec_append(&j->text, p + i, end - i, 1);
        for (; end < n && p[end] == ' ' && !rc; end++)
            rc = gr_vec_append(&j->text, GR_SPACE, GR_SPACE_BYTES, 1);
    }
    return rc;
}

int gr_job_lower(struct gr_job *j, const char *p, size_t n)
{
    int rc = 0;
    for (size_t i = 0; i < n && !rc;) {
        uint32_t cp, low[2];
        char utf8[8];
        int k = gr_utf8_next(p + i, n - i, &cp);
        size_t len = k > 0 ? (size_t)k : k < 0 ? (size_t)-k : n - i, n_low = 0;
        for (size_t c = 0, count = k > 0 ? gr_char_lower(cp, low) : 0; c < count; c++)
            n_low += gr_utf8_put(low[c], utf8 + n_low);
        rc = gr_vec_append(&j->text, k > 0 ? utf8 : p + i, k > 0 ? n_low : len, 1);
        i += len;
    }
    return rc;
}
