/* Choosing types. Tensors are counted in order of layers and names, not of the file, so that the
 * types do not depend on how the file was written. */
#include "quantize/recipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "quant/quant.h"
#include "quantize/override.h"
#include "registry/registry.h"

enum name {
#define FILE_TYPE(NAME, number, TYPE) NAME_##NAME,
#include "gguf/file_type.def"
#undef FILE_TYPE
    N_NAME
};
#define BIT_ANY UINT64_MAX
_Static_assert(N_NAME <= 64, "recipes are bits");

enum part { P_OTHER, P_V, P_K, P_Q, P_ATTN, P_GATE, P_UP, P_DOWN, P_OUTPUT, P_EMBD, N_PART };
#define P_EVERY N_PART

/* Conditions; i is the layer, n the number of layers. */
enum {
    EIGHTH = 1,      /* i < n / 8 */
    SIXTEENTH = 2,   /* i < n / 16 */
    MIDDLE = 4,      /* n / 8 <= i < 7 n / 8 */
    OFTEN = 8,       /* the first and the last eighth, and every third between them */
    FIRST_2 = 16,    /* i < 2 */
    FIRST_4 = 32,    /* i < 4 */
    GROUPS_4 = 64,   /* at least four heads of Q to one of K and V */
    EXPERTS_4 = 128, /* at least four experts */
    EXPERTS_8 = 256, /* exactly eight */
    IMATRIX = 512,
    NO_IMATRIX = 1024,
    PLAIN = 2048,  /* option of the architecture (gr_arch_mix) */
    STACKED = 4096 /* one matrix per expert */
};
#define SAME UINT32_MAX

static const struct gr_recipe recipes[] = {
#define FILE_TYPE(NAME, number, TYPE) {#NAME, number, GR_##TYPE, UINT64_C(1) << NAME_##NAME},
#include "gguf/file_type.def"
#undef FILE_TYPE
};

static const struct {
    const char *name;
    enum name recipe;
} aliases[] = {
#define ALIAS(name, NAME) {#name, NAME_##NAME},
#include "quantize/recipe.def"
};

#define NAME_ANY 64
#define GR_SAME SAME
static const struct line {
    uint64_t recipes;
    enum part part;
    uint32_t when, type;
} lines[] = {
#define MIX(NAME, PART, when, TYPE)                                                                \
    {NAME_##NAME == NAME_ANY ? BIT_ANY : UINT64_C(1) << (NAME_##NAME % 64), (enum part)P_##PART,   \
     when, GR_##TYPE},
#include "quantize/recipe.def"
};

/* Properties of a model that the rules depend on. */
struct facts {
    uint32_t n_layer, n_group, n_expert;
    const struct gr_arch_mix *mix;
    bool tied, large;
};

struct count {
    uint32_t i[N_PART], n_v;
};

const struct gr_recipe *gr_recipe_find(const char *name)
{
    for (size_t i = 0; i < GR_COUNT(recipes); i++)
        if (strcasecmp(name, recipes[i].name) == 0)
            return recipes + i;
    for (size_t i = 0; i < GR_COUNT(aliases); i++)
        if (strcasecmp(name, aliases[i].name) == 0)
            return recipes + aliases[i].recipe;
    return NULL;
}

const char *gr_recipe_names(void)
{
    static _Thread_local char names[512];
    size_t n = 0;
    names[0] = 0;
    for (size_t i = 0; i < GR_COUNT(recipes) && n < sizeof names; i++)
        if (gr_quant_find(recipes[i].type)->quantize)
            n += (size_t)snprintf(names + n, sizeof names - n, " %s", recipes[i].name);
    return names;
}

const char *gr_recipe_name(int32_t i, char *about, size_t n)
{
    for (size_t k = 0; i >= 0 && k < GR_COUNT(recipes); k++) {
        const struct gr_dtype_info *t = gr_dtype_find(recipes[k].type);
        if (!gr_quant_find(t->id)->quantize || i-- > 0)
            continue;
        snprintf(about, n, "mostly %s, %.4g bits%s", t->name, 8.0 * t->block_bytes / t->block,
                 t->importance ? ", needs importances" : "");
        return recipes[k].name;
    }
    if (i >= 0 && (size_t)i < GR_COUNT(aliases)) {
        snprintf(about, n, "the same as %s", recipes[aliases[i].recipe].name);
        return aliases[i].name;
    }
    snprintf(about, n, "%s", i == GR_COUNT(aliases) ? "every tensor as it is" : "");
    return i == GR_COUNT(aliases) ? "COPY" : NULL;
}

static bool has(struct gr_str name, const char *part)
{
    return memmem(name.p, name.n, part, strlen(part)) != NULL;
}

static bool ends_with(struct gr_str s, const char *tail)
{
    size_t n = strlen(tail);
    return s.n >= n && memcmp(s.p + s.n - n, tail, n) == 0;
}

/* Matrices that are not quantised: small, looked up exactly, or inputs of f32 operations. */
static const char *const kept[] = {"_norm.weight",
                                   "ffn_gate_inp.weight",
                                   "ffn_gate_tid2eid.weight",
                                   "altup",
                                   "laurel",
                                   "per_layer_model_proj",
                                   "ssm_conv1d",
                                   "shortconv.conv.weight",
                                   "indexer.k_proj.weight",
                                   "indexer.q_proj.weight",
                                   "time_mix_first.weight",
                                   "time_mix_w0.weight",
                                   "time_mix_w1.weight",
                                   "time_mix_w2.weight",
                                   "time_mix_v0.weight",
                                   "time_mix_v1.weight",
                                   "time_mix_v2.weight",
                                   "time_mix_a0.weight",
                                   "time_mix_a1.weight",
                                   "time_mix_a2.weight",
                                   "time_mix_g1.weight",
                                   "time_mix_g2.weight",
                                   "time_mix_decay_w1.weight",
                                   "time_mix_decay_w2.weight",
                                   "time_mix_lerp_fused.weight",
                                   "attn_rel_b.weight",
                                   ".position_embd",
                                   "sam.pos_embd",
                                   "sam.neck.",
                                   "sam.net_",
                                   ".rel_pos",
                                   ".patch_embd",
                                   ".patch_merger",
                                   "a.rvq.codebook",
                                   "mm.a.code_embd"};

static bool is_converted(const struct gr_gguf_tensor *t, const struct gr_quantize_params *p)
{
    if (t->n_dim < 2 || t->bytes == gr_row_bytes(t->dtype, t->ne[0]) ||
        !ends_with(t->name, "weight") || gr_str_is(t->name, "position_embd.weight") ||
        gr_str_is(t->name, "token_types.weight") ||
        (p->leave_output && gr_str_is(t->name, "output.weight")))
        return false;
    for (size_t i = 0; i < GR_COUNT(kept); i++)
        if (has(t->name, kept[i]))
            return false;
    return true;
}

static bool is_embedding(struct gr_str name)
{
    return gr_str_is(name, "token_embd.weight") || gr_str_is(name, "per_layer_token_embd.weight");
}

static enum part part_of(struct gr_str name, bool tied)
{
    static const struct {
        const char *name;
        enum part part;
    } parts[] = {
        {"attn_qkv.weight", P_V}, {"attn_kv_b.weight", P_V}, {"attn_v.weight", P_V},
        {"attn_k.weight", P_K},   {"attn_q.weight", P_Q},    {"attn_output.weight", P_ATTN},
        {"ffn_up", P_UP},         {"ffn_gate", P_GATE},      {"ffn_down", P_DOWN}};
    if (gr_str_is(name, "output.weight"))
        return P_OUTPUT;
    if (is_embedding(name))
        return tied ? P_OUTPUT : P_EMBD;
    for (size_t i = 0; i < GR_COUNT(parts); i++)
        if (has(name, parts[i].name))
            return parts[i].part;
    return P_OTHER;
}

/* The number in "blk.N.", or -1. */
static int64_t layer_of(struct gr_str name)
{
    int64_t n = 0;
    size_t at = 4;
    if (name.n < 6 || memcmp(name.p, "blk.", 4) != 0)
        return -1;
    for (; at < name.n && name.p[at] >= '0' && name.p[at] <= '9' && n < 1 << 20; at++)
        n = 10 * n + (name.p[at] - '0');
    return at > 4 && at < name.n && name.p[at] == '.' ? n : -1;
}

/* Returns "<architecture>.<key>" as a number (of an array the first item); 0 when it is missing. */
static uint32_t key_u32(const struct gr_gguf *g, struct gr_str arch, const char *key)
{
    char name[128];
    int64_t x = 0;
    snprintf(name, sizeof name, "%.*s.%s", (int)GR_MIN(arch.n, (size_t)64), arch.p, key);
    const struct gr_gguf_kv *kv = gr_gguf_find(g, name);
    return kv && kv->n && gr_gguf_item_i64(kv, 0, &x) && x > 0 && x <= INT32_MAX ? (uint32_t)x : 0;
}

static void read_facts(const struct gr_gguf *g, struct facts *f)
{
    static const struct gr_arch_mix none;
    struct gr_str name = {"", 0};
    (void)gr_gguf_opt_str(g, "general.architecture", "", &name);
    const struct gr_arch *arch = gr_arch_find(name);
    uint32_t n_head = key_u32(g, name, "attention.head_count");
    uint32_t n_kv = key_u32(g, name, "attention.head_count_kv");
    char key[128];
    snprintf(key, sizeof key, "%.*s.attention.head_count_kv", (int)GR_MIN(name.n, (size_t)64),
             name.p);
    if (!gr_gguf_find(g, key))
        n_kv = n_head;
    f->mix = arch ? &arch->mix : &none;
    f->n_layer = key_u32(g, name, "block_count");
    f->n_expert = key_u32(g, name, "expert_count");
    f->n_group = n_kv ? n_head / n_kv : 0;
    f->tied = !gr_gguf_find_tensor(g, "output.weight");
    f->large = f->mix->n_layer_large && f->n_layer == f->mix->n_layer_large &&
               (!f->mix->large_if_grouped || n_head != n_kv);
}

/* Returns the conditions that hold for layer i of n. */
static uint32_t where(uint32_t i, uint32_t n)
{
    uint32_t eighth = n / 8, last = (uint32_t)(7 * (uint64_t)n / 8), met = 0;
    met |= i < eighth ? EIGHTH : 0;
    met |= i < n / 16 ? SIXTEENTH : 0;
    met |= i >= eighth && i < last ? MIDDLE : 0;
    met |= i < eighth || i >= last || (i - eighth) % 3 == 2 ? OFTEN : 0;
    met |= i < 2 ? FIRST_2 : 0;
    return met | (i < 4 ? FIRST_4 : 0);
}

static uint32_t conditions(const struct facts *f, const struct gr_gguf_tensor *t, enum part part,
                           bool imatrix)
{
    bool ffn = part == P_GATE || part == P_UP || part == P_DOWN;
    uint32_t met = imatrix ? IMATRIX : NO_IMATRIX;
    met |= f->n_group >= 4 ? GROUPS_4 : 0;
    met |= f->n_expert >= 4 ? EXPERTS_4 : 0;
    met |= f->n_expert == 8 ? EXPERTS_8 : 0;
    met |= f->mix->plain ? PLAIN : 0;
    return met | (t->ne[2] > 1 && (ffn || !f->mix->experts_alone) ? STACKED : 0);
}

/* Returns the layer index that the rules use: for models with experts the one in the name,
 * otherwise, for V and for types below three bits, the number of such tensors before this one. */
static uint32_t layer_at(const struct facts *f, const struct gr_gguf_tensor *t, enum part part,
                         const struct count *c, bool tiny)
{
    int64_t named = layer_of(t->name);
    return part != P_V && f->n_expert > 1 && !tiny && named >= 0 ? (uint32_t)named : c->i[part];
}

static uint32_t mixed(const struct facts *f, const struct gr_gguf_tensor *t,
                      const struct gr_recipe *r, struct count *c, bool imatrix)
{
    enum part part = part_of(t->name, f->tied);
    bool tiny = r->type == GR_IQ1_S || r->type == GR_IQ1_M || r->type == GR_IQ2_XXS ||
                r->type == GR_IQ2_XS || r->type == GR_IQ2_S;
    uint32_t i = layer_at(f, t, part, c, tiny), type = r->type;
    uint32_t met = conditions(f, t, part, imatrix) | where(i, part == P_V ? c->n_v : f->n_layer);
    c->i[part]++;
    if (part == P_OUTPUT && (f->mix->plain || t->ne[0] % gr_dtype_find(type)->block))
        return GR_Q8_0;
    for (size_t k = 0; k < GR_COUNT(lines); k++) {
        const struct line *l = lines + k;
        if ((l->recipes & r->bit) && (l->part == part || (int)l->part == P_EVERY) &&
            (l->when & ~met) == 0) {
            type = l->type == SAME ? r->type : l->type;
            break;
        }
    }
    bool more = part == P_V && f->large && !tiny && (type == GR_Q3_K || type == GR_Q4_K);
    return more ? GR_Q5_K : type;
}

/* Returns the type itself when rows of ne0 elements are whole blocks, else a fallback type that
 * fits; UINT32_MAX: none does. */
static uint32_t fitting(uint32_t type, uint64_t ne0)
{
    static const struct {
        uint32_t type, next;
    } next[] = {{GR_IQ1_S, GR_IQ4_NL},  {GR_IQ1_M, GR_IQ4_NL},  {GR_IQ2_XXS, GR_IQ4_NL},
                {GR_IQ2_XS, GR_IQ4_NL}, {GR_IQ2_S, GR_IQ4_NL},  {GR_IQ3_XXS, GR_IQ4_NL},
                {GR_IQ3_S, GR_IQ4_NL},  {GR_IQ4_XS, GR_IQ4_NL}, {GR_Q2_K, GR_Q4_0},
                {GR_Q3_K, GR_Q4_0},     {GR_Q2_0, GR_Q4_0},     {GR_TQ1_0, GR_Q4_0},
                {GR_TQ2_0, GR_Q4_0},    {GR_Q4_K, GR_Q5_0},     {GR_Q5_K, GR_Q5_1},
                {GR_Q6_K, GR_Q8_0}};
    uint32_t block = gr_dtype_find(type)->block;
    if (ne0 % block == 0)
        return type;
    for (size_t i = 0; i < GR_COUNT(next); i++)
        if (next[i].type == type)
            return ne0 % 32 ? (uint32_t)GR_F16 : next[i].next;
    return block <= 32 ? (uint32_t)GR_F16 : UINT32_MAX;
}

/* Returns the type that the parameters set explicitly, or UINT32_MAX. */
static uint32_t told(const struct gr_gguf_tensor *t, const struct gr_overrides *o)
{
    uint32_t by_name = gr_overrides_find(o, t->name);
    if (o->embedding != UINT32_MAX && is_embedding(t->name) &&
        (gr_str_is(t->name, "token_embd.weight") || by_name == UINT32_MAX))
        return o->embedding;
    return gr_str_is(t->name, "output.weight") ? o->output : UINT32_MAX;
}

static uint32_t choose(const struct facts *f, const struct gr_gguf_tensor *t,
                       const struct gr_recipe *r, const struct gr_overrides *o,
                       const struct gr_quantize_params *p, bool imatrix, struct count *c)
{
    if (!is_converted(t, p))
        return t->dtype;
    uint32_t type = told(t, o);
    if (type != UINT32_MAX || gr_dtype_find(r->type)->block == 1)
        return type != UINT32_MAX ? type : r->type;
    type = gr_overrides_find(o, t->name);
    if (type == UINT32_MAX && !p->pure && f->tied && is_embedding(t->name))
        type = o->output;
    if (type == UINT32_MAX)
        type = p->pure ? r->type : mixed(f, t, r, c, imatrix);
    return fitting(type, t->ne[0]);
}

bool gr_recipe_needs_imatrix(const struct gr_recipe *recipe, struct gr_str name, uint32_t type)
{
    if (is_embedding(name) || gr_str_is(name, "output.weight"))
        return false;
    if (type == GR_Q2_K)
        return recipe->file_type == recipes[NAME_Q2_K_S].file_type;
    return gr_dtype_find(type)->importance;
}

/* Checks that a type fits the rows and can be written; a dry run accepts any that fits. */
static int check(const struct gr_gguf_tensor *t, const struct gr_recipe *r, uint32_t type,
                 bool imatrix, bool dry_run)
{
    const char *name = gr_quote(t->name.p, t->name.n);
    if (type == UINT32_MAX)
        return gr_fail(GR_E_UNSUPPORTED,
                       "tensor %s: rows of %llu elements are not whole blocks of %s, and no type "
                       "stands in for it; take another type",
                       name, (unsigned long long)t->ne[0], gr_dtype_name(r->type));
    if (type != t->dtype && t->ne[0] % gr_dtype_find(type)->block)
        return gr_fail(GR_E_INVALID,
                       "tensor %s: rows of %llu elements are not whole blocks of %s; take another "
                       "type for it",
                       name, (unsigned long long)t->ne[0], gr_dtype_name(type));
    if (type == t->dtype || dry_run)
        return 0;
    if (!gr_quant_find(type)->quantize)
        return gr_fail(GR_E_INVALID, "tensor %s: storage type %s cannot be written, use one of:%s",
                       name, gr_dtype_name(type), gr_recipe_names());
    if (!imatrix && gr_recipe_needs_imatrix(r, t->name, type))
        return gr_fail(GR_E_INVALID,
                       "tensor %s as %s needs an importance matrix; gpurun imatrix makes one, "
                       "--imatrix FILE takes it",
                       name, gr_dtype_name(type));
    return 0;
}

struct place {
    int64_t layer;
    const struct gr_gguf_tensor *t;
    uint64_t i; /* index in the file */
};

static int compare(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    size_t n = GR_MIN(x->t->name.n, y->t->name.n);
    int c = memcmp(x->t->name.p, y->t->name.p, n);
    return c ? c : (x->t->name.n > y->t->name.n) - (x->t->name.n < y->t->name.n);
}

static struct place *in_order(const struct gr_gguf *g, uint64_t n)
{
    struct place *order = gr_calloc(n, sizeof *order);
    for (uint64_t i = 0; order && i < n; i++) {
        const struct gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
        order[i] = (struct place){layer_of(t->name), t, i};
    }
    if (order)
        qsort(order, (size_t)n, sizeof *order, compare);
    return order;
}

/* Checks the types of single tensors: refused with COPY; patterns have no effect, with a warning,
 * when the recipe's type is not quantised. */
static int check_told(const struct gr_recipe *r, const struct gr_quantize_params *p)
{
    bool patterns = p->tensor_types && *p->tensor_types;
    if (!r && (patterns || p->output_type || p->embedding_type))
        return gr_fail(GR_E_INVALID, "type COPY leaves every tensor as it is: expected no types of "
                                     "single tensors beside it");
    if (r && patterns && gr_dtype_find(r->type)->block == 1)
        gr_log(GR_LOG_WARN,
               "types of tensors by pattern do not count with type %s: it is that of "
               "all matrices",
               gr_dtype_name(r->type));
    return 0;
}

int gr_recipe_choose(const struct gr_gguf *g, const struct gr_recipe *recipe,
                     const struct gr_quantize_params *params, bool imatrix, uint32_t *type)
{
    uint64_t n = gr_gguf_n_tensor(g);
    struct gr_overrides o = {0};
    struct facts f = {0};
    struct count c = {0};
    for (uint64_t i = 0; i < n; i++)
        type[i] = gr_gguf_tensor_at(g, i)->dtype;
    int rc = check_told(recipe, params);
    if (rc || !recipe)
        return rc;
    read_facts(g, &f);
    struct place *order = in_order(g, n);
    rc = order ? gr_overrides_init(&o, params) : GR_E_NOMEM_HOST;
    if (!rc)
        rc = gr_overrides_check(&o, g, is_converted, params);
    for (uint64_t i = 0; !rc && i < n; i++)
        c.n_v += part_of(order[i].t->name, f.tied) == P_V;
    for (uint64_t i = 0; !rc && i < n; i++) {
        const struct gr_gguf_tensor *t = order[i].t;
        type[order[i].i] = choose(&f, t, recipe, &o, params, imatrix, &c);
        rc = check(t, recipe, type[order[i].i], imatrix, params->dry_run);
    }
    gr_overrides_fini(&o);
    gr_free(order);
    return rc;
}
