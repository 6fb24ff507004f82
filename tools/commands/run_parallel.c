/* gpurun run -np: several texts side by side, each a sequence of one session. A text begins as soon
 * as another one has ended; what its prompt has in common with one in the cache is shared. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "devices.h"
#include "run.h"
#include "stages.h"
#include "tools/cli/flags.h"
#include "tools/cli/input.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/model.h"
#include "tools/cli/numbers.h"
#include "tools/cli/progress.h"
#include "tools/cli/sampler.h"
#include "tools/cli/say.h"
#include "trace.h"

#define MOST_TEXTS 65536
#define MOST_AUTO 16    /* texts at a time when -np does not say it */
#define LEAST_SHARED 16 /* tokens in common that are worth waiting for another text's prompt */

struct prompt {
    const char *text;
    size_t n;
    int32_t *ids; /* [n_ids] */
    size_t n_ids;
};

/* A sequence, and the text that it has or had last. */
struct slot {
    struct run *text; /* NULL: none yet */
    bool busy;
    int32_t last; /* its last token, not decoded yet; -1: the prompt is being read */
    int32_t row;  /* of the batch that its next token is picked from, -1: none */
    int32_t n;    /* tokens of its prompt in the batch */
    double first; /* time of its first token */
};

struct parallel {
    const struct gr_options *o;
    struct gr_options one; /* for a text alone: -c is its share */
    struct run base;       /* model and session */
    struct gr_grammar *grammar;
    char **owned; /* [n_owned] the texts that prompts lie in */
    int32_t n_owned;
    struct prompt *prompt; /* [n_prompt] */
    int32_t n_prompt, longest;
    struct run *text;                                  /* [n_text] */
    bool *ended;                                       /* [n_text] */
    int32_t n_text, n_begun, n_ended, n_shown, n_full; /* n_full: by the end of their context */
    struct slot *slot;                                 /* [n_slot] */
    int32_t n_slot, n_ctx;                             /* n_ctx: cells of each */
    int32_t n_batch, n_row;
    int32_t *token, *seq; /* [n_batch] */
    int8_t *wanted;
    double start;
};

bool gr_run_is_parallel(const struct gr_options *o)
{
    return o->given.parallel.text || o->given.sequences.text || o->given.prompt_separator.text ||
           (o->prompt && o->prompts.n > 1);
}

/* ---- prompts ---- */

static int add_prompt(struct parallel *p, const char *text, size_t n)
{
    if (p->n_prompt == MOST_TEXTS) {
        gr_say_error("more than %d prompts: give them to several runs", MOST_TEXTS);
        return GR_EXIT_USAGE;
    }
    if ((p->n_prompt & (p->n_prompt - 1)) == 0) { /* room for as many again */
        size_t room = p->n_prompt ? 2 * (size_t)p->n_prompt : 1;
        struct prompt *grown = realloc(p->prompt, room * sizeof *grown);
        if (!grown)
            return gr_say_no_memory();
        p->prompt = grown;
    }
    p->prompt[p->n_prompt++] = (struct prompt){.text = text, .n = n};
    return 0;
}

/* Each -p is a prompt. */
static int take_words(struct parallel *p)
{
    int32_t n = p->o->prompts.n;
    int rc = 0;
    for (int32_t i = 0; i < n && !rc; i++) {
        char *text = strdup(p->o->prompts.v[i]);
        if (!text)
            return gr_say_no_memory();
        p->owned[p->n_owned++] = text;
        rc = add_prompt(p, text, p->o->escape ? gr_unescape(text) : strlen(text));
    }
    return rc;
}

/* Cuts n bytes at the separator; blank lines are no prompts, nor is the end of the last line. */
static int cut(struct parallel *p, const char *text, size_t n)
{
    const char *given = p->o->prompt_separator;
    char *sep = strdup(given && *given ? given : "\n");
    if (!sep)
        return gr_say_no_memory();
    size_t n_sep = p->o->escape ? gr_unescape(sep) : strlen(sep);
    bool lines = n_sep == 1 && *sep == '\n';
    int rc = 0;
    n -= n && text[n - 1] == '\n';
    for (const char *at = text, *end = text + n; at && !rc;) {
        const char *q = n_sep ? memmem(at, (size_t)(end - at), sep, n_sep) : NULL;
        size_t length = (size_t)((q ? q : end) - at);
        length -= lines && length && at[length - 1] == '\r';
        if (length || !lines)
            rc = add_prompt(p, at, length);
        at = q ? q + n_sep : NULL;
    }
    free(sep);
    return rc;
}

static int read_prompts(struct parallel *p)
{
    bool listed = p->o->prompt && p->o->prompts.n, given;
    size_t n = 0;
    p->owned = calloc((size_t)p->o->prompts.n + 1, sizeof *p->owned);
    if (!p->owned)
        return gr_say_no_memory();
    if (listed) {
        gr_warn_unread(p->o);
        return take_words(p);
    }
    int rc = gr_read_text(p->o, &p->owned[0], &n, &given);
    if (rc)
        return rc;
    p->n_owned = 1;
    rc = p->o->prompt ? add_prompt(p, p->owned[0], n) : cut(p, p->owned[0], n);
    if (rc || (given && p->n_prompt))
        return rc;
    gr_say_error(
        "there is no prompt: each -p gives one, and each line of -f FILE or standard input");
    return GR_EXIT_USAGE;
}

static int tokenize(struct parallel *p)
{
    for (int32_t i = 0; i < p->n_prompt; i++) {
        struct prompt *q = &p->prompt[i];
        int rc = gr_text_tokenize(p->base.model, q->text, q->n, true, true, &q->ids, &q->n_ids);
        if (rc)
            return gr_say_status(rc);
        if (!q->n_ids) {
            gr_say_error("prompt %d is empty, and this model has no token to begin with: leave it "
                         "out",
                         i + 1);
            return GR_EXIT_USAGE;
        }
        if (q->n_ids > p->prompt[p->longest].n_ids)
            p->longest = i;
    }
    return 0;
}

/* ---- preparation ---- */

/* Refuses flags about one text, or about the positions of sequence 0. */
static int check_flags(const struct gr_options *o)
{
    const struct {
        bool given;
        const char *flag, *why;
    } refused[] = {
        {o->prompt_cache || o->prompt_cache_all || o->prompt_cache_ro, "--prompt-cache",
         "keeps one text"},
        {gr_run_drafts(o), "-md and --spec-type", "draft for one text"},
        {gr_length_shifts(o), "--context-shift", "moves tokens that texts share"},
        {o->grp_attn_n != 1 && gr_length_mode(o) == GR_SELF_EXTEND_CLASSIC,
         "-gan without --grp-attn-mode window", "moves positions of one text"},
        {o->profile_steps != NULL, "--profile-steps", "counts the tokens of one text"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (refused[i].given) {
            gr_say_error("%s %s, and -np writes several: leave one out", refused[i].flag,
                         refused[i].why);
            return GR_EXIT_USAGE;
        }
    }
    return 0;
}

/* Makes the texts: the prompts in turn. */
static int make_texts(struct parallel *p)
{
    const struct gr_options *o = p->o;
    bool alone = p->n_prompt == 1 && o->parallel > 0;
    p->n_text = o->sequences ? o->sequences : alone ? o->parallel : p->n_prompt;
    p->n_slot = o->parallel > 0 ? o->parallel : MOST_AUTO;
    p->n_slot = p->n_slot < p->n_text ? p->n_slot : p->n_text;
    p->text = calloc((size_t)p->n_text, sizeof *p->text);
    p->ended = calloc((size_t)p->n_text, sizeof *p->ended);
    p->slot = calloc((size_t)p->n_slot, sizeof *p->slot);
    if (!p->text || !p->ended || !p->slot)
        return gr_say_no_memory();
    uint64_t seed = gr_choose_seed(o);
    for (int32_t i = 0; i < p->n_text; i++) {
        const struct prompt *q = &p->prompt[i % p->n_prompt];
        p->text[i] = (struct run){.o = o,
                                  .model = p->base.model,
                                  .info = p->base.info,
                                  .index = i + 1,
                                  .collect = true,
                                  .seed = seed + (uint64_t)i,
                                  .text = (char *)(uintptr_t)q->text,
                                  .n_text = q->n,
                                  .prompt = q->ids,
                                  .n_prompt = q->n_ids};
    }
    return 0;
}

/* Checks that the longest prompt fits into its share of -c. */
static int check_share(const struct parallel *p, const struct gr_session_params *params)
{
    int64_t n = (int64_t)p->prompt[p->longest].n_ids, all = p->o->ctx_size;
    int64_t each = n + (p->o->n_predict > 0 ? p->o->n_predict : 1);
    char fewer[64] = "";
    if (all <= 0)
        return gr_length_admit(&p->base.length, params);
    if (n <= p->n_ctx)
        return 0;
    if (all > n && all / (n + 1) < p->n_slot)
        snprintf(fewer, sizeof fewer, ", -np %lld", (long long)(all / (n + 1)));
    gr_say_error("-c %lld gives each of %d texts side by side %d tokens, and prompt %d has %lld: "
                 "what helps: -c %lld%s, or a shorter prompt",
                 (long long)all, p->n_slot, p->n_ctx, p->longest + 1, (long long)n,
                 (long long)(each * p->n_slot), fewer);
    return 1;
}

/* Chooses the cells of each text, and with them the session's parameters. */
static int choose_params(struct parallel *p, struct gr_session_params *params)
{
    int32_t share = p->o->ctx_size / p->n_slot;
    p->one = *p->o;
    if (p->o->ctx_size > 0)
        p->one.ctx_size = share > 0 ? share : 1;
    *params = gr_session_options(&p->one);
    int rc = gr_length_choose(&p->base.length, &p->one, p->base.model, p->prompt[p->longest].n_ids,
                              params);
    if (rc)
        return rc;
    p->n_ctx = p->base.length.n_ctx;
    if (p->o->ctx_size > 0 && p->n_ctx > p->one.ctx_size)
        p->n_ctx = p->one.ctx_size;
    rc = check_share(p, params);
    if (rc)
        return rc;
    if ((int64_t)p->n_ctx * p->n_slot > 1 << 24) {
        gr_say_error("%d texts side by side of %d tokens each are more than a context of %d: what "
                     "helps: fewer at a time (-np), or a smaller -c",
                     p->n_slot, p->n_ctx, 1 << 24);
        return GR_EXIT_USAGE;
    }
    params->n_ctx = (uint32_t)(p->n_ctx * p->n_slot);
    params->n_seq_max = (uint32_t)p->n_slot;
    if (params->n_batch < params->n_seq_max)
        params->n_batch = params->n_seq_max; /* a token of each */
    return gr_run_check_keeps(&p->base, params);
}

static int open_batch(struct parallel *p)
{
    p->n_batch = (int32_t)gr_session_n_batch(p->base.session);
    p->token = calloc((size_t)p->n_batch, sizeof *p->token);
    p->seq = calloc((size_t)p->n_batch, sizeof *p->seq);
    p->wanted = calloc((size_t)p->n_batch, sizeof *p->wanted);
    return p->token && p->seq && p->wanted ? 0 : gr_say_no_memory();
}

static int open_session(struct parallel *p, const struct gr_session_params *params)
{
    struct run *r = &p->base;
    char group[64];
    gr_length_warn(&r->length, params);
    int rc = gr_session_open(&r->session, r->model, params);
    if (rc)
        return gr_say_status(rc);
    gr_model_info(r->model, &r->info);
    r->n_ctx = p->n_ctx;
    gr_say("run: %d text%s, %d side by side, context %d each (K %s, V %s)%s, batch %u / %u",
           p->n_text, p->n_text == 1 ? "" : "s", p->n_slot, p->n_ctx, p->o->cache_type_k,
           p->o->cache_type_v, gr_length_summary(&r->length, group), params->n_batch,
           params->n_ubatch);
    for (int32_t i = 0; i < p->n_text; i++) {
        p->text[i].session = r->session, p->text[i].info = r->info;
        p->text[i].n_ctx = p->n_ctx;
    }
    gr_catch_interrupts(r->session, NULL);
    rc = p->o->warmup && !p->o->dump_plan ? gr_run_warm_up(r) : 0;
    if (rc && !gr_interrupted())
        return gr_say_status(rc);
    return open_batch(p);
}

static int open_model(struct parallel *p)
{
    struct run *r = &p->base;
    int rc = gr_open_model(p->o, false, &r->model);
    if (rc)
        return rc;
    gr_model_info(r->model, &r->info);
    if (r->info.has_encoder) {
        gr_say_error("-np: a %s model reads its prompt at once, by an encoder: run one prompt at a "
                     "time",
                     r->info.arch);
        return GR_EXIT_USAGE;
    }
    rc = gr_read_grammar(p->o, r->model, &p->grammar);
    return rc ? rc : tokenize(p);
}

/* ---- beginning and ending texts ---- */

static int32_t common(const struct run *a, const struct run *b)
{
    size_t n = 0, most = a->n_prompt - 1; /* the last one gives the logits */
    most = most < b->n_prompt ? most : b->n_prompt;
    while (n < most && a->prompt[n] == b->prompt[n])
        n++;
    return (int32_t)n;
}

/* Finds the slot whose prompt has most in common with the text's, *n tokens; -1: no slot has
 * enough.
 */
static int32_t find_source(const struct parallel *p, const struct run *r, int32_t *n)
{
    int32_t source = -1;
    *n = LEAST_SHARED - 1;
    for (int32_t i = 0; i < p->n_slot; i++) {
        int32_t k = p->slot[i].text ? common(r, p->slot[i].text) : 0;
        if (k > *n)
            source = i, *n = k;
    }
    return source;
}

/* Makes sequence `seq` hold the first n tokens of sequence `source`; *n is 0 where the cache cannot
 * do that. Returns a status. */
static int share(struct gr_session *s, int32_t source, int32_t seq, int32_t *n)
{
    int rc = source == seq ? gr_kv_seq_rm(s, seq, *n, -1) : gr_kv_seq_rm(s, seq, -1, -1);
    if (!rc && source >= 0 && source != seq)
        rc = gr_kv_seq_cp(s, source, seq, 0, *n);
    if (rc != GR_E_UNSUPPORTED)
        return rc;
    *n = 0;
    return gr_kv_seq_rm(s, seq, -1, -1);
}

/* Lets a GPU draw the tokens of the sequence, where it can. */
static int set_device_sampler(struct run *r, int32_t seq)
{
    int rc = r->info.n_gpu_layers > 0 ? gr_session_set_sampler(r->session, seq, r->sampler) : 0;
    return rc == GR_E_UNSUPPORTED ? gr_session_set_sampler(r->session, seq, NULL) : rc;
}

static int open_text(struct parallel *p, struct run *r)
{
    int rc = gr_run_open_sampler(r);
    if (!rc)
        rc = gr_run_open_stream(r);
    int status = 0;
    if (!rc && p->grammar)
        status = gr_grammar_state_new(&r->grammar, p->grammar);
    if (!rc && !status)
        status = gr_run_accept_prompt(r);
    return status ? gr_say_status(status) : rc;
}

/* Begins the next text in a free slot; *begun false: it waits for a prompt that it shares. */
static int begin_text(struct parallel *p, int32_t seq, bool *begun)
{
    struct slot *slot = &p->slot[seq];
    struct run *r = &p->text[p->n_begun];
    int32_t n, source = find_source(p, r, &n);
    *begun = source < 0 || p->slot[source].text->n_read >= (size_t)n;
    if (!*begun)
        return 0;
    n = source < 0 ? 0 : n;
    int rc = share(p->base.session, source, seq, &n);
    if (rc)
        return gr_say_status(rc);
    p->n_begun++;
    *slot = (struct slot){.text = r, .busy = true, .last = -1};
    r->n_read = r->n_kept = (size_t)n;
    r->start = gr_seconds();
    rc = open_text(p, r);
    if (!rc && p->o->verbose_prompt)
        gr_run_list_prompt(r);
    int status = rc ? 0 : set_device_sampler(r, seq);
    return status ? gr_say_status(status) : rc;
}

static int begin_texts(struct parallel *p)
{
    int rc = 0;
    bool begun = true;
    for (int32_t i = 0; i < p->n_slot && p->n_begun < p->n_text && begun && !rc; i++)
        rc = p->slot[i].busy ? 0 : begin_text(p, i, &begun);
    return rc;
}

/* "=== 2 of 4: Once upon a time": the beginning of the prompt in one line. */
static void print_header(const struct parallel *p, const struct run *r)
{
    size_t n = r->n_text < 60 ? r->n_text : 60;
    char line[64];
    while (n < r->n_text && n && ((unsigned char)r->text[n] & 0xc0) == 0x80)
        n--;
    for (size_t i = 0; i < n; i++)
        line[i] = (unsigned char)r->text[i] < ' ' || r->text[i] == 127 ? ' ' : r->text[i];
    gr_print("=== %d of %d: %.*s%s\n", r->index, p->n_text, (int)n, line,
             n < r->n_text ? " .." : "");
}

static int print_text(const struct parallel *p, struct run *r)
{
    if (p->o->json)
        return gr_run_print_json(r);
    print_header(p, r);
    gr_run_show_prompt(r);
    gr_out(r->json ? r->json : "", r->n_json);
    gr_out("\n", 1);
    return 0;
}

static void close_text(struct run *r)
{
    gr_run_close_stream(r);
    gr_sampler_free(&r->sampler);
    gr_grammar_state_free(&r->grammar);
    free(r->json);
    r->json = NULL, r->n_json = r->cap_json = 0;
}

/* Prints the texts that have ended, in order. */
static int print_texts(struct parallel *p)
{
    int rc = 0;
    for (; p->n_shown < p->n_begun && p->ended[p->n_shown]; p->n_shown++) {
        struct run *r = &p->text[p->n_shown];
        int printed = print_text(p, r);
        close_text(r);
        rc = rc ? rc : printed;
    }
    return rc;
}

/* Ends the text of a slot, whose cells stay for the next one. */
static int end_text(struct parallel *p, int32_t seq)
{
    struct slot *slot = &p->slot[seq];
    struct run *r = slot->text;
    r->gen_s = slot->first > 0 ? gr_seconds() - slot->first : 0;
    int rc = gr_run_end_text(r);
    p->n_full += r->stop == STOP_CONTEXT;
    p->ended[r->index - 1] = true;
    p->n_ended++;
    slot->busy = false;
    gr_bar_add(1);
    int status = gr_session_set_sampler(r->session, seq, NULL);
    if (!rc && status)
        rc = gr_say_status(status);
    gr_sampler_free(&r->sampler);
    gr_grammar_state_free(&r->grammar);
    int printed = print_texts(p);
    return rc ? rc : printed;
}

/* After a failure or an interrupt: ends the texts that have begun, with what they have. */
static int end_texts(struct parallel *p, int failed)
{
    int rc = failed;
    for (int32_t i = 0; i < p->n_slot; i++) {
        if (!p->slot[i].busy)
            continue;
        p->slot[i].text->stop = failed ? STOP_ERROR : STOP_INTERRUPTED;
        int ended = p->slot[i].text->stream ? end_text(p, i) : 0;
        rc = rc ? rc : ended;
    }
    return rc;
}

/* ---- running ---- */

static void add_token(struct parallel *p, int32_t id, int32_t seq, bool wanted)
{
    p->token[p->n_row] = id, p->seq[p->n_row] = seq, p->wanted[p->n_row] = wanted;
    p->n_row++;
}

/* Fills the batch: the last token of each text that goes on, then as much of the prompts as there
 * is room for. */
static void fill_batch(struct parallel *p)
{
    p->n_row = 0;
    for (int32_t i = 0; i < p->n_slot; i++) {
        struct slot *slot = &p->slot[i];
        slot->row = -1, slot->n = 0;
        if (!slot->busy || slot->last < 0)
            continue;
        slot->row = p->n_row;
        add_token(p, slot->last, i, true);
    }
    for (int32_t i = 0; i < p->n_slot; i++) {
        struct slot *slot = &p->slot[i];
        const struct run *r = slot->text;
        if (!slot->busy || slot->last >= 0)
            continue;
        while (p->n_row < p->n_batch && r->n_read + (size_t)slot->n < r->n_prompt) {
            size_t at = r->n_read + (size_t)slot->n++;
            bool end = at + 1 == r->n_prompt;
            slot->row = end ? p->n_row : -1;
            add_token(p, r->prompt[at], i, end);
        }
    }
}

/* Picks the next token of a slot from the batch; *ended: it ends the text. */
static int pick_token(struct parallel *p, struct slot *slot, bool *ended)
{
    struct run *r = slot->text;
    const float *logits = gr_logits(r->session, slot->row);
    int rc = logits ? gr_sampler_pick(r->sampler, logits, &slot->last)
                    : gr_sampled_token(r->session, slot->row, &slot->last);
    if (rc)
        return gr_run_say_no_pick();
    rc = gr_sampler_accept(r->sampler, slot->last);
    if (rc)
        return gr_say_status(rc);
    rc = gr_run_put_token(r, slot->last, ended);
    if (r->n_gen == 1)
        slot->first = gr_seconds(), r->first_s = slot->first - r->start;
    if (!*ended && (int64_t)r->n_prompt + r->n_gen > p->n_ctx) {
        r->stop = STOP_CONTEXT;
        *ended = true;
    }
    return rc;
}

/* Takes the results of the batch for a slot. */
static int take_results(struct parallel *p, int32_t seq)
{
    struct slot *slot = &p->slot[seq];
    struct run *r = slot->text;
    bool ended = r->n_gen == p->o->n_predict;
    r->n_read += (size_t)slot->n;
    if (slot->row < 0)
        return 0;
    if (slot->n)
        r->prompt_s = gr_seconds() - r->start;
    int rc = ended ? 0 : pick_token(p, slot, &ended);
    return rc || !ended ? rc : end_text(p, seq);
}

static int step(struct parallel *p)
{
    int rc = begin_texts(p);
    if (rc)
        return rc;
    fill_batch(p);
    struct gr_batch batch = {
        .n_tok = p->n_row, .token = p->token, .seq = p->seq, .logits = p->wanted};
    int status = gr_decode(p->base.session, &batch);
    if (status)
        return gr_interrupted() ? 0 : gr_say_status(status);
    if (p->o->dump_kv_cache) {
        gr_say_break();
        gr_kv_dump(p->base.session, stderr);
    }
    for (int32_t i = 0; i < p->n_slot && !rc; i++)
        rc = p->slot[i].busy ? take_results(p, i) : 0;
    return rc;
}

static void say_summary(const struct parallel *p, double load_s)
{
    double seconds = gr_seconds() - p->start;
    size_t n_prompt = 0, n_shared = 0;
    int64_t n_gen = 0;
    char gpu[160];
    for (int32_t i = 0; i < p->n_begun; i++) {
        n_prompt += p->text[i].n_read, n_shared += p->text[i].n_kept;
        n_gen += p->text[i].n_gen;
    }
    if (p->n_full)
        gr_say("%d of the texts ended with their context, %d tokens: a larger -c makes room",
               p->n_full, p->n_ctx);
    if (!p->o->perf)
        return;
    gr_say("%d text%s, %d side by side | prompts %zu tok, %zu of them shared | gen %lld tok %.1f "
           "t/s | load %.2f s%s",
           p->n_ended, p->n_ended == 1 ? "" : "s", p->n_slot, n_prompt, n_shared, (long long)n_gen,
           seconds > 0 ? (double)n_gen / seconds : 0, load_s,
           gr_gpu_summary(p->base.session, gpu, sizeof gpu));
    gr_say_stages(p->base.session);
}

static int run_texts(struct parallel *p)
{
    struct gr_trace *trace = NULL;
    int rc = gr_trace_begin(&trace, p->o, p->base.session);
    if (rc)
        return rc;
    p->start = gr_seconds();
    gr_bar_begin("texts", p->n_text, GR_BAR_SHARE);
    while (p->n_ended < p->n_text && !rc && !gr_interrupted())
        rc = step(p);
    gr_bar_end();
    rc = end_texts(p, rc);
    if (p->o->dump_plan) {
        gr_say_break();
        gr_session_plans(p->base.session, stderr);
    }
    int traced = gr_trace_end(&trace);
    return rc ? rc : traced;
}

/* ---- the command ---- */

static int prepare(struct parallel *p)
{
    struct gr_session_params params;
    int rc = check_flags(p->o);
    if (!rc)
        rc = read_prompts(p);
    if (!rc)
        rc = open_model(p);
    if (!rc)
        rc = make_texts(p);
    if (!rc)
        rc = choose_params(p, &params);
    if (rc || p->o->dry_run)
        return rc ? rc : gr_print_size(p->o, p->base.model, &params);
    return open_session(p, &params);
}

static void close_all(struct parallel *p)
{
    gr_catch_interrupts(NULL, NULL);
    for (int32_t i = 0; i < p->n_text && p->text; i++)
        close_text(&p->text[i]);
    gr_grammar_free(&p->grammar);
    gr_session_close(&p->base.session);
    for (int32_t i = 0; i < p->n_prompt; i++)
        gr_free_ids(p->prompt[i].ids);
    gr_model_close(&p->base.model);
    for (int32_t i = 0; i < p->n_owned; i++)
        free(p->owned[i]);
    free((void *)p->owned);
    free(p->prompt);
    free(p->text);
    free(p->ended);
    free(p->slot);
    free(p->token);
    free(p->seq);
    free(p->wanted);
}

int gr_run_parallel(const struct gr_options *o)
{
    struct parallel p = {.o = o, .base.o = o};
    double begin = gr_seconds();
    int rc = prepare(&p);
    double load_s = gr_seconds() - begin;
    for (int32_t i = 0; i < p.n_text && p.text; i++)
        p.text[i].load_s = load_s;
    if (!rc && !o->dry_run)
        rc = run_texts(&p);
    if (!rc && !o->dry_run)
        say_summary(&p, load_s);
    close_all(&p);
    return rc ? rc : gr_interrupted() ? GR_EXIT_INTERRUPTED : 0;
}
