/* gr_quantize_file: a model file with its matrices in other storage types. */
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "quant/quant.h"
#include "quantize/recipe.h"
#include "quantize/rewrite.h"

/* Source of the new keys. */
struct keys {
    const struct gr_recipe *recipe; /* NULL: a copy */
    const struct gr_imatrix *imatrix;
    const char *imatrix_file;
};

static int find_recipe(const char *name, bool dry_run, const struct gr_recipe **recipe)
{
    *recipe = NULL;
    if (strcasecmp(name, "COPY") == 0)
        return 0;
    *recipe = gr_recipe_find(name);
    if (*recipe && (dry_run || gr_quant_find((*recipe)->type)->quantize))
        return 0;
    return gr_fail(GR_E_INVALID, "storage type %s cannot be written, use one of:%s",
                   gr_quote(name, strlen(name)), gr_recipe_names());
}

static int set_imatrix_keys(struct gr_gguf_writer *w, const struct keys *k)
{
    const char *dataset = gr_imatrix_dataset(k->imatrix);
    int e = gr_gguf_set_str(w, "quantize.imatrix.file", k->imatrix_file);
    if (!e && dataset)
        e = gr_gguf_set_str(w, "quantize.imatrix.dataset", dataset);
    if (!e)
        e = gr_gguf_set_u32(w, "quantize.imatrix.entries_count",
                            (uint32_t)gr_imatrix_n_entry(k->imatrix));
    if (!e)
        e = gr_gguf_set_u32(w, "quantize.imatrix.chunks_count", gr_imatrix_n_chunk(k->imatrix));
    return e;
}

static int set_keys(struct gr_gguf_writer *w, const void *user)
{
    const struct keys *k = user;
    int e = k->recipe ? gr_gguf_set_u32(w, "general.file_type", k->recipe->file_type) : 0;
    if (!e && k->recipe)
        e = gr_gguf_set_u32(w, "general.quantization_version", 2);
    return !e && k->imatrix ? set_imatrix_keys(w, k) : e;
}

/* Refuses sources that cannot be read, and quantised ones unless `allow`. */
static int check_sources(const struct gr_rewrite *r, bool allow)
{
    bool again = false;
    for (uint64_t i = 0; i < gr_gguf_n_tensor(r->in); i++) {
        const struct gr_gguf_tensor *t = gr_gguf_tensor_at(r->in, i);
        const char *path = gr_gguf_path(r->in, t->part), *name = gr_quote(t->name.p, t->name.n);
        if (r->type[i] == t->dtype)
            continue;
        if (!gr_quant_find(t->dtype))
            return gr_fail(GR_E_UNSUPPORTED,
                           "%s: tensor %s is stored as %s, which cannot be converted; take a "
                           "file in f32, f16 or bf16",
                           path, name, gr_dtype_name(t->dtype));
        bool quantised = gr_dtype_find(t->dtype)->block > 1;
        if (quantised && !allow)
            return gr_fail(GR_E_UNSUPPORTED,
                           "%s: tensor %s is stored as %s already, and the errors of both types "
                           "would add up; take a file in f32, f16 or bf16, or --allow-requantize",
                           path, name, gr_dtype_name(t->dtype));
        again |= quantised;
    }
    if (again)
        gr_log(GR_LOG_WARN, "%s is quantised already: the errors of both types add up",
               gr_gguf_path(r->in, 0));
    return 0;
}

/* Checks that every tensor that needs importances has them. */
static int check_importances(const struct gr_rewrite *r, const struct gr_recipe *recipe)
{
    for (uint64_t i = 0; r->imatrix && recipe && !r->dry_run && i < gr_gguf_n_tensor(r->in); i++) {
        const struct gr_gguf_tensor *t = gr_gguf_tensor_at(r->in, i);
        if (r->type[i] != t->dtype && !gr_imatrix_has(r->imatrix, t->name) &&
            gr_recipe_needs_imatrix(recipe, t->name, r->type[i]))
            return gr_fail(GR_E_UNSUPPORTED,
                           "tensor %s as %s needs importances, and the matrix has none of it",
                           gr_quote(t->name.p, t->name.n), gr_dtype_name(r->type[i]));
    }
    return 0;
}

/* Returns the prefix of parts' names: of several, "out.gguf" makes "out-00001-of-0000N.gguf". */
static char *stem(const char *out, bool several)
{
    size_t n = strlen(out);
    bool named = several && n > 5 && strcmp(out + n - 5, ".gguf") == 0;
    return gr_strndup(out, named ? n - 5 : n);
}

static int quantize(const struct gr_gguf *in, const char *out, const struct gr_recipe *recipe,
                    const struct gr_imatrix *imatrix, const struct gr_quantize_params *params)
{
    struct keys keys = {recipe, imatrix, params->imatrix};
    struct gr_rewrite r;
    bool several = params->keep_split && gr_gguf_n_part(in) > 1;
    char *name = stem(out, several);
    int e = gr_rewrite_init(&r, in, name);
    if (!e && !name)
        e = GR_E_NOMEM_HOST;
    r.n_part = several ? r.n_part : 1;
    r.imatrix = imatrix, r.n_threads = params->n_threads;
    r.dry_run = params->dry_run, r.overwrite = params->overwrite;
    r.progress = (struct gr_progress){.fn = params->progress, .user = params->progress_user};
    r.set_keys = set_keys, r.user = &keys;
    if (!e)
        e = gr_recipe_choose(in, recipe, params, imatrix != NULL, r.type);
    if (!e)
        e = check_sources(&r, params->allow_requantize);
    if (!e)
        e = check_importances(&r, recipe);
    if (!e)
        e = gr_rewrite_run(&r);
    gr_rewrite_fini(&r);
    gr_free(name);
    return e;
}

int gr_quantize_file(const char *in, const char *out, const struct gr_quantize_params *params)
{
    const struct gr_recipe *recipe;
    struct gr_gguf *g = NULL;
    struct gr_imatrix *imatrix = NULL;
    int e = find_recipe(params->type, params->dry_run, &recipe);
    if (!e && params->imatrix)
        e = gr_imatrix_new(&imatrix);
    if (!e && params->imatrix)
        e = gr_imatrix_load(imatrix, params->imatrix);
    if (!e)
        e = gr_gguf_open(&g, in, false);
    if (!e)
        e = quantize(g, out, recipe, imatrix, params);
    gr_gguf_close(&g);
    gr_imatrix_free(&imatrix);
    return e;
}
