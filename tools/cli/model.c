/* Model and session parameters from the flags. */
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "adapters.h"
#include "flags.h"
#include "metadata.h"
#include "numbers.h"
#include "progress.h"
#include "say.h"
#include "thread_options.h"
#include "together.h"
#include "weight_homes.h"

int gr_end_batches(struct gr_session *s, int32_t *n, int32_t most)
{
    int rc = 0;
    while (*n > most && !rc) {
        rc = gr_decode_end(s);
        --*n;
    }
    return rc;
}

static void say_model(const struct gr_options *o, const struct gr_model_info *info)
{
    char params[16], bytes[16];
    const char *base = o->model ? strrchr(o->model, '/') : NULL;
    const char *name = info->name && *info->name ? info->name
                       : base                    ? base + 1
                       : o->model                ? o->model
                                                 : "";
    gr_say("model: %s%s (%s, %s parameters, %s, %s), trained for %d tokens",
           o->model ? "" : "no -m FILE given, so the built-in one: ", name, info->arch,
           gr_amount(params, (double)info->n_params, 1000), info->file_type,
           gr_amount(bytes, (double)info->n_bytes, 1024), info->n_ctx_train);
}

static void say_files(const char *what, const struct gr_adapters *a)
{
    for (int32_t i = 0; i < a->n; i++)
        gr_say("%s: %s, scale %g", what, a->v[i].path, (double)a->v[i].scale);
}

/* What flags list for a model. */
struct lists {
    struct gr_adapters adapters, control;
    struct gr_weight_home_list homes;
    char **metadata;
};

/* Reads the lists into the parameters, which point to them from then on. */
static int read_lists(struct lists *l, const struct gr_options *o, bool vocab_only,
                      struct gr_model_params *p)
{
    int rc = gr_metadata_of(&l->metadata, o);
    p->override_kv = (const char *const *)l->metadata;
    if (rc || vocab_only)
        return rc;
    rc = gr_adapters_read(&l->adapters, o);
    if (!rc)
        rc = gr_control_vectors_read(&l->control, o, &p->control_first, &p->control_last);
    if (!rc)
        rc = gr_weight_homes_of(&l->homes, o);
    p->adapters = l->adapters.v, p->n_adapter = l->adapters.n;
    p->control_vectors = l->control.v, p->n_control_vector = l->control.n;
    p->weight_homes = l->homes.v, p->n_weight_home = l->homes.n;
    p->n_cpu_experts = o->cpu_moe ? INT32_MAX : o->n_cpu_moe;
    return rc;
}

static void free_lists(struct lists *l)
{
    gr_metadata_free(&l->metadata);
    gr_adapters_free(&l->adapters);
    gr_adapters_free(&l->control);
    gr_weight_home_list_free(&l->homes);
}

int gr_open_model(const struct gr_options *o, bool vocab_only, struct gr_model **model)
{
    struct gr_model_params p = gr_model_params_default();
    struct gr_model_info info;
    struct lists lists = {.metadata = NULL};
    struct gr_thread_words words;
    gr_thread_options(o, &words, &p);
    p.n_gpu_layers = o->gpu_layers;
    p.use_mmap = o->mmap, p.use_mlock = o->mlock;
    p.check_tensors = o->check_tensors;
    p.split_mode = !strcmp(o->split_mode, "none")     ? GR_SPLIT_MODE_NONE
                   : !strcmp(o->split_mode, "tensor") ? GR_SPLIT_MODE_TENSOR
                                                      : GR_SPLIT_MODE_LAYER;
    p.tensor_split = o->tensor_split;
    p.n_rank = o->ranks > 0 ? o->ranks : 0;
    p.n_shard = o->shards > 0 ? o->shards : 0;
    p.device = o->device, p.main_gpu = o->main_gpu, p.require_gpu = o->require_gpu;
    p.vocab_only = vocab_only;
    p.world = vocab_only ? NULL : gr_together_world();
    p.progress = gr_bar_bytes, p.progress_user = (void *)(uintptr_t) "load";
    int rc = gr_model_is_there(o->model);
    if (!rc)
        rc = read_lists(&lists, o, vocab_only, &p);
    if (!rc) {
        rc = gr_model_open(model, o->model, &p);
        rc = rc == GR_E_CANCELLED ? gr_status_exit(rc) : rc ? gr_say_status(rc) : 0;
    }
    if (!rc && vocab_only && !o->model)
        gr_say("model: no -m FILE given, so the built-in one");
    if (!rc && !vocab_only) {
        gr_model_info(*model, &info);
        say_model(o, &info);
        say_files("adapter", &lists.adapters);
        say_files("control vector", &lists.control);
    }
    free_lists(&lists);
    return rc;
}

bool gr_scaling_named(const char *word, enum gr_rope_scaling *scaling)
{
    static const char *const words[] = {[GR_SCALING_MODEL] = "model",
                                        [GR_SCALING_NONE] = "none",
                                        [GR_SCALING_LINEAR] = "linear",
                                        [GR_SCALING_YARN] = "yarn",
                                        [GR_SCALING_LONGROPE] = "longrope"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(words[i], word))
            return *scaling = (enum gr_rope_scaling)i, true;
    return false;
}

bool gr_pooling_named(const char *word, enum gr_pooling *pooling)
{
    for (int i = GR_POOLING_MODEL; i <= GR_POOLING_RANK; i++)
        if (!strcmp(gr_pooling_name((enum gr_pooling)i), word))
            return *pooling = (enum gr_pooling)i, true;
    return false;
}

/* Maps negative values to "model" (NAN). */
static float factor(float x)
{
    return x < 0 ? NAN : x;
}

void gr_cache_options(const struct gr_options *o, struct gr_session_params *p)
{
    p->no_kv_offload = !o->kv_offload;
    p->no_graphs = !o->cuda_graph, p->no_pdl = !o->cuda_pdl;
    p->matmul = !strcmp(o->matmul, "own")      ? GR_MATMUL_OWN
                : !strcmp(o->matmul, "cublas") ? GR_MATMUL_CUBLAS
                                               : GR_MATMUL_AUTO;
    p->no_sm90 = !o->cuda_sm90, p->no_fuse = !o->cuda_fuse, p->check_counters = o->cuda_check;
    p->offload_from = !o->op_offload ? -1 : o->op_offload_min > 0 ? o->op_offload_min : 0;
    if (o->kv_unified >= 0)
        p->kv_unified = o->kv_unified;
    p->swa_full |= o->swa_full;
    p->kv_contiguous |= o->kv_contiguous;
    p->deterministic |= o->deterministic;
}

struct gr_session_params gr_session_options(const struct gr_options *o)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_batch = (uint32_t)o->batch_size;
    p.n_ubatch = (uint32_t)(o->ubatch_size < o->batch_size ? o->ubatch_size : o->batch_size);
    p.n_seq_max = 1;
    /* With several ranks each chooses its own number. */
    p.n_threads = gr_together_world() && o->threads <= 0 ? 0 : gr_threads_wanted(o);
    p.n_threads_batch = o->threads_batch > 0 ? o->threads_batch : p.n_threads;
    p.type_k = o->cache_type_k, p.type_v = o->cache_type_v;
    (void)gr_scaling_named(o->rope_scaling, &p.rope_scaling);
    p.rope_freq_base = o->rope_freq_base;
    p.rope_freq_scale = isnan(o->rope_scale) ? o->rope_freq_scale : 1 / o->rope_scale;
    p.yarn_ext_factor = factor(o->yarn_ext_factor),
    p.yarn_attn_factor = factor(o->yarn_attn_factor);
    p.yarn_beta_fast = factor(o->yarn_beta_fast), p.yarn_beta_slow = factor(o->yarn_beta_slow);
    p.yarn_orig_ctx = (uint32_t)o->yarn_orig_ctx;
    p.nvtx = !strcmp(o->nvtx, "off")     ? GR_NVTX_OFF
             : !strcmp(o->nvtx, "layer") ? GR_NVTX_LAYER
                                         : GR_NVTX_STEP;
    gr_cache_options(o, &p);
    return p;
}

static void print_bytes(const char *what, uint64_t bytes, const char *type)
{
    if (bytes)
        printf("%-8s %10.2f MiB  %s\n", what, (double)bytes / 1048576, type);
}

static void print_cells(const struct gr_session_size *s, uint32_t n_seq)
{
    printf("%u sequence%s, ", n_seq, n_seq == 1 ? "" : "s");
    if (s->n_kv_pool > 1)
        printf("%u pools, each of ", s->n_kv_pool);
    else
        printf("one pool of ");
    printf("%u cells", s->n_cell ? s->n_cell : s->n_cell_swa);
    if (s->n_cell && s->n_cell_swa)
        printf(", %u in layers with a window", s->n_cell_swa);
    putchar('\n');
}

int gr_print_size(const struct gr_options *o, const struct gr_model *model,
                  const struct gr_session_params *p)
{
    struct gr_session_size s;
    int rc = gr_session_size(model, p, &s);
    if (rc)
        return gr_say_status(rc);
    if (o->json) {
        printf("{\"k\":%llu,\"v\":%llu,\"state\":%llu,\"total\":%llu,\"n_cell\":%u,"
               "\"n_cell_swa\":%u,\"n_kv_pool\":%u}\n",
               (unsigned long long)s.k, (unsigned long long)s.v, (unsigned long long)s.state,
               (unsigned long long)s.total, s.n_cell, s.n_cell_swa, s.n_kv_pool);
    } else {
        print_cells(&s, p->n_seq_max);
        print_bytes("K", s.k, p->type_k);
        print_bytes("V", s.v, p->type_v);
        print_bytes("states", s.state, "f32");
        printf("%-8s %10.2f MiB\n", "cache", (double)s.total / 1048576);
    }
    gr_out_finish();
    return 0;
}
