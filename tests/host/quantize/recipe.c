/* The types that recipes choose, against what llama.cpp chose for the same models
 * (scripts/compare/recipes, which makes these files too and says what differs). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gguf/gguf.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "quantize/recipe.h"

enum model { grouped, single, large, mixtral, experts, plain, qwen80, deep, fused, N_MODEL };

static const struct shape {
    char arch[12];
    uint32_t n_layer, n_head, n_kv, n_expert;
    bool output;
} shapes[] = {
    [grouped] = {"llama", 32, 8, 2, 0, true},     [single] = {"llama", 32, 8, 8, 0, false},
    [large] = {"llama", 80, 8, 1, 0, true},       [mixtral] = {"llama", 24, 4, 2, 8, true},
    [experts] = {"qwen2moe", 17, 4, 4, 16, true}, [plain] = {"falcon", 33, 4, 1, 0, true},
    [qwen80] = {"qwen2", 80, 4, 4, 0, true},      [deep] = {"qwen3", 65, 4, 4, 0, false},
    [fused] = {"phi3", 40, 4, 4, 0, true},
};

static const struct choice {
    enum model model;
    char recipe[12];
    bool imatrix;
    uint32_t hash;
} choices[] = {
#define CHOICE(model, recipe, imatrix, hash) {model, #recipe, imatrix, hash},
#include "golden/quant/recipes.inc"
};

static char path[] = "/tmp/gpurun-recipe-XXXXXX";
static struct gr_gguf *opened[N_MODEL];
static size_t bytes[2048], n_bytes; /* of the tensors of the file that is being made */

static void add(struct gr_gguf_writer *w, uint64_t n_matrix, uint64_t rows, const char *name)
{
    char full[64];
    const uint64_t ne[] = {256, rows, n_matrix};
    int n = snprintf(full, sizeof full, "%s.weight", name);
    bytes[n_bytes++] = 256 * 2 * rows * (n_matrix ? n_matrix : 1);
    cr_assert_eq(
        gr_gguf_add_tensor(w, (struct gr_str){full, (size_t)n}, GR_F16, n_matrix ? 3 : 2, ne), 0,
        "%s", gr_error());
}

static void add_layer(struct gr_gguf_writer *w, const struct shape *s, uint32_t i)
{
    static const char *const attn[] = {"attn_q", "attn_k", "attn_v"}, *const ffn[] = {"gate", "up",
                                                                                      "down"};
    char name[64];
    snprintf(name, sizeof name, "blk.%u.attn_qkv", i);
    if (!strcmp(s->arch, "phi3"))
        add(w, 0, 2, name);
    for (int k = 0; k < 3 && strcmp(s->arch, "phi3") != 0; k++) {
        snprintf(name, sizeof name, "blk.%u.%s", i, attn[k]);
        add(w, 0, 2, name);
    }
    snprintf(name, sizeof name, "blk.%u.attn_output", i);
    add(w, 0, 2, name);
    snprintf(name, sizeof name, "blk.%u.ffn_gate_inp", i);
    if (s->n_expert)
        add(w, 0, s->n_expert, name);
    for (int k = 0; k < 3; k++) {
        snprintf(name, sizeof name, "blk.%u.ffn_%s%s", i, ffn[k], s->n_expert ? "_exps" : "");
        add(w, s->n_expert, 2, name);
        snprintf(name, sizeof name, "blk.%u.ffn_%s_shexp", i, ffn[k]);
        if (s->n_expert)
            add(w, 0, 2, name);
    }
}

static void set(struct gr_gguf_writer *w, const struct shape *s, const char *key, uint32_t value)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", s->arch, key);
    cr_assert_eq(gr_gguf_set_u32(w, name, value), 0);
}

/* A file with names and shapes; all weights are 0. */
static struct gr_gguf *model(enum model m)
{
    static const uint8_t zeros[1 << 16];
    const struct shape *s = &shapes[m];
    struct gr_gguf_writer *w;
    n_bytes = 0;
    if (opened[m])
        return opened[m];
    cr_assert_eq(gr_gguf_writer_new(&w), 0);
    cr_assert_eq(gr_gguf_set_str(w, "general.architecture", s->arch), 0);
    set(w, s, "block_count", s->n_layer);
    set(w, s, "attention.head_count", s->n_head);
    set(w, s, "attention.head_count_kv", s->n_kv);
    if (s->n_expert)
        set(w, s, "expert_count", s->n_expert);
    add(w, 0, 32, "token_embd");
    if (s->output)
        add(w, 0, 32, "output");
    for (uint32_t i = 0; i < s->n_layer; i++)
        add_layer(w, s, i);
    strcpy(path + sizeof path - 7, "XXXXXX");
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    cr_assert_eq(gr_gguf_begin(w, path), 0, "%s", gr_error());
    for (size_t i = 0; i < n_bytes; i++)
        cr_assert_eq(gr_gguf_write(w, zeros, bytes[i]), 0, "%s", gr_error());
    cr_assert_eq(gr_gguf_commit(w), 0, "%s", gr_error());
    gr_gguf_writer_free(&w);
    cr_assert_eq(gr_gguf_open(&opened[m], path, false), 0, "%s", gr_error());
    unlink(path);
    return opened[m];
}

static void teardown(void)
{
    for (int m = 0; m < N_MODEL; m++)
        gr_gguf_close(&opened[m]);
}

TestSuite(recipe, .fini = teardown);

static int by_name(const void *a, const void *b)
{
    const struct gr_gguf_tensor *const *x = a, *const *y = b;
    size_t n = GR_MIN((*x)->name.n, (*y)->name.n);
    int c = memcmp((*x)->name.p, (*y)->name.p, n);
    return c ? c : (*x)->name.n > (*y)->name.n ? 1 : -1;
}

static uint32_t hash_of(const struct gr_gguf *g, const uint32_t *type)
{
    const struct gr_gguf_tensor *order[2048];
    uint64_t n = gr_gguf_n_tensor(g);
    uint32_t h = 0x811c9dc5;
    cr_assert_leq(n, GR_COUNT(order));
    for (uint64_t i = 0; i < n; i++)
        order[i] = gr_gguf_tensor_at(g, i);
    const struct gr_gguf_tensor *first = order[0];
    qsort(order, n, sizeof order[0], by_name);
    for (uint64_t i = 0; i < n; i++) {
        char line[128];
        snprintf(line, sizeof line, "%.*s %s\n", (int)order[i]->name.n, order[i]->name.p,
                 gr_dtype_name(type[order[i] - first]));
        for (const char *p = line; *p; p++)
            h = (h ^
                 (unsigned char)(*p >= 'A' && *p <= 'Z' && p > strchr(line, ' ') ? *p + 32 : *p)) *
                0x01000193u;
    }
    return h;
}

Test(recipe, types_are_llama_cpps)
{
    const struct gr_quantize_params params = {.dry_run = true};
    uint32_t type[2048];
    cr_assert_gt(GR_COUNT(choices), 600);
    for (size_t i = 0; i < GR_COUNT(choices); i++) {
        const struct choice *c = &choices[i];
        const struct gr_recipe *r = gr_recipe_find(c->recipe);
        cr_assert(r, "%s", c->recipe);
        cr_assert_eq(gr_recipe_choose(model(c->model), r, &params, c->imatrix, type), 0, "%s",
                     gr_error());
        cr_expect_eq(hash_of(model(c->model), type), c->hash, "model %d, %s, imatrix %d", c->model,
                     c->recipe, c->imatrix);
    }
}

static uint32_t type_of(const struct gr_quantize_params *p, const char *recipe, const char *name)
{
    uint32_t type[2048];
    const struct gr_gguf *g = model(grouped);
    cr_assert_eq(gr_recipe_choose(g, gr_recipe_find(recipe), p, false, type), 0, "%s", gr_error());
    return type[gr_gguf_find_tensor(g, name) - gr_gguf_tensor_at(g, 0)];
}

Test(recipe, what_is_said_of_tensors_counts_first)
{
    const char *const patterns[] = {"blk\\.[0-3]\\.attn_v=q8_0", "attn_(v|k)=Q5_1", NULL};
    struct gr_quantize_params p = {.tensor_types = patterns, .output_type = "f16"};
    cr_expect_eq(type_of(&p, "Q4_K_M", "blk.3.attn_v.weight"), GR_Q8_0);
    cr_expect_eq(type_of(&p, "Q4_K_M", "blk.4.attn_v.weight"), GR_Q5_1);
    cr_expect_eq(type_of(&p, "Q4_K_M", "blk.31.attn_q.weight"), GR_Q4_K);
    cr_expect_eq(type_of(&p, "Q4_K_M", "output.weight"), GR_F16);
    cr_expect_eq(type_of(&p, "Q4_K_M", "token_embd.weight"), GR_Q4_K);
    p = (struct gr_quantize_params){.embedding_type = "q3_K", .pure = true};
    cr_expect_eq(type_of(&p, "Q4_K_M", "token_embd.weight"), GR_Q3_K);
    cr_expect_eq(type_of(&p, "Q4_K_M", "output.weight"), GR_Q4_K);
    cr_expect_eq(type_of(&p, "Q4_K_M", "blk.0.attn_v.weight"), GR_Q4_K);
    p = (struct gr_quantize_params){.leave_output = true};
    cr_expect_eq(type_of(&p, "Q4_K_M", "output.weight"), GR_F16);
}

static void refused(const struct gr_quantize_params *p, const char *recipe, int status,
                    const char *why)
{
    uint32_t type[2048];
    int rc = gr_recipe_choose(model(grouped), gr_recipe_find(recipe), p, false, type);
    cr_expect_eq(rc, status, "%d %s", rc, gr_error());
    cr_expect(strstr(gr_error(), why), "%s", gr_error());
}

Test(recipe, refusals)
{
    const char *const bad_type[] = {"attn_v=q9_K", NULL},
                      *const bad_pattern[] = {"attn_(v=q8_0", NULL},
                      *const no_type[] = {"attn_v", NULL}, *const slow[] = {"(a|a|b)*c=q8_0", NULL},
                      *const nowhere[] = {"attn_v=q8_0", "attn_w=q8_0", NULL};
    struct gr_quantize_params p = {.tensor_types = bad_type};
    refused(&p, "Q4_K_M", GR_E_INVALID, "'q9_K'");
    p.tensor_types = bad_pattern;
    refused(&p, "Q4_K_M", GR_E_INVALID, "no regular expression at character");
    p.tensor_types = no_type;
    refused(&p, "Q4_K_M", GR_E_INVALID, "PATTERN=TYPE");
    p = (struct gr_quantize_params){.output_type = "nothing"};
    refused(&p, "Q4_K_M", GR_E_INVALID, "'nothing'");
    p = (struct gr_quantize_params){.tensor_types = slow};
    refused(&p, "Q4_K_M", GR_E_INVALID, "'(a|a|b)*c=q8_0': the regular expression occurs in no");
    p = (struct gr_quantize_params){.tensor_types = nowhere};
    refused(&p, "Q4_K_M", GR_E_INVALID, "'attn_w=q8_0': the regular expression occurs in no");
    p = (struct gr_quantize_params){.pure = true};
    refused(&p, "Q2_K_S", GR_E_INVALID, "importance matrix");
}
