/* gpurun imatrix: runs a text through a model and writes what its matrices are multiplied with, as
 * llama.cpp's llama-imatrix does. */
#include <stdio.h>

#include "chunks.h"

struct report {
    const char *path;
    double start; /* seconds */
};

static void tell(const struct gr_chunks *c, int32_t i, void *user)
{
    const struct report *r = user;
    gr_say("chunk %d of %d, perplexity so far %.4f, %.1f s", i + 1, c->n_chunk,
           gr_chunks_perplexity(c).value, gr_seconds() - r->start);
}

static int collect(struct gr_chunks *c, const struct gr_options *o, struct gr_imatrix *m)
{
    struct report r = {o->file ? o->file : "standard input", gr_seconds()};
    int status = gr_session_imatrix(c->session, m, o->process_output);
    int rc = status ? gr_say_status(status) : gr_chunks_run(c, tell, &r);
    if (rc)
        return rc;
    struct gr_perplexity p = gr_chunks_perplexity(c);
    gr_imatrix_chunks(m, (uint32_t)c->n_chunk, (uint32_t)c->n_ctx);
    status = gr_imatrix_add_dataset(m, r.path);
    if (!status)
        status = gr_imatrix_save(m, o->imatrix_file, o->overwrite);
    if (status)
        return gr_say_status(status);
    gr_say("%s: %d chunks of %d tokens; perplexity of the text %.4f +/- %.4f", o->imatrix_file,
           c->n_chunk, c->n_ctx, p.value, p.error);
    return 0;
}

int gr_tool_imatrix(const struct gr_options *o)
{
    struct gr_imatrix *m = NULL;
    struct gr_chunks c = {.model = NULL};
    int status = gr_imatrix_new(&m);
    for (int32_t i = 0; i < o->in_file.n && !status; i++)
        status = gr_imatrix_load(m, o->in_file.v[i]);
    int rc = status ? gr_say_status(status) : gr_chunks_open(&c, o, true);
    if (!rc)
        rc = collect(&c, o, m);
    gr_chunks_close(&c);
    gr_imatrix_free(&m);
    return rc;
}
