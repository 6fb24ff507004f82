/* The text of gpurun run's tokens, and the stop strings that end it. */
#include <stdlib.h>
#include <string.h>

#include "run.h"
#include "tools/cli/flags.h"
#include "tools/cli/input.h"
#include "tools/cli/say.h"

/* Copies the strings of --stop. */
static int copy_stops(struct run *r)
{
    struct run_stops *s = &r->stops;
    size_t n = (size_t)r->o->stop.n;
    s->found = -1;
    if (!n)
        return 0;
    s->text = calloc(n, sizeof *s->text);
    s->n_text = calloc(n, sizeof *s->n_text);
    if (!s->text || !s->n_text)
        return gr_say_no_memory();
    for (; s->n < r->o->stop.n; s->n++) {
        char *text = strdup(r->o->stop.v[s->n]);
        if (!text)
            return gr_say_no_memory();
        s->text[s->n] = text;
        s->n_text[s->n] = r->o->escape ? gr_unescape(text) : strlen(text);
    }
    return 0;
}

int gr_run_open_stream(struct run *r)
{
    struct run_stops *s = &r->stops;
    int rc = copy_stops(r);
    if (rc)
        return rc;
    rc = gr_text_stream_new(&r->stream, r->model, r->o->special || r->marks,
                            (const char *const *)s->text, s->n_text, s->n);
    if (rc != GR_E_INVALID)
        return rc ? gr_say_status(rc) : 0;
    gr_say_error("--stop: %s", gr_error_message());
    return GR_EXIT_USAGE;
}

void gr_run_close_stream(struct run *r)
{
    struct run_stops *s = &r->stops;
    gr_text_stream_free(&r->stream);
    for (int32_t i = 0; i < s->n; i++)
        free(s->text[i]);
    free((void *)s->text);
    free(s->n_text);
    *s = (struct run_stops){.found = -1};
}
