#include "kld.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base_file.h"
#include "tools/cli/numbers.h"
#include "tools/cli/say.h"

#define LEAST_LOG -16.0 /* lower log-probabilities of the base are known as "at most this" only */
#define ENOUGH 10       /* tokens; with fewer no standard error is printed */

/* ---- sums ---- */

int gr_kld_init(struct gr_kld *k, int64_t n)
{
    *k = (struct gr_kld){.kld = calloc((size_t)n + 1, sizeof *k->kld),
                         .dp = calloc((size_t)n + 1, sizeof *k->dp),
                         .room = n};
    return k->kld && k->dp ? 0 : gr_say_no_memory();
}

void gr_kld_fini(struct gr_kld *k)
{
    free(k->kld);
    free(k->dp);
    *k = (struct gr_kld){.room = 0};
}

/* Returns the divergence of the model from the base; *same: both have the same likeliest token. */
static double divergence(const float *logits, double log_sum, const struct gr_base_row *base,
                         int32_t n, bool *same)
{
    int32_t top = 0, top_base = 0;
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        double log_base = (double)base->scale * base->q[i] + (double)base->least;
        top = logits[i] > logits[top] ? i : top;
        top_base = base->q[i] > base->q[top_base] ? i : top_base;
        if (log_base > LEAST_LOG)
            sum += exp(log_base) * (log_base - ((double)logits[i] - log_sum));
    }
    *same = top == top_base;
    return sum;
}

void gr_kld_add(struct gr_kld *k, const float *logits, double log_sum,
                const struct gr_base_row *base, int32_t n_vocab, int32_t came)
{
    struct gr_kld_sums *s = &k->now;
    bool same;
    double kld = divergence(logits, log_sum, base, n_vocab, &same);
    double nll = log_sum - (double)logits[came];
    double nll_base = -((double)base->scale * base->q[came] + (double)base->least);
    double dp = exp(-nll) - exp(-nll_base);
    k->kld[s->n] = (float)kld, k->dp[s->n] = (float)dp;
    s->nll += nll, s->nll2 += nll * nll;
    s->base += nll_base, s->base2 += nll_base * nll_base;
    s->both += nll * nll_base;
    s->kld += kld, s->kld2 += kld * kld;
    s->dp += dp, s->dp2 += dp * dp, s->dp4 += dp * dp * dp * dp;
    s->n_same_top += same;
    s->n++;
}

void gr_kld_complete(struct gr_kld *k)
{
    k->whole = k->now;
}

/* ---- figures ---- */

/* A value with its standard error. */
struct figure {
    double x, error;
};

struct figures {
    struct figure ppl, base, log_ratio, ratio, difference, kld, dp, rms, same_top;
    double correlation; /* of both -log p; NAN when one is constant */
};

static struct figure mean(double sum, double sum2, int64_t n)
{
    double x = sum / (double)n, var = sum2 / (double)n - x * x;
    return (struct figure){x, var > 0 && n > ENOUGH ? sqrt(var / (double)(n - 1)) : 0};
}

static struct figure exponential(struct figure f)
{
    return (struct figure){exp(f.x), exp(f.x) * f.error};
}

/* Returns a - b, whose means have this covariance. */
static struct figure minus(struct figure a, struct figure b, double covariance)
{
    double var = a.error * a.error + b.error * b.error - 2 * covariance;
    return (struct figure){a.x - b.x, var > 0 ? sqrt(var) : 0};
}

static struct figures find_figures(const struct gr_kld_sums *s)
{
    double n = (double)s->n, same = (double)s->n_same_top / n;
    struct figure log_ppl = mean(s->nll, s->nll2, s->n), log_base = mean(s->base, s->base2, s->n);
    struct figure square = mean(s->dp2, s->dp4, s->n);
    double covariance = s->n > ENOUGH ? (s->both / n - log_ppl.x * log_base.x) / (n - 1) : 0;
    double errors = log_ppl.error * log_base.error;
    struct figures f = {
        .ppl = exponential(log_ppl),
        .base = exponential(log_base),
        .log_ratio = minus(log_ppl, log_base, covariance),
        .kld = mean(s->kld, s->kld2, s->n),
        .dp = mean(s->dp, s->dp2, s->n),
        .rms = {sqrt(square.x), square.x > 0 ? square.error / (2 * sqrt(square.x)) : 0},
        .same_top = {same, n > 1 ? sqrt(same * (1 - same) / (n - 1)) : 0},
        .correlation = errors > 0 ? covariance / errors : NAN,
    };
    f.ratio = exponential(f.log_ratio);
    f.difference = minus(f.ppl, f.base, f.ppl.x * f.base.x * covariance);
    return f;
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Returns a quantile of the sorted x [n], interpolated between the two nearest values. */
static double quantile(const float *x, int64_t n, double at)
{
    double place = at * (double)(n - 1);
    int64_t i = (int64_t)place, next = i + 1 < n ? i + 1 : i;
    return (double)x[i] + (place - (double)i) * ((double)x[next] - (double)x[i]);
}

static const struct {
    const char *label, *key;
    double at;
} quantiles[] = {
    {"Maximum", "max", 1},     {"99.9%  ", "p99.9", .999}, {"99.0%  ", "p99", .99},
    {"95.0%  ", "p95", .95},   {"90.0%  ", "p90", .90},    {"75.0%  ", "p75", .75},
    {"Median ", "median", .5}, {"25.0%  ", "p25", .25},    {"10.0%  ", "p10", .10},
    {" 5.0%  ", "p5", .05},    {" 1.0%  ", "p1", .01},     {" 0.1%  ", "p0.1", .001},
    {"Minimum", "min", 0},
};
#define N_QUANTILE (sizeof quantiles / sizeof *quantiles)

/* ---- printing ---- */

static void put_member(const char *name, struct figure f)
{
    char x[32], error[32];
    gr_print(",\"%s\":%s,\"%s_error\":%s", name, gr_json_number(x, f.x), name,
             gr_json_number(error, f.error));
}

static void put_object(const char *name, struct figure f, const float *sorted, int64_t n)
{
    char x[32], error[32];
    gr_print(",\"%s\":{\"mean\":%s,\"error\":%s", name, gr_json_number(x, f.x),
             gr_json_number(error, f.error));
    for (size_t i = 0; i < N_QUANTILE; i++)
        gr_print(",\"%s\":%s", quantiles[i].key,
                 gr_json_number(x, quantile(sorted, n, quantiles[i].at)));
    gr_print("}");
}

void gr_kld_head(void)
{
    gr_print(
        "chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence       "
        "       Δp RMS            Same top p\n");
}

void gr_kld_print_chunk(const struct gr_kld *k, int32_t i, bool json)
{
    struct figures f = find_figures(&k->whole);
    char x[32], error[32];
    if (json) {
        gr_print("{\"perplexity\":%s,\"error\":%s", gr_json_number(x, f.ppl.x),
                 gr_json_number(error, f.ppl.error));
        put_member("ln_ratio", f.log_ratio);
        put_member("kld", f.kld);
        put_member("p_diff_rms", f.rms);
        put_member("same_top", f.same_top);
        gr_print("}");
        return;
    }
    gr_print("%4d    %9.4f ± %9.4f    %10.5f ± %10.5f    %10.5f ± %10.5f    %6.3f ± %6.3f %%    "
             "%6.3f ± %6.3f %%\n",
             i + 1, f.ppl.x, f.ppl.error, f.log_ratio.x, f.log_ratio.error, f.kld.x, f.kld.error,
             100 * f.rms.x, 100 * f.rms.error, 100 * f.same_top.x, 100 * f.same_top.error);
}

static void report_json(const struct gr_kld *k, const struct figures *f)
{
    char x[32];
    put_member("base_perplexity", f->base);
    gr_print(",\"correlation\":%s", gr_json_number(x, f->correlation));
    put_member("ln_ratio", f->log_ratio);
    put_member("ratio", f->ratio);
    put_member("difference", f->difference);
    put_object("kld", f->kld, k->kld, k->whole.n);
    put_object("p_diff", f->dp, k->dp, k->whole.n);
    put_member("p_diff_rms", f->rms);
    put_member("same_top", f->same_top);
}

static void put_line(const char *label, struct figure f)
{
    gr_print("%-30s: %10.6f ± %10.6f\n", label, f.x, f.error);
}

static void report_lines(const struct gr_kld *k, const struct figures *f)
{
    gr_print("\n====== Perplexity statistics ======\n");
    put_line("Mean PPL(Q)", f->ppl);
    put_line("Mean PPL(base)", f->base);
    gr_print("Cor(ln(PPL(Q)), ln(PPL(base))): %6.2f%%\n", 100 * f->correlation);
    put_line("Mean ln(PPL(Q)/PPL(base))", f->log_ratio);
    put_line("Mean PPL(Q)/PPL(base)", f->ratio);
    put_line("Mean PPL(Q)-PPL(base)", f->difference);
    gr_print("\n====== KL divergence statistics ======\n");
    gr_print("Mean    KLD: %10.6f ± %10.6f\n", f->kld.x, f->kld.error);
    for (size_t i = 0; i < N_QUANTILE; i++)
        gr_print("%s KLD: %10.6f\n", quantiles[i].label,
                 quantile(k->kld, k->whole.n, quantiles[i].at));
    gr_print("\n====== Token probability statistics ======\n");
    gr_print("Mean    Δp: %6.3f ± %5.3f %%\n", 100 * f->dp.x, 100 * f->dp.error);
    for (size_t i = 0; i < N_QUANTILE; i++)
        gr_print("%s Δp: %6.3f%%\n", quantiles[i].label,
                 100 * quantile(k->dp, k->whole.n, quantiles[i].at));
    gr_print("RMS Δp    : %6.3f ± %5.3f %%\n", 100 * f->rms.x, 100 * f->rms.error);
    gr_print("Same top p: %6.3f ± %5.3f %%\n", 100 * f->same_top.x, 100 * f->same_top.error);
}

void gr_kld_report(struct gr_kld *k, bool json)
{
    struct figures f = find_figures(&k->whole);
    qsort(k->kld, (size_t)k->whole.n, sizeof *k->kld, ascending);
    qsort(k->dp, (size_t)k->whole.n, sizeof *k->dp, ascending);
    if (json)
        report_json(k, &f);
    else
        report_lines(k, &f);
}
