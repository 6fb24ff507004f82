#include "session.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpurun.h"

/* Cells have numbers; a cell of several sequences is counted once. */
struct sequence {
    int32_t *cell; /* [n] by position */
    int32_t n, capacity;
};

struct gr_session {
    struct sim_machine *machine;
    struct sequence *seq; /* [n_seq] */
    int32_t n_seq;
    int32_t *n_holder; /* [n_cell] sequences that have a cell */
    int32_t *empty;    /* [n_empty] cells that none has */
    uint32_t n_cell, n_empty;
    struct sim_part *part; /* of a step; as many as there are tokens at most */
    int32_t n_part;
    double end[SIM_STAGES]; /* of the steps in flight, [n_pending] from `oldest` on in a ring */
    int32_t oldest, n_pending;
};

struct gr_sampler {
    int32_t token, left;
};

enum { END = 0 /* token that ends texts */ };

/* ---- time ---- */

const struct sim_machine *sim_clock;

int __real_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    int64_t ns = sim_clock ? (int64_t)sim_clock->now : 0;
    (void)clock;
    t->tv_sec = ns / 1000000000, t->tv_nsec = ns % 1000000000;
    return 0;
}

int64_t sim_thread_ns(void)
{
    struct timespec t;
    __real_clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* ---- the session ---- */

struct gr_session *sim_session_open(struct sim_machine *m, uint32_t n_cell, int32_t n_seq)
{
    struct gr_session *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->machine = m;
    s->n_cell = s->n_empty = n_cell, s->n_seq = n_seq;
    s->seq = calloc((size_t)n_seq, sizeof *s->seq);
    s->n_holder = calloc(n_cell, sizeof *s->n_holder);
    s->empty = malloc(n_cell * sizeof *s->empty);
    if (!s->seq || !s->n_holder || !s->empty)
        sim_session_close(&s);
    for (uint32_t i = 0; s && i < n_cell; i++)
        s->empty[i] = (int32_t)i;
    return s;
}

void sim_session_close(struct gr_session **s)
{
    if (!*s)
        return;
    for (int32_t i = 0; (*s)->seq && i < (*s)->n_seq; i++)
        free((*s)->seq[i].cell);
    free((*s)->seq);
    free((*s)->n_holder);
    free((*s)->empty);
    free((*s)->part);
    free(*s);
    *s = NULL;
}

static bool reserve(struct sequence *q, int32_t n)
{
    if (q->n + n <= q->capacity)
        return true;
    int32_t capacity = 2 * q->capacity + n;
    int32_t *cell = realloc(q->cell, (size_t)capacity * sizeof *cell);
    if (cell)
        q->cell = cell, q->capacity = capacity;
    return cell;
}

/* Collects the parts of a batch: tokens that follow each other in a sequence. Returns a status;
 * positions that do not follow the sequence's cells are a fault of the scheduler. */
static int collect(struct gr_session *s, const struct gr_batch *b)
{
    struct sim_part *part = realloc(s->part, (size_t)b->n_tok * sizeof *part);
    if (!part)
        return GR_E_NOMEM_HOST;
    s->part = part, s->n_part = 0;
    for (int32_t i = 0; i < b->n_tok; i++) {
        bool more = i && b->seq[i] == b->seq[i - 1];
        if (!more)
            part[s->n_part++] = (struct sim_part){0, s->seq[b->seq[i]].n};
        struct sim_part *p = &part[s->n_part - 1];
        if (b->pos[i] != p->past + p->n++)
            return GR_E_INVALID;
    }
    return (uint32_t)b->n_tok > s->n_empty ? GR_E_KV_FULL : 0;
}

/* Gives the tokens of a batch their cells. */
static int take_cells(struct gr_session *s, const struct gr_batch *b)
{
    int rc = collect(s, b);
    for (int32_t i = 0; i < b->n_tok && !rc; i++) {
        struct sequence *q = &s->seq[b->seq[i]];
        if (!reserve(q, 1))
            return GR_E_NOMEM_HOST;
        q->cell[q->n] = s->empty[--s->n_empty];
        s->n_holder[q->cell[q->n++]] = 1;
    }
    return rc;
}

int gr_decode(struct gr_session *s, const struct gr_batch *b)
{
    int rc = take_cells(s, b);
    if (!rc)
        sim_machine_step(s->machine, s->part, s->n_part);
    return rc;
}

int gr_decode_begin(struct gr_session *s, const struct gr_batch *b)
{
    int rc = s->n_pending < SIM_STAGES ? take_cells(s, b) : GR_E_INVALID;
    if (!rc)
        s->end[(s->oldest + s->n_pending++) % SIM_STAGES] =
            sim_machine_begin(s->machine, s->part, s->n_part);
    return rc;
}

int gr_decode_end(struct gr_session *s)
{
    double end = s->end[s->oldest];
    if (!s->n_pending--)
        return GR_E_INVALID;
    s->oldest = (s->oldest + 1) % SIM_STAGES;
    s->machine->now = end > s->machine->now ? end : s->machine->now;
    return 0;
}

int gr_kv_seq_rm(struct gr_session *s, int32_t seq, int32_t p0, int32_t p1)
{
    struct sequence *q = &s->seq[seq];
    if (p1 >= 0)
        return GR_E_UNSUPPORTED;
    while (q->n > (p0 > 0 ? p0 : 0)) {
        int32_t cell = q->cell[--q->n];
        if (!--s->n_holder[cell])
            s->empty[s->n_empty++] = cell;
    }
    return 0;
}

int gr_kv_seq_cp(struct gr_session *s, int32_t from, int32_t to, int32_t p0, int32_t p1)
{
    struct sequence *q = &s->seq[to];
    if (p0 || q->n || p1 > s->seq[from].n)
        return GR_E_UNSUPPORTED;
    if (!reserve(q, p1))
        return GR_E_NOMEM_HOST;
    memcpy(q->cell, s->seq[from].cell, (size_t)p1 * sizeof *q->cell);
    for (q->n = 0; q->n < p1; q->n++)
        s->n_holder[q->cell[q->n]]++;
    return 0;
}

uint32_t gr_kv_used(const struct gr_session *s)
{
    return s->n_cell - s->n_empty;
}

uint32_t gr_session_n_ctx(const struct gr_session *s)
{
    return s->n_cell;
}

uint32_t gr_session_n_ctx_seq(const struct gr_session *s)
{
    return s->n_cell;
}

struct gr_kv_count gr_kv_seq_count(const struct gr_session *s, int32_t seq)
{
    return (struct gr_kv_count){.n_cell = (uint32_t)s->seq[seq].n};
}

const float *gr_logits(const struct gr_session *s, int32_t i)
{
    static const float none;
    (void)s, (void)i;
    return &none;
}

/* ---- samplers and texts ---- */

struct gr_sampler *sim_sampler_new(int32_t token, int32_t n)
{
    struct gr_sampler *s = malloc(sizeof *s);
    if (s)
        *s = (struct gr_sampler){token, n};
    return s;
}

int gr_sampler_pick(struct gr_sampler *s, const float *logits, int32_t *id)
{
    (void)logits;
    *id = --s->left > 0 ? s->token : END;
    return 0;
}

int gr_sampler_accept(struct gr_sampler *s, int32_t id)
{
    (void)s, (void)id;
    return 0;
}

int gr_sampler_set_grammar(struct gr_sampler *s, struct gr_grammar_state *grammar)
{
    (void)s, (void)grammar;
    return 0;
}

void gr_sampler_free(struct gr_sampler **s)
{
    free(*s);
    *s = NULL;
}

bool gr_text_is_eog(const struct gr_model *model, int32_t id)
{
    (void)model;
    return id == END;
}

void gr_model_info(const struct gr_model *model, struct gr_model_info *info)
{
    (void)model;
    *info = (struct gr_model_info){.n_vocab = 1};
}

int gr_detok_new(struct gr_detok **out, const struct gr_model *model, bool special)
{
    (void)model, (void)special;
    *out = NULL;
    return 0;
}

void gr_detok_free(struct gr_detok **d)
{
    (void)d;
}

int gr_detok_push(struct gr_detok *d, int32_t id, const char **p, size_t *n)
{
    (void)d, (void)id;
    *p = "", *n = 0;
    return 0;
}

int gr_detok_flush(struct gr_detok *d, const char **p, size_t *n)
{
    return gr_detok_push(d, 0, p, n);
}

/* ---- for nobody here: no grammar, stop string, Self-Extend, conversation or file ---- */

void gr_grammar_state_free(struct gr_grammar_state **g)
{
    (void)g;
}

void gr_stop_free(struct gr_stop **s)
{
    (void)s;
}

int gr_stop_push(struct gr_stop *s, const char *text, size_t n, const char **p, size_t *n_out,
                 int32_t *found)
{
    (void)s, (void)text, (void)n, (void)p, (void)n_out, (void)found;
    return GR_E_UNSUPPORTED;
}

void gr_stop_flush(struct gr_stop *s, const char **p, size_t *n)
{
    (void)s, (void)p;
    *n = 0;
}

int32_t gr_kv_seq_pos_max(const struct gr_session *s, int32_t seq)
{
    return s->seq[seq].n - 1;
}

int32_t gr_kv_seq_cut_min(const struct gr_session *s, int32_t seq)
{
    (void)s, (void)seq;
    return 0;
}
