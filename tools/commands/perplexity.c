/* gpurun perplexity: perplexity of a text, as measured by llama.cpp's llama-perplexity: exp of the
 * mean of -log p over the second half of every chunk; with --ppl-stride S over the last S tokens of
 * chunks that begin S tokens apart. With --kl-divergence also the divergence of its probabilities
 * from those of another model, written by --kl-divergence-base. */
#include <stdio.h>
#include <unistd.h>

#include "base_file.h"
#include "chunks.h"
#include "commands.h"
#include "kld.h"
#include "length.h"
#include "tools/cli/flags.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/numbers.h"
#include "tools/cli/progress.h"
#include "tools/cli/say.h"

struct measurement {
    const struct gr_options *o;
    struct gr_chunks chunks;
    struct gr_base_file base; /* written, or with --kl-divergence read */
    bool compares, writes;
    bool bar; /* the progress bar shows the perplexity of each chunk */
    struct gr_kld kld;
    double start; /* seconds */
};

/* ---- callbacks of chunks ---- */

static int take(const struct gr_chunks *c, const struct gr_judged *j, void *user)
{
    struct measurement *m = user;
    struct gr_base_row row;
    if (m->writes)
        return gr_base_put(&m->base, j->logits, j->log_sum);
    int rc = m->compares ? gr_base_next(&m->base, &row) : 0;
    if (!rc && m->compares)
        gr_kld_add(&m->kld, j->logits, j->log_sum, &row, c->n_vocab, j->came);
    return rc;
}

static bool tell(const struct gr_chunks *c, int32_t i, void *user)
{
    struct measurement *m = user;
    struct gr_perplexity p = gr_chunks_perplexity(c);
    bool first = i == c->begin;
    if (first) {
        double s = (gr_seconds() - m->start) / c->n_side;
        gr_say("%.3f s a chunk, about %.0f s in all", s, s * (c->n_chunk - c->begin));
    }
    if (m->o->json)
        gr_print("%s", first ? "{\"chunks\":[" : ",");
    gr_kld_complete(&m->kld);
    if (m->bar)
        gr_bar_note("chunk %d of %d, perplexity so far %.4f", i + 1, c->n_chunk, p.value);
    else if (m->compares)
        gr_kld_print_chunk(&m->kld, i, m->o->json);
    else if (m->o->json)
        gr_print("%.6f", p.value);
    else
        gr_print("[%d]%.4f,", i + 1, p.value);
    return true;
}

/* ---- the end ---- */

static void end_json(struct measurement *m, const char *stop)
{
    const struct gr_chunks *c = &m->chunks;
    struct gr_perplexity p = gr_chunks_perplexity(c);
    char value[32], error[32];
    gr_print("%s],\"perplexity\":%s,\"error\":%s", c->n_done > c->begin ? "" : "{\"chunks\":[",
             gr_json_number(value, p.value), gr_json_number(error, p.error));
    if (m->compares && c->n_done > c->begin)
        gr_kld_report(&m->kld, true);
    gr_print(",\"n_chunk\":%d,\"n_ctx\":%d,\"n_tokens\":%lld,\"stop\":\"%s\",\"seconds\":%.3f}\n",
             c->n_done - c->begin, c->n_ctx, (long long)c->whole.n, stop, gr_seconds() - m->start);
}

static void end_text(struct measurement *m)
{
    const struct gr_chunks *c = &m->chunks;
    struct gr_perplexity p = gr_chunks_perplexity(c);
    char part[64] = "";
    if (c->n_done == c->begin)
        return;
    if (c->n_done < c->n_chunk)
        snprintf(part, sizeof part, " of %d of %d chunks", c->n_done - c->begin,
                 c->n_chunk - c->begin);
    if (m->compares)
        gr_kld_report(&m->kld, false);
    gr_print("%sFinal estimate%s: PPL = %.4f +/- %.5f\n", m->bar ? "" : "\n", part, p.value,
             p.error);
}

/* Prints the results of complete chunks, even when the run failed. */
static void summarise(struct measurement *m, int rc)
{
    const struct gr_chunks *c = &m->chunks;
    const char *stop = !rc ? "end" : rc == GR_EXIT_INTERRUPTED ? "interrupted" : "error";
    const char *ended = rc == GR_EXIT_INTERRUPTED ? "interrupted" : "failed";
    if (m->o->json)
        end_json(m, stop);
    else
        end_text(m);
    gr_out_finish();
    if (!rc)
        return;
    if (c->n_done > c->begin)
        gr_say_warning("%s after chunk %d of %d: --from-chunk %d measures the others", ended,
                       c->n_done, c->n_chunk, c->n_done);
    else
        gr_say_warning("%s before a chunk was complete", ended);
    if (m->writes)
        gr_say_warning("%s is not written: it would lack chunks; --chunks N asks for fewer",
                       m->base.path);
}

/* ---- the command ---- */

static int check_flags(const struct gr_options *o)
{
    if (o->kl_divergence > 0 && !o->base_file) {
        gr_say_error("--kl-divergence needs the file that is compared with: --kl-divergence-base "
                     "FILE");
        return GR_EXIT_USAGE;
    }
    if (o->base_file && o->ppl_stride > 0) {
        gr_say_error("--ppl-stride and --kl-divergence-base judge other tokens: leave one out");
        return GR_EXIT_USAGE;
    }
    return 0;
}

static int prepare(struct measurement *m)
{
    struct gr_chunks *c = &m->chunks;
    const struct gr_options *o = m->o;
    int rc = check_flags(o);
    if (!rc && m->compares)
        rc = gr_base_read(&m->base, o->base_file);
    if (!rc)
        rc = gr_chunks_open(c, o, false, m->compares ? &m->base : NULL);
    if (!rc && m->compares)
        rc = gr_base_skip(&m->base, c->begin);
    if (!rc && m->compares)
        rc = gr_kld_init(&m->kld, gr_chunks_n_judged(c));
    if (rc || !m->writes)
        return rc;
    m->base = (struct gr_base_file){.path = o->base_file,
                                    .n_ctx = c->n_ctx,
                                    .n_vocab = c->n_vocab,
                                    .n_chunk = c->n_chunk - c->begin};
    return gr_base_begin(&m->base, c->ids + (size_t)c->begin * (size_t)c->n_ctx, o->overwrite > 0);
}

static int measure(struct measurement *m)
{
    struct gr_chunks *c = &m->chunks;
    struct gr_chunk_calls calls = {take, tell, m};
    char group[64];
    gr_say("%zu tokens, %d chunks of %d, %d side by side%s", c->n_ids, c->n_chunk - c->begin,
           c->n_ctx, c->n_side, gr_length_summary(&c->length, group));
    if (m->compares && !m->o->json)
        gr_kld_head();
    gr_catch_interrupts(c->session, NULL);
    m->start = gr_seconds();
    int rc = gr_chunks_run(c, &calls);
    gr_catch_interrupts(NULL, NULL);
    summarise(m, rc);
    return rc || !m->writes ? rc : gr_base_commit(&m->base);
}

int gr_tool_perplexity(const struct gr_options *o)
{
    struct measurement m = {
        .o = o, .compares = o->kl_divergence > 0, .writes = o->base_file && o->kl_divergence <= 0};
    m.bar = !o->json && !m.compares && gr_bar_is_shown() && gr_is_terminal(STDOUT_FILENO);
    int rc = prepare(&m);
    if (!rc)
        rc = measure(&m);
    gr_kld_fini(&m.kld);
    gr_chunks_close(&m.chunks);
    gr_base_close(&m.base);
    return rc;
}
