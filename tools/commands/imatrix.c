/* gpurun imatrix: runs a text through a model and writes the importance matrix of its weights, like
 * llama.cpp's llama-imatrix; every few chunks, so that a run that ends early loses little. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "chunks.h"
#include "commands.h"
#include "tools/cli/flags.h"
#include "tools/cli/numbers.h"
#include "tools/cli/progress.h"
#include "tools/cli/say.h"

struct collection {
    const struct gr_options *o;
    struct gr_imatrix *m;
    double start;                                 /* seconds */
    bool between;                                 /* the file can be written before the end */
    bool ours;                                    /* the file exists and is from this run */
    int32_t n_done, n_counted, n_saved, n_copied; /* chunks of the text, skipped ones included */
};

/* ---- interrupts ---- */

static volatile sig_atomic_t interrupts;

/* The first interrupt ends the run after the current chunks, the second one at once. */
static void on_interrupt(int signal_number)
{
    static const char line[] = "gpurun: the chunks under way are the last; another interrupt ends "
                               "without them\n";
    (void)signal_number;
    gr_say_erase();
    if (++interrupts > 1)
        _exit(GR_EXIT_INTERRUPTED);
    (void)!write(STDERR_FILENO, line, sizeof line - 1);
}

/* ---- the file ---- */

static int save(struct collection *k, const struct gr_chunks *c, const char *path, bool overwrite)
{
    gr_imatrix_chunks(k->m, (uint32_t)(k->n_done - k->n_counted), (uint32_t)c->n_ctx);
    k->n_counted = k->n_done;
    return gr_imatrix_save(k->m, path, overwrite);
}

static void save_between(struct collection *k, const struct gr_chunks *c)
{
    const char *path = k->o->imatrix_file;
    int status = save(k, c, path, k->ours || k->o->overwrite);
    k->n_saved = k->n_done;
    k->ours |= !status;
    if (status)
        gr_say_warning("%s; %d chunks are not in a file yet", gr_error_message(), k->n_done);
    else
        gr_say("%s: %d of %d chunks", path, k->n_done, c->n_chunk);
}

static void save_copy(struct collection *k, const struct gr_chunks *c)
{
    char path[4096];
    int n = snprintf(path, sizeof path, "%s.at_%d", k->o->imatrix_file, k->n_done);
    k->n_copied = k->n_done;
    if (n >= (int)sizeof path)
        gr_say_warning("%s: the name is too long for copies", k->o->imatrix_file);
    else if (save(k, c, path, k->o->overwrite))
        gr_say_warning("%s", gr_error_message());
}

static bool is_due(int32_t n_done, int32_t n_before, int32_t every)
{
    return every > 0 && n_done - n_before >= every;
}

/* Called after each chunk; sums are complete when the chunks run at once with it are done too. */
static bool tell(const struct gr_chunks *c, int32_t i, void *user)
{
    struct collection *k = user;
    gr_bar_note("chunk %d of %d, perplexity so far %.4f, %.1f s", i + 1, c->n_chunk,
                gr_chunks_perplexity(c).value, gr_seconds() - k->start);
    bool last = i + 1 == c->n_chunk;
    if (!last && (i + 1 - c->begin) % c->n_side)
        return true;
    k->n_done = i + 1;
    if (k->between && is_due(k->n_done, k->n_copied, k->o->save_frequency))
        save_copy(k, c);
    if (k->between && !last && !interrupts && is_due(k->n_done, k->n_saved, k->o->output_frequency))
        save_between(k, c);
    return !interrupts;
}

/* ---- the command ---- */

static int finish(struct collection *k, const struct gr_chunks *c)
{
    const char *path = k->o->imatrix_file;
    struct gr_perplexity p = gr_chunks_perplexity(c);
    int status = save(k, c, path, k->ours || k->o->overwrite);
    if (status)
        return gr_say_status(status);
    gr_say("%s: %d chunks of %d tokens; perplexity of the text %.4f +/- %.4f", path,
           k->n_done - c->begin, c->n_ctx, p.value, p.error);
    if (k->n_done == c->n_chunk)
        return 0;
    gr_say_warning(
        "interrupted after chunk %d of %d: --in-file %s --from-chunk %d -o %s --overwrite "
        "goes on",
        k->n_done, c->n_chunk, path, k->n_done, path);
    return GR_EXIT_INTERRUPTED;
}

static int collect(struct gr_chunks *c, const struct gr_options *o, struct gr_imatrix *m)
{
    struct sigaction interrupt = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    struct collection k = {.o = o, .m = m, .start = gr_seconds()};
    k.n_done = k.n_counted = k.n_saved = k.n_copied = c->begin;
    k.between = !gr_output_check(o->imatrix_file, GR_OUTPUT_SEEKS); /* neither a device nor a
                                                                       FIFO */
    int status = gr_session_imatrix(c->session, m, o->process_output);
    if (!status)
        status = gr_imatrix_add_dataset(m, o->file ? o->file : "standard input");
    if (status)
        return gr_say_status(status);
    sigaction(SIGINT, &interrupt, NULL);
    int rc = gr_chunks_run(c, &(struct gr_chunk_calls){.done = tell, .user = &k});
    return rc ? rc : finish(&k, c);
}

int gr_tool_imatrix(const struct gr_options *o)
{
    struct gr_imatrix *m = NULL;
    struct gr_chunks c = {.model = NULL};
    int status = gr_imatrix_new(&m);
    for (int32_t i = 0; i < o->in_file.n && !status; i++)
        status = gr_imatrix_load(m, o->in_file.v[i]);
    int rc = status ? gr_say_status(status) : gr_chunks_open(&c, o, true, NULL);
    if (!rc)
        rc = collect(&c, o, m);
    gr_chunks_close(&c);
    gr_imatrix_free(&m);
    return rc;
}
