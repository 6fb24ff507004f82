/* gpurun perplexity: how well a model foretells a text, as llama.cpp's llama-perplexity measures
 * it: exp of the mean of -log p over the second half of every chunk; with --ppl-stride S over the
 * last S tokens of chunks that begin S tokens apart. */
#include <stdio.h>

#include "chunks.h"

struct report {
    bool json;
    double start; /* seconds */
};

static bool tell(const struct gr_chunks *c, int32_t i, void *user)
{
    const struct report *r = user;
    struct gr_perplexity p = gr_chunks_perplexity(c);
    if (i == 0) {
        double s = (gr_seconds() - r->start) / (c->n_side > c->n_chunk ? c->n_chunk : c->n_side);
        gr_say("%.3f s a chunk, about %.0f s in all", s, s * c->n_chunk);
    }
    if (r->json)
        printf("%s%.6f", i ? "," : "", p.value);
    else
        printf("[%d]%.4f,", i + 1, p.value);
    gr_out_finish();
    return true;
}

static void summarise(const struct gr_chunks *c, const struct report *r)
{
    struct gr_perplexity p = gr_chunks_perplexity(c);
    if (r->json)
        printf("],\"perplexity\":%.6f,\"error\":%.6f,\"n_chunk\":%d,\"n_ctx\":%d,\"n_tokens\":%lld,"
               "\"seconds\":%.3f}\n",
               p.value, p.error, c->n_chunk, c->n_ctx, (long long)c->n_judged,
               gr_seconds() - r->start);
    else
        printf("\nFinal estimate: PPL = %.4f +/- %.5f\n", p.value, p.error);
    gr_out_finish();
}

int gr_tool_perplexity(const struct gr_options *o)
{
    struct gr_chunks c;
    int rc = gr_chunks_open(&c, o, false);
    struct report r = {o->json, gr_seconds()};
    if (!rc) {
        gr_say("%zu tokens, %d chunks of %d, %d side by side", c.n_ids, c.n_chunk, c.n_ctx,
               c.n_side);
        if (r.json)
            printf("{\"chunks\":[");
        rc = gr_chunks_run(&c, tell, &r);
    }
    if (!rc)
        summarise(&c, &r);
    gr_chunks_close(&c);
    return rc;
}
