/* Parameters of a sampler: defaults, checks, and the order of its chain. */
#include "sample/params.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "gr/status.h"

static const struct {
    char letter;
    const char *name, *others; /* separated by blanks */
} kinds[GR_SAMPLER_N_KIND] = {
#define SAMPLER(KIND, letter, name, others) {letter, name, others},
#include "sample/kinds.def"
#undef SAMPLER
};

static const char *const default_breakers[] = {"\n", ":", "\"", "*"};

struct gr_sampler_params gr_sampler_params_default(void)
{
    struct gr_sampler_params p = {
        .temp = 0.8f,
        .top_k = 40,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .typical_p = 1,
        .top_n_sigma = -1,
        .xtc_threshold = 0.1f,
        .dynatemp_exponent = 1,
        .penalty_last_n = 64,
        .penalty_repeat = 1,
        .dry_base = 1.75f,
        .dry_allowed_length = 2,
        .dry_penalty_last_n = 64,
        .dry_breakers = default_breakers,
        .n_dry_breakers = GR_COUNT(default_breakers),
        .adaptive_target = -1,
        .adaptive_decay = 0.9f,
        .mirostat_tau = 5,
        .mirostat_eta = 0.1f,
    };
    for (int i = 0; i < GR_SAMPLER_N_KIND; i++)
        p.samplers[i] = kinds[i].letter;
    return p;
}

/* ---- names ---- */

/* Returns whether a word is one of the blank-separated names. */
static bool is_one_of(const char *names, const char *word, size_t n)
{
    for (const char *p = names; *p; p += strspn(p, " ")) {
        size_t m = strcspn(p, " ");
        if (m == n && !memcmp(p, word, n))
            return true;
        p += m;
    }
    return false;
}

static int find_name(const char *word, size_t n)
{
    int i = 0;
    while (i < GR_SAMPLER_N_KIND && !is_one_of(kinds[i].name, word, n) &&
           !is_one_of(kinds[i].others, word, n))
        i++;
    return i;
}

const char *gr_sampler_kind_name(enum gr_sampler_kind kind)
{
    return kinds[kind].name;
}

static int find_letter(char letter)
{
    int i = 0;
    while (i < GR_SAMPLER_N_KIND && kinds[i].letter != letter)
        i++;
    return i;
}

static int unknown(const char *word, size_t n)
{
    char all[256] = "";
    for (int i = 0; i < GR_SAMPLER_N_KIND; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s (%c)", i ? ", " : "",
                 kinds[i].name, kinds[i].letter);
    return gr_fail(GR_E_INVALID, "sampling: no sampler has the name '%.*s'; there are %s",
                   (int)GR_MIN(n, 64), word, all);
}

int gr_sampler_letters(const char *names, char letters[GR_MAX_SAMPLERS])
{
    char got[GR_MAX_SAMPLERS] = "";
    int n_got = 0;
    for (const char *p = names; *p; p += *p == ';') {
        size_t n = strcspn(p, ";");
        int kind = find_name(p, n);
        if (kind == GR_SAMPLER_N_KIND)
            return unknown(p, n);
        if (n_got + 1 == GR_MAX_SAMPLERS)
            return gr_fail(GR_E_INVALID, "sampling: at most %d samplers are expected",
                           GR_MAX_SAMPLERS - 1);
        got[n_got++] = kinds[kind].letter;
        p += n;
    }
    memcpy(letters, got, sizeof got);
    return 0;
}

/* ---- checks ---- */

static int check_ranges(const struct gr_sampler_params *p)
{
    const struct {
        const char *name;
        double value, lo, hi;
    } range[] = {
        {"temp", p->temp, -INFINITY, 1e6},
        {"top_p", p->top_p, 0, INFINITY},
        {"min_p", p->min_p, 0, 1},
        {"typical_p", p->typical_p, 0, INFINITY},
        {"top_n_sigma", p->top_n_sigma, -INFINITY, 1e6},
        {"xtc_probability", p->xtc_probability, 0, 1},
        {"xtc_threshold", p->xtc_threshold, 0, INFINITY},
        {"dynatemp_range", p->dynatemp_range, -INFINITY, 1e6},
        {"dynatemp_exponent", p->dynatemp_exponent, 0, 1e3},
        {"penalty_last_n", p->penalty_last_n, -1, 1 << 24},
        {"penalty_repeat", p->penalty_repeat, 1e-3, 1e3},
        {"penalty_freq", p->penalty_freq, -1e6, 1e6},
        {"penalty_present", p->penalty_present, -1e6, 1e6},
        {"dry_multiplier", p->dry_multiplier, 0, 1e6},
        {"dry_base", p->dry_base, 1, 1e3},
        {"dry_allowed_length", p->dry_allowed_length, 0, 1 << 24},
        {"dry_penalty_last_n", p->dry_penalty_last_n, -1, 1 << 24},
        {"n_dry_breakers", p->n_dry_breakers, 0, GR_MAX_DRY_BREAKERS},
        {"adaptive_target", p->adaptive_target, -INFINITY, 1},
        {"adaptive_decay", p->adaptive_decay, 0, 0.99f},
        {"mirostat", p->mirostat, 0, 2},
        {"mirostat_tau", p->mirostat_tau, 0, 1e3},
        {"mirostat_eta", p->mirostat_eta, 0, 1e3},
        {"n_vocab", p->n_vocab, 1, INT32_MAX},
        {"n_ctx", p->n_ctx, 0, 1 << 24},
        {"n_logit_bias", p->n_logit_bias, 0, INT32_MAX},
    };
    for (size_t i = 0; i < GR_COUNT(range); i++) {
        if (!(range[i].value >= range[i].lo && range[i].value <= range[i].hi))
            return gr_fail(GR_E_INVALID, "sampling: %s is %g, a number from %g to %g is expected",
                           range[i].name, range[i].value, range[i].lo, range[i].hi);
    }
    return 0;
}

static int check_order(const struct gr_sampler_params *p)
{
    size_t n = strnlen(p->samplers, GR_MAX_SAMPLERS);
    if (n == GR_MAX_SAMPLERS)
        return gr_fail(GR_E_INVALID, "sampling: at most %d samplers are expected",
                       GR_MAX_SAMPLERS - 1);
    for (size_t i = 0; i < n; i++) {
        if (find_letter(p->samplers[i]) == GR_SAMPLER_N_KIND)
            return unknown(p->samplers + i, 1);
    }
    return 0;
}

static int check_breakers(const struct gr_sampler_params *p)
{
    for (int32_t i = 0; i < p->n_dry_breakers; i++) {
        size_t n = strlen(p->dry_breakers[i]);
        if (!n || n > GR_MAX_DRY_BREAKER_BYTES)
            return gr_fail(GR_E_INVALID,
                           "sampling: DRY sequence breaker %d has %zu bytes, 1 to %d are expected",
                           i + 1, n, GR_MAX_DRY_BREAKER_BYTES);
    }
    return 0;
}

static int check_bias(const struct gr_sampler_params *p)
{
    for (int32_t i = 0; i < p->n_logit_bias; i++) {
        struct gr_logit_bias b = p->logit_bias[i];
        if (b.id < 0 || b.id >= p->n_vocab)
            return gr_fail(GR_E_INVALID,
                           "sampling: logit bias for token %d, but the vocabulary ends at %d", b.id,
                           p->n_vocab - 1);
        if (isnan(b.bias))
            return gr_fail(GR_E_INVALID, "sampling: the logit bias of token %d is not a number",
                           b.id);
    }
    return 0;
}

int gr_sampler_check(const struct gr_sampler_params *p)
{
    int rc = check_ranges(p);
    if (!rc)
        rc = check_order(p);
    if (!rc)
        rc = check_breakers(p);
    return rc ? rc : check_bias(p);
}

/* ---- the chain ---- */

bool gr_sampler_penalises(const struct gr_sampler_params *p)
{
    return p->penalty_last_n != 0 &&
           (p->penalty_repeat != 1 || p->penalty_freq != 0 || p->penalty_present != 0);
}

static bool has_effect(const struct gr_sampler_params *p, enum gr_sampler_kind kind)
{
    switch (kind) {
    case GR_SAMPLER_PENALTIES:
        return gr_sampler_penalises(p);
    case GR_SAMPLER_DRY:
        return p->dry_multiplier > 0 && p->dry_penalty_last_n != 0;
    case GR_SAMPLER_TOP_N_SIGMA:
        return p->top_n_sigma > 0;
    case GR_SAMPLER_TOP_K:
        return p->top_k > 0;
    case GR_SAMPLER_TYPICAL:
        return p->typical_p < 1;
    case GR_SAMPLER_TOP_P:
        return p->top_p < 1;
    case GR_SAMPLER_MIN_P:
        return p->min_p > 0;
    case GR_SAMPLER_XTC:
        return p->xtc_probability > 0 && p->xtc_threshold <= 0.5f;
    case GR_SAMPLER_TEMPERATURE:
        return p->temp != 1 || p->dynatemp_range > 0;
    case GR_SAMPLER_ADAPTIVE_P:
        return p->adaptive_target >= 0;
    case GR_SAMPLER_N_KIND:
        break;
    }
    return false;
}

/* Sets a sampler to off. */
static void leave_out(struct gr_sampler_params *p, enum gr_sampler_kind kind)
{
    if (kind == GR_SAMPLER_PENALTIES)
        p->penalty_last_n = 0;
    else if (kind == GR_SAMPLER_DRY)
        p->dry_multiplier = 0;
    else if (kind == GR_SAMPLER_TOP_K)
        p->top_k = 0;
    else if (kind == GR_SAMPLER_TOP_P)
        p->top_p = 1;
    else if (kind == GR_SAMPLER_MIN_P)
        p->min_p = 0;
    else if (kind == GR_SAMPLER_TEMPERATURE)
        p->temp = 1, p->dynatemp_range = 0;
}

struct gr_sampler_chain gr_sampler_chain(struct gr_sampler_params *p)
{
    struct gr_sampler_chain chain = {.n = 0};
    char order[GR_MAX_SAMPLERS + 1] = "";
    for (int i = 0, n = 0; p->samplers[i]; i++) {
        int kind = find_letter(p->samplers[i]);
        if (!p->mirostat || kind == GR_SAMPLER_PENALTIES || kind == GR_SAMPLER_DRY)
            order[n++] = p->samplers[i], order[n] = 0;
    }
    if (p->mirostat)
        p->dynatemp_range = 0, order[strlen(order)] = kinds[GR_SAMPLER_TEMPERATURE].letter;
    for (int kind = 0; kind < GR_SAMPLER_N_KIND; kind++) {
        if (!strchr(order, kinds[kind].letter))
            leave_out(p, (enum gr_sampler_kind)kind);
    }
    for (const char *c = order; *c; c++) {
        enum gr_sampler_kind kind = (enum gr_sampler_kind)find_letter(*c);
        if (kind == GR_SAMPLER_ADAPTIVE_P)
            chain.adaptive |= has_effect(p, kind);
        else if (has_effect(p, kind))
            chain.kind[chain.n++] = kind;
    }
    return chain;
}
