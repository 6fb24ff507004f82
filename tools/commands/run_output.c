/* Output of gpurun run: the prompt, the text, and a summary, or all of it as JSON. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "devices.h"
#include "run.h"
#include "stages.h"
#include "tools/cli/flags.h"
#include "tools/cli/json.h"
#include "tools/cli/say.h"

static const char *const stop_name[] = {"length",      "eos",   "context",
                                        "interrupted", "error", "string"};

static int write_text(struct run *r, const char *p, size_t n)
{
    if (!n)
        return 0;
    if (r->put)
        return r->put(r->put_user, p, n);
    if (!r->collect) {
        gr_out(p, n);
        return 0;
    }
    if (r->n_json + n + 1 > r->cap_json) {
        size_t cap = 2 * (r->n_json + n + 1);
        char *grown = realloc(r->json, cap);
        if (!grown) {
            gr_say_error("no memory for %zu bytes of text", cap);
            return 5;
        }
        r->json = grown, r->cap_json = cap;
    }
    memcpy(r->json + r->n_json, p, n);
    r->n_json += n;
    return 0;
}

/* Writes what the stream returned; `stop`: the string that ends the text, or -1. */
static int take_text(struct run *r, int rc, const char *p, size_t n, int32_t stop)
{
    if (rc)
        return gr_say_status(rc);
    if (stop >= 0 && r->stop != STOP_STRING)
        r->stop = STOP_STRING, r->stops.found = stop;
    return write_text(r, p, n);
}

int gr_run_put_token(struct run *r, int32_t id, bool *ended)
{
    const char *p;
    size_t n;
    int32_t stop;
    r->n_gen++;
    if (gr_text_is_eog(r->model, id))
        r->stop = STOP_EOS;
    int rc = 0;
    if (r->stop != STOP_EOS || !r->marks || r->o->special) { /* an end is no mark */
        rc = gr_text_stream_push(r->stream, id, &p, &n, &stop);
        rc = take_text(r, rc, p, n, stop);
    }
    *ended = r->stop != STOP_LENGTH || r->n_gen == r->o->n_predict;
    return rc;
}

int gr_run_end_text(struct run *r)
{
    const char *p;
    size_t n;
    int32_t stop;
    int rc = gr_text_stream_flush(r->stream, &p, &n, &stop);
    return take_text(r, rc, p, n, stop);
}

bool gr_run_use_color(const struct gr_options *o)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    if (strcmp(o->color, "auto") != 0)
        return !strcmp(o->color, "on");
    return gr_is_terminal(STDOUT_FILENO) && !(no_color && *no_color) &&
           !(term && !strcmp(term, "dumb"));
}

/* By default the prompt is written on a terminal, and always when it is the built-in sample. */
void gr_run_show_prompt(struct run *r)
{
    bool continued = !r->info.has_encoder; /* the text of an encoder is not continued */
    bool color = gr_run_use_color(r->o), wanted = r->sample || gr_is_terminal(STDOUT_FILENO);
    wanted = wanted && continued;
    if (r->o->display_prompt >= 0)
        wanted = r->o->display_prompt;
    if (!wanted || r->o->json || !r->n_text)
        return;
    if (color)
        gr_out_style("\033[2m");
    gr_out(r->text, r->n_text);
    if (color)
        gr_out_style("\033[0m");
}

void gr_run_list_prompt(const struct run *r)
{
    gr_say("prompt: %zu tokens", r->n_prompt);
    for (size_t i = 0; i < r->n_prompt; i++) {
        const char *p;
        size_t n;
        if (!gr_text_piece(r->model, r->prompt[i], true, &p, &n))
            gr_say("%6d -> '%.*s'", r->prompt[i], (int)n, p);
    }
}

/* ---- the end ---- */

static double rate(double n, double seconds)
{
    return n > 0 && seconds > 0 ? n / seconds : 0;
}

/* Returns the number of prompt tokens that were read, by the encoder if there is one. */
static size_t prompt_tokens(const struct run *r)
{
    return r->n_encoded ? r->n_encoded : r->n_read;
}

static double prompt_speed(const struct run *r)
{
    return rate((double)(prompt_tokens(r) - r->n_kept), r->prompt_s);
}

/* " | drafts 34 of 120 accepted, 1.42x", or "". */
static const char *draft_summary(const struct run *r, char *buf, size_t n)
{
    struct gr_draft_stats s = r->draft ? gr_draft_stats(r->draft) : (struct gr_draft_stats){0};
    char speedup[32] = "";
    *buf = 0;
    if (s.speedup > 0)
        snprintf(speedup, sizeof speedup, ", %.2fx", s.speedup);
    if (s.n_step)
        snprintf(buf, n, " | drafts %lld of %lld accepted%s", (long long)s.n_accepted,
                 (long long)s.n_drafted, speedup);
    return buf;
}

void gr_run_say_summary(const struct run *r)
{
    char drafts[96], gen[96] = "", seed[48] = "", first[48] = "", gpu[160];
    double per_token = r->n_gen > 1 ? r->gen_s / (r->n_gen - 1) : 0;
    if (!r->o->perf)
        return;
    if (per_token > 0)
        snprintf(gen, sizeof gen, " %.1f t/s (%.2f ms/tok)", 1 / per_token, 1e3 * per_token);
    if (r->temp > 0 && r->o->seed < 0)
        snprintf(seed, sizeof seed, " | seed %llu", (unsigned long long)r->seed);
    if (r->n_gen > 0)
        snprintf(first, sizeof first, " | ttft %.0f ms", 1e3 * r->first_s);
    gr_say("prompt %zu tok %.1f t/s | gen %d tok%s%s%s | load %.2f s%s%s", prompt_tokens(r),
           prompt_speed(r), r->n_gen, gen, draft_summary(r, drafts, sizeof drafts), first,
           r->load_s, gr_gpu_summary(r->session, gpu, sizeof gpu), seed);
    gr_say_stages(r->session);
}

/* What drafts did, as an object. */
static json_t *drafts_json(const struct run *r)
{
    struct gr_draft_stats s = gr_draft_stats(r->draft);
    return json_pack("{s:I, s:I, s:I, s:f, s:f}", "steps", (json_int_t)s.n_step, "drafted",
                     (json_int_t)s.n_drafted, "accepted", (json_int_t)s.n_accepted, "acceptance",
                     rate((double)s.n_accepted, (double)s.n_drafted), "speedup", s.speedup);
}

/* Makes a line of JSON (free); NULL when there is no memory. */
static char *json_line(const struct run *r)
{
    gr_json_begin();
    json_t *text = json_stringn(r->json ? r->json : "", r->n_json);
    json_t *o = json_pack(
        "{s:o, s:s, s:i, s:i, s:I, s:i, s:o, s:{s:f, s:f, s:f, s:f}}", "text", text, "stop",
        stop_name[r->stop], "prompt_tokens", (int)prompt_tokens(r), "generated_tokens", r->n_gen,
        "seed", (json_int_t)r->seed, "gpu_layers", r->info.n_gpu_layers, "stages",
        gr_stages_json(r->session), "timings", "prompt_tok_s", prompt_speed(r), "gen_tok_s",
        rate(r->n_gen - 1, r->gen_s), "ttft_ms", 1e3 * r->first_s, "load_s", r->load_s);
    if (r->stop == STOP_STRING)
        (void)json_object_set_new(
            o, "stop_string",
            json_stringn(r->stops.text[r->stops.found], r->stops.n_text[r->stops.found]));
    if (r->index) {
        (void)json_object_set_new(o, "index", json_integer(r->index));
        (void)json_object_set_new(o, "prompt", json_stringn(r->text, r->n_text));
    }
    if (r->draft)
        (void)json_object_set_new(o, "drafts", drafts_json(r));
    bool whole = o && (r->stop != STOP_ERROR ||
                       !json_object_set_new(o, "error", json_string(gr_say_last_error())));
    char *line = whole ? json_dumps(o, JSON_REAL_PRECISION(6)) : NULL;
    json_decref(o);
    if (!gr_json_starved())
        return line;
    free(line);
    return NULL;
}

/* A figure to six digits, which are not the digits of numbers that the model wrote. */
static double six_digits(double x)
{
    char text[32];
    snprintf(text, sizeof text, "%.6g", x);
    return strtod(text, NULL);
}

/* Makes a line of JSON of a chat's answer (free); NULL when there is no memory, or the answer is no
 * UTF-8. */
static char *turn_line(const struct run *r, const struct run_turn *turn)
{
    gr_json_begin();
    json_t *o = json_pack(
        "{s:s, s:o, s:s, s:I, s:I, s:i, s:{s:i, s:i}, s:I, s:{s:f, s:f, s:f}}", "role", "assistant",
        "content", json_stringn(turn->n ? turn->text : "", turn->n), "stop", stop_name[r->stop],
        "prompt_tokens", (json_int_t)r->n_read, "kept_tokens", (json_int_t)r->n_kept,
        "generated_tokens", r->n_gen, "context", "used", (int)gr_kv_used(r->session), "size",
        r->n_ctx, "seed", (json_int_t)r->seed, "timings", "prompt_tok_s",
        six_digits(prompt_speed(r)), "gen_tok_s", six_digits(rate(r->n_gen - 1, r->gen_s)),
        "ttft_ms", six_digits(1e3 * r->first_s));
    bool whole = o != NULL;
    if (turn->n_reasoning)
        whole &= !json_object_set_new(o, "reasoning_content",
                                      json_stringn(turn->reasoning, turn->n_reasoning));
    if (json_array_size(turn->calls))
        whole &= !json_object_set(o, "tool_calls", turn->calls);
    if (r->stop == STOP_STRING)
        whole &= !json_object_set_new(
            o, "stop_string",
            json_stringn(r->stops.text[r->stops.found], r->stops.n_text[r->stops.found]));
    if (r->stop == STOP_ERROR)
        whole &= !json_object_set_new(o, "error", json_string(gr_say_last_error()));
    char *line = whole ? json_dumps(o, JSON_REAL_PRECISION(15)) : NULL;
    json_decref(o);
    return line;
}

int gr_run_print_turn(const struct run *r, const struct run_turn *turn)
{
    char *line = turn_line(r, turn);
    if (!line && !gr_json_starved()) {
        gr_say_error("the answer is no UTF-8");
        return 1;
    }
    if (!line)
        return gr_say_no_memory();
    gr_out(line, strlen(line));
    gr_out("\n", 1);
    free(line);
    return 0;
}

/* A JSON string, of n bytes of UTF-8. */
static void put_string(const char *p, size_t n)
{
    char code[8];
    gr_out("\"", 1);
    for (size_t i = 0, plain; i < n; i++) {
        for (plain = i; i < n && (unsigned char)p[i] >= ' ' && p[i] != '"' && p[i] != '\\';)
            i++;
        gr_out(p + plain, i - plain);
        if (i < n)
            gr_out(code, (size_t)snprintf(code, sizeof code, "\\u%04x", p[i]));
    }
    gr_out("\"", 1);
}

static int print_without_memory(const struct run *r)
{
    static const char stop[] = ", \"stop\": \"error\", \"error\": ";
    int rc = gr_say_no_memory();
    gr_out("{\"text\": ", 9);
    put_string(r->json ? r->json : "", r->n_json);
    gr_out(stop, sizeof stop - 1);
    put_string(gr_say_last_error(), strlen(gr_say_last_error()));
    gr_out("}\n", 2);
    return rc;
}

int gr_run_print_json(const struct run *r)
{
    char *line = json_line(r);
    if (!line)
        return print_without_memory(r);
    gr_out(line, strlen(line));
    gr_out("\n", 1);
    free(line);
    return 0;
}
