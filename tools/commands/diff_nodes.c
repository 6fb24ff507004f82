/* Comparison of the nodes of two sides, with tolerances derived from rounding.
 *
 * Tolerance of an element: six standard deviations of its rounding error, which is computed
 * relative to the RMS of the node, times the larger of that RMS (on side A) and the element. Of
 * 10^8 elements none is expected further out. Independent errors add as squares over the layers
 * before the node; a layer counts as four products in a row and an attention, or the recurrence in
 * its place:
 *   - Sums of a product: an f32 sum of K terms rounds K partial sums, each by 2^-24 / sqrt(3) of
 *     itself, and the i-th is sqrt(i / K) of the result: 2^-24 sqrt(K / 6) in all. K = 4 n_embd,
 *     usually the longest product.
 *   - Inputs of a product. On a GPU they are rounded to f16, by 2^-11 / sqrt(3); quantised weights
 *     are rounded too, as a scaled number and an offset, each twice as large as the weights: three
 *     times that in all. With bf16 weights the inputs are rounded to bf16, by 2^-9 / sqrt(3), on
 *     the CPU too; with quantised weights on the CPU to s8, in steps of 1 / 127 of the largest of
 *     32 columns (4 RMS), by 1 / sqrt(12) of a step. They are not rounded with f32 weights, with
 *     f16 weights on the CPU, and with --cpu-level ref, which is thus the side to compare with.
 *   - K and V: rounded to their type, f16 and bf16 as above, quants in steps of 1 / 127 (q8_0),
 *     1 / 16 (5 bits) or 1 / 8 (4 bits) of the largest. The attention of a GPU rounds queries and
 * attention weights to f16 unless K and V are f32: 2^-11 in all.
 *   - Scores: with standard deviation S and a relative error e they change the attention weights,
 *     and with them the result, by e S. The attention's own node has an error of sqrt(1 + S^2)
 *     times its inputs'; later nodes receive a share of it (SHARE), as attention is added to a
 *     larger sum.
 * Where both sides round in the same steps, a number is rounded differently with the probability
 * |difference| / step and is one step off then: this adds the product of difference and step to the
 * variance, at most as much as two independent roundings. Another choice of experts, made by a
 * narrow margin, is not a rounding error and is reported as a difference. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "diff.h"
#include "tools/cli/flags.h"
#include "tools/cli/say.h"

#define SCORES 8   /* standard deviation of a trained model's attention scores, rarely more */
#define SHARE 0.25 /* attention's part of the variance of the sum that it is added to */

static const char *const way_name[] = {"as a whole", "token by token"};

/* ---- tolerances ---- */

static double step_of(const char *type)
{
    return !strcmp(type, "f32")      ? 0
           : !strcmp(type, "f16")    ? 0x1p-11 / sqrt(3)
           : !strcmp(type, "bf16")   ? 0x1p-9 / sqrt(3)
           : !strcmp(type, "q4_0")   ? 4.0 / 8 / sqrt(12)
           : !strcmp(type, "q4_1")   ? 4.0 / 7.5 / sqrt(12)
           : !strcmp(type, "q5_0")   ? 4.0 / 16 / sqrt(12)
           : !strcmp(type, "q5_1")   ? 4.0 / 15.5 / sqrt(12)
           : !strcmp(type, "iq4_nl") ? 4.0 / 7.5 / sqrt(12)
                                     : 4.0 / 127 / sqrt(12);
}

struct gr_diff_steps gr_diff_steps(const struct gr_options *o, const struct gr_model_info *info)
{
    const char *w = info->file_type;
    bool gpu = info->n_gpu_layers > 0, f32 = !strcmp(w, "f32"), f16 = !strcmp(w, "f16");
    bool bf16 = !strcmp(w, "bf16"), exact = f32 || f16 || !strcmp(o->cpu_level, "ref");
    bool cpu = info->n_gpu_layers <= info->n_layer;
    double on_cpu = !cpu || exact ? 0 : step_of(bf16 ? "bf16" : "q8_0");
    double on_gpu = !gpu || f32 ? 0 : step_of(bf16 ? "bf16" : "f16") * (bf16 || f16 ? 1 : 3);
    double k = step_of(o->cache_type_k), v = step_of(o->cache_type_v);
    return (struct gr_diff_steps){fmax(on_cpu, on_gpu), hypot(k, v),
                                  gpu && k + v > 0 ? 0x1p-11 : 0};
}

/* Returns the variance that rounding by steps a and b (standard deviations) adds to a difference of
 * variance v. */
static double rounded(double a, double b, double v)
{
    return a == b ? fmin(2 * a * a, sqrt(v) * a) : a * a + b * b;
}

/* Returns whether a node is the output of attention or of a recurrence. */
static bool mixes(const char *name)
{
    static const char *const names[] = {"attn", "scan", "delta", "wkv"};
    bool does = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        does |= !strcmp(name, names[i]);
    return does;
}

/* The tolerance of a node, as a multiple of the RMS. */
static double tolerance(const struct gr_diff *d, const struct gr_diff_node *n)
{
    const struct gr_diff_steps *a = &d->side[0].steps, *b = &d->side[1].steps;
    double sum = 0x1p-24 * sqrt(4 * (double)d->n_embd / 6), v = 2 * sum * sum;
    if (d->o->tolerance >= 0)
        return (double)d->o->tolerance;
    for (int i = 0; i < (n->early ? 4 * n->depth - 3 : 4 * n->depth); i++) {
        double product = 2 * sum * sum + rounded(a->x, b->x, v);
        double of_mix = rounded(a->cache, b->cache, v) + rounded(a->attention, b->attention, v);
        v += product;
        if (i % 4 == 1) /* attention is between the first product and the second */
            v += of_mix + SCORES * SCORES * SHARE * (of_mix + product);
    }
    return 6 * sqrt(n->mixed ? v * (1 + SCORES * SCORES) : v);
}

/* ---- comparing ---- */

/* Compares an element of a node whose tolerance is t. */
static void compare(struct gr_diff_node *n, double t, int64_t row, int64_t col, float a, float b)
{
    double most = t * fmax(n->rms, fabs((double)a)), off = fabs((double)a - (double)b);
    double ratio = !isfinite(a) || !isfinite(b) ? INFINITY
                   : off == 0                   ? 0
                   : most > 0                   ? off / most
                                                : INFINITY;
    if (ratio > n->worst.ratio || n->worst.row < 0)
        n->worst = (struct gr_diff_worst){
            .ratio = ratio, .tolerance = most, .row = row, .col = col, .a = a, .b = b};
}

static double rms(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += isfinite(x[i]) ? (double)x[i] * (double)x[i] : 0;
    return sqrt(sum / (double)(n ? n : 1));
}

/* Finds the node of this name for the current way of running the prompt; NULL: none yet. */
static struct gr_diff_node *find(struct gr_diff *d, const char *name, int layer, int64_t cols)
{
    for (size_t i = 0; i < d->n_node; i++) {
        struct gr_diff_node *n = &d->node[i];
        if (n->way == d->way && n->layer == layer && n->cols == cols && !strcmp(n->name, name))
            return n;
    }
    return NULL;
}

static struct gr_diff_node *add(struct gr_diff *d, const char *name, int layer, int64_t cols)
{
    if (d->n_node == d->n_room) {
        size_t room = d->n_room ? 2 * d->n_room : 64;
        struct gr_diff_node *grown = realloc(d->node, room * sizeof *grown);
        if (!grown)
            return NULL;
        d->node = grown, d->n_room = room;
    }
    struct gr_diff_node *n = &d->node[d->n_node++];
    bool early = layer >= 0 && layer != d->last_layer;
    d->last_layer = layer >= 0 ? layer : d->last_layer;
    *n = (struct gr_diff_node){
        .layer = layer, .depth = d->last_layer + 1, .way = d->way, .cols = cols};
    n->early = early, n->mixed = mixes(name), n->rms = -1, n->worst.row = -1;
    snprintf(n->name, sizeof n->name, "%s", name);
    return n;
}

/* Appends rows of side A. */
static void keep(struct gr_diff *d, struct gr_diff_node *n, const float *x, int64_t rows)
{
    size_t had = (size_t)(n->rows * n->cols), more = (size_t)(rows * n->cols);
    float *grown = realloc(n->x, (had + more + 1) * sizeof *grown);
    if (!grown) {
        d->rc = gr_say_no_memory();
        return;
    }
    memcpy(grown + had, x, more * sizeof *x);
    n->x = grown, n->rows += rows;
}

void gr_diff_tap(const char *name, int layer, const float *x, int64_t rows, int64_t cols,
                 void *user)
{
    struct gr_diff *d = user;
    struct gr_diff_node *n = d->rc ? NULL : find(d, name, layer, cols);
    if (!d->rc && !n && !(n = add(d, name, layer, cols)))
        d->rc = gr_say_no_memory();
    if (d->rc)
        return;
    if (d->at == &d->side[0]) {
        keep(d, n, x, rows);
        return;
    }
    double t = tolerance(d, n);
    n->rms = n->rms < 0 ? rms(n->x, (size_t)(n->rows * cols)) : n->rms;
    for (int64_t r = 0; r < rows; r++, n->rows_b++)
        for (int64_t c = 0; c < cols && n->rows_b < n->rows; c++)
            compare(n, t, n->rows_b, c, n->x[n->rows_b * cols + c], x[r * cols + c]);
}

static int32_t largest(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

int gr_diff_begin(struct gr_diff *d, enum gr_diff_way way)
{
    struct gr_diff_logits *l = &d->logits[way];
    size_t n = d->n * (size_t)d->n_vocab;
    d->way = way, d->last_layer = -1;
    if (d->at == &d->side[0])
        l->a = malloc(n * sizeof *l->a);
    else
        l->node = (struct gr_diff_node){.depth = d->n_layer, .rms = rms(l->a, n), .worst.row = -1};
    return l->a ? 0 : gr_say_no_memory();
}

void gr_diff_logits(struct gr_diff *d, size_t i, const float *b)
{
    struct gr_diff_logits *l = &d->logits[d->way];
    float *a = l->a + i * (size_t)d->n_vocab;
    if (d->at == &d->side[0]) {
        memcpy(a, b, (size_t)d->n_vocab * sizeof *a);
        return;
    }
    double t = tolerance(d, &l->node);
    for (int32_t c = 0; c < d->n_vocab; c++) {
        double off = (double)a[c] - (double)b[c];
        l->d2 += off * off, l->a2 += (double)a[c] * (double)a[c];
        l->most = fmax(l->most, fabs(off));
        compare(&l->node, t, (int64_t)i, c, a[c], b[c]);
    }
    l->n_same += largest(a, d->n_vocab) == largest(b, d->n_vocab);
}

/* ---- the report ---- */

static bool lacks(const struct gr_diff_node *n)
{
    return n->rows != n->rows_b;
}

static bool is_beyond(const struct gr_diff_node *n)
{
    return lacks(n) || n->worst.ratio > 1;
}

/* The first node beyond its tolerance, and the worst one that both sides have; NULL: none. */
static const struct gr_diff_node *first_of(const struct gr_diff *d)
{
    for (size_t i = 0; i < d->n_node; i++)
        if (is_beyond(&d->node[i]))
            return &d->node[i];
    return NULL;
}

static const struct gr_diff_node *worst_of(const struct gr_diff *d)
{
    const struct gr_diff_node *w = NULL;
    for (size_t i = 0; i < d->n_node; i++)
        if (!lacks(&d->node[i]) && (!w || d->node[i].worst.ratio > w->worst.ratio))
            w = &d->node[i];
    return w;
}

/* Returns the first node whose tolerance is as large as its values, so that errors from there on
 * would not be found; NULL: none. */
static const struct gr_diff_node *blind_of(const struct gr_diff *d)
{
    for (size_t i = 0; i < d->n_node && d->o->tolerance < 0; i++)
        if (tolerance(d, &d->node[i]) >= 1)
            return &d->node[i];
    return NULL;
}

static double l2(const struct gr_diff_logits *l)
{
    return l->d2 > 0 || isnan(l->d2) ? sqrt(l->d2 / l->a2) : 0;
}

#define FUSED                                                                                      \
    "the difference comes with fusions, graphs or launches that begin early; try --no-cuda-fuse, " \
    "--no-cuda-graph, --no-cuda-pdl in -a and -b"

static const char *verdict(const struct gr_diff *d, bool nodes, bool logits)
{
    bool off = d->logits[GR_WAY_WHOLE].d2 + d->logits[GR_WAY_EACH].d2 > 0;
    const struct gr_diff_node *worst = worst_of(d);
    return nodes    ? "the two sides differ"
           : logits ? "each node alone agrees and the logits do not: " FUSED
           : !off   ? "the two sides agree to the last bit of their logits"
           : blind_of(d)
               ? "nothing is beyond its tolerance, which says nothing from some node on: give "
                 "--tolerance, or finer cache types and, in -a, --cpu-level ref"
           : worst && worst->worst.ratio > 0 ? "the two sides agree, as far as rounding lets them"
                                             : "each node alone has the same bits and the logits, "
                                               "which have not, agree as far as "
                                               "rounding lets them: " FUSED;
}

static void print_node(const char *title, const struct gr_diff_node *n)
{
    const struct gr_diff_worst *w = &n->worst;
    printf("%s: %s of ", title, n->name);
    if (n->layer >= 0)
        printf("layer %d, ", n->layer);
    else
        printf("no layer, ");
    printf("%s, ", way_name[n->way]);
    if (lacks(n))
        printf("%lld rows of %lld columns with -a, %lld with -b\n", (long long)n->rows,
               (long long)n->cols, (long long)n->rows_b);
    else
        printf("row %lld, column %lld: %.7g and %.7g, tolerance %.3g, %.3g of it\n",
               (long long)w->row, (long long)w->col, (double)w->a, (double)w->b, w->tolerance,
               w->ratio);
}

static void print_text(const struct gr_diff *d, bool nodes, bool logits)
{
    const struct gr_diff_node *first = first_of(d), *worst = worst_of(d);
    for (int i = 0; i < 2; i++)
        printf("%s \"%s\": %s\n", d->side[i].name, d->side[i].flags, d->side[i].where);
    printf("%zu tokens, %zu nodes\n", d->n, d->n_node);
    for (size_t i = 0; i < d->n_node && (d->o->verbose || d->o->verbosity > 3); i++)
        print_node(is_beyond(&d->node[i]) ? "beyond" : "node", &d->node[i]);
    if (first)
        print_node("first node beyond its tolerance", first);
    if (blind_of(d))
        print_node("first node with a tolerance as large as its values", blind_of(d));
    if (worst && worst->worst.ratio > 0)
        print_node("worst node", worst);
    else if (!first)
        printf("no node differs\n");
    for (int i = 0; i < GR_N_WAY; i++) {
        const struct gr_diff_logits *l = &d->logits[i];
        printf("logits, %s: relative L2 %.3g, largest difference %.3g, %.3g of the tolerance; "
               "%lld of %zu greedy tokens the same\n",
               way_name[i], l2(l), l->most, l->node.worst.ratio, (long long)l->n_same, d->n);
    }
    printf("%s\n", verdict(d, nodes, logits));
}

/* Returns null for a non-finite number. */
static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *node_json(const struct gr_diff_node *n)
{
    return !n ? json_null()
              : json_pack("{s:s,s:i,s:s,s:I,s:I,s:I,s:I,s:o,s:o,s:o,s:o}", "name", n->name, "layer",
                          n->layer, "way", way_name[n->way], "rows_a", (json_int_t)n->rows,
                          "rows_b", (json_int_t)n->rows_b, "row", (json_int_t)n->worst.row,
                          "column", (json_int_t)n->worst.col, "a", number((double)n->worst.a), "b",
                          number((double)n->worst.b), "tolerance", number(n->worst.tolerance),
                          "ratio", number(n->worst.ratio));
}

static int print_json(const struct gr_diff *d, bool nodes, bool logits)
{
    json_t *ways = json_array(), *sides = json_array();
    for (int i = 0; i < 2; i++)
        json_array_append_new(
            sides, json_pack("{s:s,s:s}", "flags", d->side[i].flags, "where", d->side[i].where));
    for (int i = 0; i < GR_N_WAY; i++) {
        const struct gr_diff_logits *l = &d->logits[i];
        json_array_append_new(ways, json_pack("{s:s,s:o,s:o,s:o,s:I}", "way", way_name[i], "l2",
                                              number(l2(l)), "largest", number(l->most), "ratio",
                                              number(l->node.worst.ratio), "same_tokens",
                                              (json_int_t)l->n_same));
    }
    json_t *all =
        json_pack("{s:o,s:I,s:I,s:o,s:o,s:o,s:o,s:b,s:s}", "sides", sides, "tokens",
                  (json_int_t)d->n, "nodes", (json_int_t)d->n_node, "first", node_json(first_of(d)),
                  "worst", node_json(worst_of(d)), "blind", node_json(blind_of(d)), "logits", ways,
                  "agree", !nodes && !logits, "verdict", verdict(d, nodes, logits));
    bool bad = (!all || json_dumpf(all, stdout, JSON_COMPACT)) && !ferror(stdout);
    putchar('\n');
    json_decref(all);
    return bad ? gr_say_no_memory() : 0;
}

int gr_diff_report(const struct gr_diff *d)
{
    bool nodes = first_of(d) != NULL, logits = false;
    for (int i = 0; i < GR_N_WAY; i++)
        logits |= d->logits[i].node.worst.ratio > 1;
    int rc = 0;
    if (d->o->json)
        rc = print_json(d, nodes, logits);
    else
        print_text(d, nodes, logits);
    return rc || (!nodes && !logits) ? rc : gr_status_exit(GR_E_CHECK);
}
