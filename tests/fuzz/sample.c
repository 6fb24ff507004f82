/* Any bytes as parameters, logits and tokens of a sampler: parameters are refused in one line, or
 * each pick is a token of the vocabulary whose logit is above -inf; and as stop strings and a text,
 * whose beginning comes out. All memory is given back.
 *
 * Input: the bytes of struct gr_sampler_params' numbers, the order, the size of the vocabulary;
 * then for each step a logit (two bytes) of every token. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "gpurun.h"
#include "gr/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define MAX_VOCAB 64
#define STEPS 12

struct input {
    const uint8_t *p, *end;
};

static void take(struct input *in, void *to, size_t n)
{
    size_t left = (size_t)(in->end - in->p);
    memset(to, 0, n);
    memcpy(to, in->p, n < left ? n : left);
    in->p += n < left ? n : left;
}

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "broken promise: %s: %s\n", what, gr_error());
    abort();
}

/* One of the few values that matter most, or any bytes. */
static float take_f32(struct input *in)
{
    static const float value[] = {0, 1, -1, 0.5f, 1e-3f, 1e30f, 3e38f, INFINITY, -INFINITY, NAN};
    uint8_t which = 0;
    float x;
    take(in, &which, 1);
    if (which < 2 * sizeof value / sizeof *value)
        return value[which / 2];
    if (which < 128)
        return (float)which / 64;
    take(in, &x, sizeof x);
    return x;
}

static int32_t take_i32(struct input *in)
{
    int16_t x;
    take(in, &x, sizeof x);
    return x > 300 ? x * 65537 : x;
}

static struct gr_sampler_params take_params(struct input *in)
{
    struct gr_sampler_params p = gr_sampler_params_default();
    static const char letters[] = "edskypmxta?";
    float *real[] = {&p.temp,          &p.top_p,           &p.min_p,
                     &p.typical_p,     &p.top_n_sigma,     &p.xtc_probability,
                     &p.xtc_threshold, &p.dynatemp_range,  &p.penalty_repeat,
                     &p.penalty_freq,  &p.penalty_present, &p.dry_multiplier,
                     &p.dry_base,      &p.adaptive_target, &p.adaptive_decay,
                     &p.mirostat_tau,  &p.mirostat_eta,    &p.dynatemp_exponent};
    int32_t *whole[] = {&p.top_k, &p.penalty_last_n, &p.dry_allowed_length, &p.dry_penalty_last_n,
                        &p.mirostat};
    uint8_t which[5], n_vocab, order[GR_MAX_SAMPLERS], n_order;
    take(in, which, sizeof which);
    for (size_t i = 0; i < sizeof real / sizeof *real; i++)
        *real[i] = which[i % 3] >> i / 3 & 1 ? take_f32(in) : *real[i];
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        *whole[i] = which[3] >> i & 1 ? take_i32(in) : *whole[i];
    take(in, order, sizeof order);
    take(in, &n_order, 1);
    for (size_t i = 0; which[4] & 1 && i < sizeof order; i++)
        p.samplers[i] = i < n_order ? letters[order[i] % 11] : '\0';
    take(in, &n_vocab, 1);
    p.n_vocab = 1 + n_vocab % MAX_VOCAB, p.n_ctx = 20, p.seed = which[4];
    return p;
}

static void run(struct gr_sampler *s, struct input *in, int32_t n_vocab)
{
    for (int step = 0; step < STEPS; step++) {
        float logits[MAX_VOCAB];
        int32_t id = -1;
        for (int32_t i = 0; i < n_vocab; i++) {
            int16_t x;
            take(in, &x, sizeof x);
            logits[i] = x == INT16_MIN ? -INFINITY : x == INT16_MAX ? INFINITY : (float)x / 256;
        }
        int rc = gr_sampler_pick(s, logits, &id);
        must(rc == 0 || (rc == GR_E_CHECK && id == -1), "a pick, or logits that leave none");
        must(rc || (id >= 0 && id < n_vocab && logits[id] > -INFINITY), "a token that can be");
        must(gr_sampler_accept(s, rc ? step % n_vocab : id) == 0, "tokens are accepted");
    }
}

/* The text in pieces of any size: what comes out begins the text. */
static void check_stops(const char *text, size_t n)
{
    size_t length[3], used = 0, done = 0, got = 0;
    const char *strings[3], *p;
    struct gr_stop *s;
    int32_t found = -1;
    for (int i = 0; i < 3; i++) {
        length[i] = used < n ? (uint8_t)text[used] % 5 : 0;
        length[i] = length[i] < n - used ? length[i] : n - used;
        strings[i] = text + used, used += length[i];
    }
    if (gr_stop_new(&s, strings, length, 3))
        return;
    while (done < n) {
        size_t piece = 1 + (uint8_t)text[done] % 7, m;
        int32_t which;
        piece = piece < n - done ? piece : n - done;
        must(gr_stop_push(s, text + done, piece, &p, &m, &which) == 0, "a piece is taken");
        done += piece;
        must(got + m <= done && !memcmp(p, text + got, m), "text comes out as it went in");
        got += m, found = which >= 0 ? which : found;
    }
    size_t m;
    gr_stop_flush(s, &p, &m);
    must(got + m <= n && !memcmp(p, text + got, m), "and its end");
    must(found < 0 ? got + m == n : !m && !memcmp(text + got, strings[found], length[found]),
         "all of it, or up to a string");
    gr_stop_free(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    size_t before = gr_alloc_held(NULL);
    struct input in = {p, p + n};
    struct gr_sampler_params params = take_params(&in);
    struct gr_sampler *s;
    int rc = gr_sampler_new(&s, &params);
    must(!s == (rc != 0) && (!rc || (rc == GR_E_INVALID && !strchr(gr_error(), '\n'))),
         "a sampler, or one line");
    if (s)
        run(s, &in, params.n_vocab);
    gr_sampler_free(&s);
    if (n)
        check_stops((const char *)p, n);
    must(gr_alloc_held(NULL) == before, "all memory is given back");
    return 0;
}
