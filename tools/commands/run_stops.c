/* The stop strings of gpurun run. */
#include <stdlib.h>
#include <string.h>

#include "run.h"
#include "tools/cli/flags.h"
#include "tools/cli/input.h"
#include "tools/cli/say.h"

/* Returns the token whose name the string is, of those that have no text of their own: -1: none. */
static int32_t control_token(const struct run *r, const char *text, size_t n)
{
    int32_t *id = NULL, token = -1;
    size_t n_id = 0, n_plain = 1;
    const char *p;
    if (!gr_text_tokenize(r->model, text, n, false, true, &id, &n_id) && n_id == 1 &&
        !gr_text_piece(r->model, id[0], false, &p, &n_plain) && !n_plain)
        token = id[0];
    gr_free_ids(id);
    return token;
}

int gr_run_open_stops(struct run *r)
{
    struct run_stops *s = &r->stops;
    size_t n = (size_t)r->o->stop.n;
    s->found = -1;
    if (!n)
        return 0;
    s->text = calloc(n, sizeof *s->text);
    s->n_text = calloc(n, sizeof *s->n_text);
    s->token = calloc(n, sizeof *s->token);
    if (!s->text || !s->n_text || !s->token)
        return gr_say_no_memory();
    for (; s->n < r->o->stop.n; s->n++) {
        char *text = strdup(r->o->stop.v[s->n]);
        if (!text)
            return gr_say_no_memory();
        s->text[s->n] = text;
        s->n_text[s->n] = r->o->escape ? gr_unescape(text) : strlen(text);
        s->token[s->n] = control_token(r, text, s->n_text[s->n]);
    }
    int rc = gr_stop_new(&s->match, (const char *const *)s->text, s->n_text, s->n);
    if (!rc)
        return 0;
    gr_say_error("--stop: %s", gr_error_message());
    return rc == GR_E_INVALID ? GR_EXIT_USAGE : gr_status_exit(rc);
}

bool gr_run_is_stop(struct run *r, int32_t id)
{
    struct run_stops *s = &r->stops;
    for (int32_t i = 0; i < s->n; i++) {
        if (s->token[i] == id && s->found < 0)
            s->found = i, r->stop = STOP_STRING;
    }
    return r->stop == STOP_STRING;
}

void gr_run_close_stops(struct run *r)
{
    struct run_stops *s = &r->stops;
    gr_stop_free(&s->match);
    for (int32_t i = 0; i < s->n; i++)
        free(s->text[i]);
    free((void *)s->text);
    free(s->n_text);
    free(s->token);
    *s = (struct run_stops){.found = -1};
}
