/* gpurun run: continues a prompt; the text goes to stdout. */
#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "length.h"
#include "prompt_cache.h"
#include "tools/cli/flags.h"
#include "tools/cli/input.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/model.h"
#include "tools/cli/numbers.h"
#include "tools/cli/progress.h"
#include "tools/cli/sampler.h"
#include "tools/cli/say.h"
#include "trace.h"

#define SAMPLE_PROMPT "Once upon a time"

/* ---- preparation ---- */

static int read_prompt(struct run *r)
{
    bool given;
    int rc = gr_read_text(r->o, &r->text, &r->n_text, &given);
    if (rc)
        return rc;
    /* The newline at the end of a file or of standard input is not part of the prompt. */
    if (!r->o->prompt && r->n_text && r->text[r->n_text - 1] == '\n')
        r->text[--r->n_text] = 0;
    if (r->n_text || r->o->prompt || r->o->model)
        return 0;
    free(r->text);
    r->sample = true;
    r->text = strdup(SAMPLE_PROMPT);
    r->n_text = r->text ? strlen(r->text) : 0;
    return r->text ? 0 : gr_say_no_memory();
}

static int tokenize_prompt(struct run *r)
{
    int rc = gr_text_tokenize(r->model, r->text, r->n_text, true, true, &r->prompt, &r->n_prompt);
    if (rc)
        return gr_say_status(rc);
    if (!r->n_prompt) {
        gr_say_error(
            "the prompt is empty, and this model has no token to begin with; give one by -p or -f");
        return GR_EXIT_USAGE;
    }
    return 0;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int gr_run_check_keeps(const struct run *r, const struct gr_session_params *p)
{
    struct gr_session_size size;
    int status = gr_session_size(r->model, p, &size);
    if (status || size.total)
        return status ? gr_say_status(status) : 0;
    gr_say_error("a %s model looks at a whole text at once and keeps nothing of it: it cannot "
                 "continue one; gpurun %s",
                 r->info.arch,
                 r->info.no_logits ? "embed gives its vectors" : "replay gives its logits");
    return gr_status_exit(GR_E_UNSUPPORTED);
}

static void say_plan(const struct run *r, const struct gr_session_params *p)
{
    char where[256] = "CPU", group[64], threads[32] = "a thread for each processor";
    if (*r->info.where)
        snprintf(where, sizeof where, "%s", r->info.where);
    else if (r->info.n_gpu_layers > 0)
        snprintf(where, sizeof where, "%d of %d layers on the GPU", r->info.n_gpu_layers,
                 r->info.n_layer + 1);
    if (p->n_threads > 0)
        snprintf(threads, sizeof threads, "%d thread%s", p->n_threads,
                 p->n_threads == 1 ? "" : "s");
    gr_say("%s: %s, %s (%s), context %d (K %s, V %s)%s, batch %u / %u", r->chat ? "chat" : "run",
           where, threads, gr_cpu_instructions(r->o->cpu_level), r->n_ctx, r->o->cache_type_k,
           r->o->cache_type_v, gr_length_summary(&r->length, group), p->n_batch, p->n_ubatch);
}

/* Returns the number of tokens that a context shift keeps: --keep, and BOS. */
static int32_t shift_keep(const struct run *r)
{
    int32_t keep = r->o->keep < 0 ? (int32_t)r->n_prompt : r->o->keep;
    bool begun = r->n_prompt && r->prompt[0] == gr_text_bos(r->model);
    return keep < INT32_MAX && begun ? keep + 1 : keep;
}

/* Makes one batch hold the whole prompt, for an encoder; refuses --prompt-cache with one. */
static int fit_encoder(const struct run *r, struct gr_session_params *p)
{
    if (r->info.has_encoder && r->cache.path) {
        gr_say_error("--prompt-cache: a %s model reads its prompt at once, no part of it can be "
                     "kept for another one; leave it out",
                     r->info.arch);
        return GR_EXIT_USAGE;
    }
    if (r->info.has_encoder && p->n_ubatch < r->n_prompt)
        p->n_batch = p->n_ubatch = (uint32_t)r->n_prompt;
    return 0;
}

static size_t count_control(const struct run *r, const int32_t *id, size_t n_id)
{
    size_t n_control = 0, n;
    const char *p;
    for (size_t i = 0; i < n_id; i++)
        n_control += !gr_text_piece(r->model, id[i], false, &p, &n) && n == 0;
    return n_control;
}

/* Prints a hint that the model's chat template is not applied, unless the prompt has control tokens
 * beyond those of every text. */
static void hint_at_template(const struct run *r)
{
    int32_t *id = NULL;
    size_t n = 0;
    bool plain = !r->chat && r->info.has_template &&
                 !gr_text_tokenize(r->model, "", 0, true, true, &id, &n) &&
                 count_control(r, r->prompt, r->n_prompt) <= count_control(r, id, n);
    if (plain)
        gr_say(
            "the model has a chat template, which run does not apply: the prompt is continued as "
            "it is; gpurun chat, or -cnv, has it answered");
    gr_free_ids(id);
}

static int choose_params(struct run *r, struct gr_session_params *p)
{
    *p = gr_session_options(r->o);
    if (r->cache.path && !p->n_rollback)
        p->n_rollback = 1; /* a prompt completely in the file must run its last token again */
    gr_run_draft_params(r, p);
    int rc = gr_length_choose(&r->length, r->o, r->model, r->n_prompt, p);
    const struct gr_length *l = &r->length;
    r->n_ctx = l->n_ctx;
    r->extend = gr_length_classic(l);
    if (!rc)
        rc = fit_encoder(r, p);
    return rc ? rc : gr_run_check_keeps(r, p);
}

static int open_session(struct run *r)
{
    struct gr_session_params p;
    int rc = choose_params(r, &p);
    if (!rc)
        rc = gr_length_admit(&r->length, &p);
    if (rc)
        return rc;
    r->params = p;
    gr_length_warn(&r->length, &p);
    rc = gr_session_open(&r->session, r->model, &p);
    if (!rc)
        rc = gr_self_extend(r->session, &r->extend, &r->n_past); /* validates n and w */
    if (!rc && gr_length_shifts(r->o))
        rc = gr_context_can_shift(r->session, 0, shift_keep(r));
    if (rc)
        return gr_say_status(rc);
    gr_model_info(r->model, &r->info); /* the layers on the GPU are known now */
    say_plan(r, &p);
    hint_at_template(r);
    return 0;
}

/* Opens the model and tokenizes the prompt; a dry run with -c needs no prompt. */
static int open_model(struct run *r)
{
    int rc = gr_open_model(r->o, false, &r->model);
    if (rc)
        return rc;
    gr_model_info(r->model, &r->info);
    if (r->o->dry_run && r->o->ctx_size >= 0)
        return 0;
    rc = gr_open_grammar(r->o, r->model, &r->grammar);
    return rc || r->chat ? rc : tokenize_prompt(r);
}

/* --dry-run: prints the size of the cache without opening a session. */
static int print_size(struct run *r)
{
    struct gr_session_params p;
    int rc = open_model(r);
    if (!rc)
        rc = choose_params(r, &p);
    return rc ? rc : gr_print_size(r->o, r->model, &p);
}

/* ---- running ---- */

/* Decodes n tokens after n_past. next: a token follows, which a GPU draws where it can; otherwise
 * no output of the batch is used, and the next batch may follow it through the stages of several
 * ranks. */
static int decode(struct run *r, const int32_t *ids, int32_t n, bool next)
{
    struct gr_batch batch = {.n_tok = n, .token = ids};
    r->drawn = next && !r->draft && r->info.n_gpu_layers > 0 &&
               gr_session_set_sampler(r->session, 0, r->sampler) == 0;
    int rc = r->drawn ? 0 : gr_session_set_sampler(r->session, 0, NULL);
    if (!rc)
        rc = gr_decode_begin(r->session, &batch);
    if (rc)
        return rc;
    r->n_pending++;
    rc = gr_end_batches(r->session, &r->n_pending, next ? 0 : GR_MOST_PENDING);
    if (rc)
        return rc;
    r->n_past += n;
    gr_prompt_cache_add(&r->cache, ids, n);
    if (r->o->dump_kv_cache) {
        gr_say_break();
        gr_kv_dump(r->session, stderr);
    }
    return 0;
}

int gr_run_warm_up(struct run *r)
{
    int32_t bos = gr_text_bos(r->model), eos = gr_text_eos(r->model), ids[2] = {0}, n = 0;
    if (bos >= 0)
        ids[n++] = bos;
    if (eos >= 0 && n < smaller(r->o->batch_size, r->n_ctx))
        ids[n++] = eos;
    struct gr_batch batch = {.n_tok = n ? n : 1, .token = ids};
    gr_bar_begin("warm-up", batch.n_tok, GR_BAR_SHARE);
    gr_bar_watch(r->session);
    int rc = gr_decode(r->session, &batch);
    gr_bar_end();
    gr_kv_clear(r->session);
    return rc;
}

/* Drops the older half of what follows the first tokens that are kept. */
static int shift_context(struct run *r)
{
    int32_t before = r->n_past, keep = shift_keep(r);
    int rc = gr_context_shift(r->session, 0, keep, 0, &r->n_past);
    gr_prompt_cache_shift(&r->cache, keep, before - r->n_past);
    return rc;
}

/* Makes room for at least one more token, with --context-shift; *room receives the number of free
 * cells. */
static int make_room(struct run *r, int32_t *room)
{
    int rc = 0;
    *room = r->n_ctx - (int32_t)gr_kv_used(r->session);
    if (*room <= 0 && gr_length_shifts(r->o)) {
        rc = shift_context(r);
        *room = r->n_ctx - (int32_t)gr_kv_used(r->session);
    }
    return rc;
}

/* Runs the prompt in pieces: of -b tokens at most, with Self-Extend up to the end of the window
 * that is filling, with --context-shift up to the end of the context. */
static int run_prompt(struct run *r)
{
    int rc = gr_run_accept_prompt(r);
    while (r->n_read < r->n_prompt && !rc && !gr_interrupted()) {
        int32_t n, room;
        rc = make_room(r, &room);
        if (!rc)
            rc = gr_self_extend(r->session, &r->extend, &r->n_past);
        n = (int32_t)smaller((int64_t)(r->n_prompt - r->n_read), r->o->batch_size);
        n = (int32_t)smaller(n, smaller(room, gr_self_extend_remaining(&r->extend, r->n_past)));
        if (!rc)
            rc = decode(r, r->prompt + r->n_read, n, r->n_read + (size_t)n == r->n_prompt);
        if (rc)
            break;
        r->n_read += (size_t)n;
        gr_say_debug("n_past = %d", r->n_past); /* llama.cpp's words */
        gr_say_debug("embd_inp.size(): %zu, n_consumed: %zu", r->n_prompt, r->n_read);
        gr_bar_add(n);
    }
    int ended = gr_end_batches(r->session, &r->n_pending, 0); /* after an interrupt */
    return rc ? rc : ended;
}

/* Models with an encoder: it reads the prompt, and the decoder's text begins with its start
 * token. */
static int encode_prompt(struct run *r)
{
    struct gr_batch text = {.n_tok = (int32_t)r->n_prompt, .token = r->prompt};
    if (!r->info.has_encoder)
        return 0;
    int rc = gr_encode(r->session, &text);
    r->n_encoded = rc ? 0 : r->n_prompt;
    r->prompt[0] = r->info.decoder_start, r->n_prompt = 1;
    return rc;
}

/* --profile-steps */
static int read_profile_steps(struct run *r)
{
    const char *text = r->o->profile_steps;
    int n = 0;
    r->profile_from = r->profile_to = -1;
    if (!text || (sscanf(text, "%d:%d%n", &r->profile_from, &r->profile_to, &n) == 2 && !text[n] &&
                  r->profile_from >= 0 && r->profile_to > r->profile_from))
        return 0;
    gr_say_error("--profile-steps: two numbers A:B with A below B expected, '%s' found", text);
    return GR_EXIT_USAGE;
}

/* Starts or stops the profiler before the next token of the generation. */
static int profile_step(struct run *r)
{
    bool wanted = r->n_gen >= r->profile_from && r->n_gen < r->profile_to;
    if (wanted == r->profiling)
        return 0;
    r->profiling = wanted;
    return gr_session_profile(r->session, wanted);
}

/* Picks the token behind the last batch; 0 or an exit code, after printing the error. */
static int pick_token(struct run *r, int32_t *id)
{
    int rc = r->drawn ? gr_sampled_token(r->session, -1, id)
                      : gr_sampler_pick(r->sampler, gr_logits(r->session, -1), id);
    if (rc)
        return gr_run_say_no_pick();
    rc = gr_sampler_accept(r->sampler, *id);
    if (!rc && r->draft)
        rc = gr_draft_accept(r->draft, id, 1);
    return rc ? gr_say_status(rc) : 0;
}

/* Removes the last n tokens from the session, which were accepted behind the end of the text. */
static int drop_tokens(struct run *r, int32_t n)
{
    if (!n)
        return 0;
    int rc = gr_kv_seq_rm(r->session, 0, r->n_past - n, -1);
    if (rc)
        return gr_say_status(rc);
    r->n_past -= n;
    gr_prompt_cache_drop(&r->cache, n);
    return 0;
}

/* Decodes the token *id and writes those that follow, one without drafts. *id: the last of them.
 * 0 or an exit code, after printing the error; an interrupt is none. */
static int next_tokens(struct run *r, int32_t room, int32_t *id, bool *ended)
{
    int32_t ids[GR_MAX_DRAFT + 1], n = 1, n_written = 0;
    ids[0] = *id;
    int rc = r->draft ? gr_run_draft_step(r, *id, room, ids, &n) : decode(r, id, 1, true);
    if (rc)
        return gr_interrupted() ? 0 : rc == GR_E_CHECK ? gr_run_say_no_pick() : gr_say_status(rc);
    if (!r->draft && gr_interrupted())
        return 0;
    if (!r->draft)
        rc = pick_token(r, ids);
    while (n_written < n && !rc && !*ended)
        rc = gr_run_put_token(r, ids[n_written++], ended);
    *id = ids[n - 1];
    return rc ? rc : drop_tokens(r, n - n_written);
}

/* Makes room for the next token; *ended: there is none. */
static int prepare_next(struct run *r, int32_t *room, bool *ended)
{
    int rc = make_room(r, room);
    if (!rc && *room <= 0) {
        r->stop = STOP_CONTEXT;
        *ended = true;
        return 0;
    }
    if (!rc)
        rc = gr_self_extend(r->session, &r->extend, &r->n_past);
    if (!rc)
        rc = profile_step(r);
    return rc && !gr_interrupted() ? gr_say_status(rc) : 0;
}

static int generate(struct run *r)
{
    double begin = gr_seconds();
    bool ended = r->n_gen == r->o->n_predict || gr_interrupted();
    int32_t room = 0, id = 0;
    int rc = 0;
    r->stop = STOP_LENGTH;
    if (!ended) {
        rc = pick_token(r, &id);
        if (!rc)
            rc = gr_run_put_token(r, id, &ended);
        begin = gr_seconds(), r->first_s = begin - r->start;
    }
    while (!rc && !ended && !gr_interrupted()) {
        rc = prepare_next(r, &room, &ended);
        if (!rc && !ended)
            rc = next_tokens(r, room, &id, &ended);
    }
    r->gen_s = gr_seconds() - begin;
    int status = 0;
    if (!rc && r->profiling)
        status = gr_session_profile(r->session, false);
    return status ? gr_say_status(status) : rc;
}

/* ---- the command ---- */

static int prepare(struct run *r)
{
    double begin = gr_seconds();
    int rc = open_model(r);
    if (!rc)
        rc = open_session(r);
    if (!rc)
        rc = gr_run_open_sampler(r);
    if (!rc)
        rc = gr_run_open_stream(r);
    if (!rc)
        rc = gr_run_open_drafts(r);
    if (rc)
        return rc;
    if (r->o->verbose_prompt && !r->chat)
        gr_run_list_prompt(r);
    rc = read_profile_steps(r);
    if (rc)
        return rc;
    gr_catch_interrupts(r->session, r->draft_session);
    rc =
        r->o->warmup && !r->o->dump_plan ? gr_run_warm_up(r) : 0; /* whose plans were printed too */
    if (rc)
        return gr_interrupted() ? 0 : gr_say_status(rc);
    r->cache.shift_keep = gr_length_shifts(r->o) ? shift_keep(r) : -1;
    rc = gr_prompt_cache_load(&r->cache, r->session, r->prompt, r->n_prompt, &r->extend, &r->n_past,
                              &r->n_read);
    r->n_kept = r->n_read;
    r->load_s = gr_seconds() - begin;
    return rc;
}

/* Saves --prompt-cache: the prompt as soon as it has run, or all at the end. */
static int save_cache(struct run *r, bool at_end)
{
    bool wanted = at_end ? r->o->prompt_cache_all : !r->o->prompt_cache_all && !r->cache.complete;
    if (!wanted || r->o->prompt_cache_ro || r->n_read < r->n_prompt)
        return 0;
    return gr_prompt_cache_save(&r->cache, r->session, &r->extend);
}

/* --dump-plan: prints the plans that have run since the last call. */
static void print_plans(const struct run *r)
{
    if (!r->o->dump_plan)
        return;
    gr_say_break();
    gr_session_plans(r->session, stderr);
}

/* Runs the prompt and generates. Returns 0 (also after an interrupt) or an exit code, after
 * printing the error; *saved receives that of saving --prompt-cache. */
static int run_text(struct run *r, int *saved)
{
    gr_bar_begin("prompt", (double)(r->n_prompt - r->n_read), GR_BAR_TOKENS);
    gr_bar_watch(r->session);
    r->start = gr_seconds();
    int rc = encode_prompt(r);
    if (!rc)
        rc = run_prompt(r);
    r->prompt_s = gr_seconds() - r->start;
    gr_bar_end();
    print_plans(r);
    if (rc)
        return gr_interrupted() ? 0 : gr_say_status(rc);
    gr_run_show_prompt(r);
    *saved = save_cache(r, false); /* a failure to save does not stop the text */
    rc = generate(r);
    print_plans(r);
    if (!rc && !*saved)
        *saved = save_cache(r, true);
    return rc;
}

/* Ends the output; text already written is kept whatever failed. Returns the exit code. */
static int end_text(struct run *r, int rc)
{
    int flushed = gr_run_end_text(r);
    rc = rc ? rc : flushed;
    if (rc || gr_interrupted())
        r->stop = rc ? STOP_ERROR : STOP_INTERRUPTED;
    if (r->stop == STOP_CONTEXT)
        gr_length_say_full(&r->length);
    int printed = r->o->json ? gr_run_print_json(r) : 0;
    rc = rc ? rc : printed;
    if (!rc)
        gr_run_say_summary(r);
    return rc;
}

static int write_text(struct run *r)
{
    int saved = 0;
    int traced = gr_trace_begin(&r->trace, r->o, r->session);
    if (traced)
        return traced;
    int rc = end_text(r, run_text(r, &saved));
    traced = gr_trace_end(&r->trace);
    rc = rc ? rc : traced;
    return rc ? rc : gr_interrupted() ? GR_EXIT_INTERRUPTED : saved;
}

/* Refuses two ways to move positions together. */
static int check_positions(const struct gr_options *o)
{
    if (o->context_shift <= 0 || o->grp_attn_n == 1 || gr_length_mode(o) != GR_SELF_EXTEND_CLASSIC)
        return 0;
    gr_say_error("--context-shift and -gan both move positions: leave one out, or use "
                 "--grp-attn-mode window");
    return GR_EXIT_USAGE;
}

int gr_run_open(struct run *r)
{
    int rc = check_positions(r->o);
    return rc ? rc : prepare(r);
}

int gr_run_answer(struct run *r)
{
    int saved = 0;
    r->n_gen = 0, r->first_s = r->gen_s = 0;
    r->stop = STOP_LENGTH, r->stops.found = -1;
    r->seed = gr_choose_seed(r->o);
    gr_sampler_free(&r->sampler);
    gr_run_close_stream(r);
    if (r->grammar)
        gr_grammar_state_reset(r->grammar);
    int rc = gr_run_open_sampler(r);
    if (!rc)
        rc = gr_run_open_stream(r);
    if (!rc)
        rc = gr_run_begin_drafts(r);
    if (rc) {
        r->stop = STOP_ERROR;
        return rc;
    }
    rc = run_text(r, &saved);
    int flushed = gr_run_end_text(r);
    rc = rc ? rc : flushed;
    if (rc || gr_interrupted())
        r->stop = rc ? STOP_ERROR : STOP_INTERRUPTED;
    return rc;
}

void gr_run_close(struct run *r)
{
    gr_catch_interrupts(NULL, NULL);
    gr_run_close_stream(r);
    gr_run_close_drafts(r);
    gr_sampler_free(&r->sampler);
    gr_grammar_state_free(&r->grammar);
    (void)gr_trace_end(&r->trace);
    gr_session_close(&r->session);
    gr_prompt_cache_fini(&r->cache);
    gr_free_ids(r->prompt);
    gr_model_close(&r->model);
    free(r->text);
    free(r->json);
}

int gr_tool_run(const struct gr_options *o)
{
    struct run r = {
        .o = o, .seed = gr_choose_seed(o), .collect = o->json, .cache.path = o->prompt_cache};
    if (gr_run_is_parallel(o))
        return gr_run_parallel(o);
    if (!o->prompt_cache && (o->prompt_cache_all || o->prompt_cache_ro)) {
        gr_say_error("--prompt-cache-all and --prompt-cache-ro need the name of a file: "
                     "--prompt-cache FILE");
        return GR_EXIT_USAGE;
    }
    int rc = check_positions(o);
    if (!rc)
        rc = read_prompt(&r);
    if (!rc && o->dry_run) {
        rc = print_size(&r);
    } else if (!rc) {
        rc = prepare(&r);
        if (!rc)
            rc = write_text(&r);
    }
    gr_run_close(&r);
    return rc;
}
