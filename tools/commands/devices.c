/* Commands about GPUs: gpurun devices, fit and profile; and the GPU part of summaries. */
#include "devices.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "length.h"
#include "tools/cli/flags.h"
#include "tools/cli/model.h"
#include "tools/cli/numbers.h"
#include "tools/cli/say.h"

#define FIT_CONTEXT 4096 /* as long as gpurun run takes at most, when -c is not given */

static int put_json(json_t *o)
{
    char *text = o ? json_dumps(o, JSON_INDENT(2)) : NULL;
    json_decref(o);
    if (!text) {
        gr_say_error("no memory for the JSON");
        return 5;
    }
    puts(text);
    free(text);
    gr_out_finish();
    return 0;
}

/* ---- devices ---- */

static json_t *device_json(const struct gr_device *d)
{
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:i, s:i, s:s?}", "name", d->name,
                     "description", d->description, "bus_id", d->bus_id, "total_bytes",
                     (json_int_t)d->total_bytes, "free_bytes", (json_int_t)d->free_bytes,
                     "bytes_per_s", (json_int_t)d->bytes_per_s, "compute_capability", d->cc, "n_sm",
                     d->n_sm, "unusable", d->unusable);
}

static void print_device(const struct gr_device *d)
{
    char total[16], left[16];
    if (d->unusable) {
        printf("%-7s %-28s cannot be used: %s\n", d->name, d->description, d->unusable);
        return;
    }
    printf("%-7s %-28s %10s  %10s free  cc %d.%d  %3d SMs  %5.0f GB/s  PCI %s\n", d->name,
           d->description, gr_amount(total, (double)d->total_bytes, 1024),
           gr_amount(left, (double)d->free_bytes, 1024), d->cc / 10, d->cc % 10, d->n_sm,
           (double)d->bytes_per_s * 1e-9, d->bus_id);
}

/* "12.8" of 12080; NULL of 0. */
static const char *version_text(int32_t version, char text[16])
{
    snprintf(text, 16, "%d.%d", version / 1000, version % 1000 / 10);
    return version ? text : NULL;
}

static json_t *versions_json(void)
{
    struct gr_device_versions v;
    char driver[16], compiler[16], needed[16];
    gr_device_versions(&v);
    return json_pack("{s:s?, s:s?, s:s?, s:s}", "driver", version_text(v.driver, driver),
                     "compiler", version_text(v.compiler, compiler), "needed",
                     version_text(v.needed, needed), "needed_driver", v.needed_name);
}

static void print_versions(void)
{
    struct gr_device_versions v;
    char driver[16], compiler[16], needed[16];
    gr_device_versions(&v);
    const char *there = version_text(v.driver, driver), *by = version_text(v.compiler, compiler),
               *number = v.needed_name;
    printf("CUDA driver: %s; this build%s%s%s needs %s or newer%s%s%s\n", there ? there : "none",
           by ? " (nvcc " : "", by ? by : "", by ? ")" : "",
           version_text(v.needed, needed) ? needed : "none", *number ? " (NVIDIA driver " : "",
           number, *number ? ")" : "");
}

int gr_tool_devices(const struct gr_options *o)
{
    const char *why;
    int32_t n = gr_device_count(&why);
    json_t *all = o->json ? json_array() : NULL;
    for (int32_t i = 0; i < n; i++) {
        struct gr_device d;
        int rc = gr_device_get(i, &d);
        if (rc) {
            json_decref(all);
            return gr_say_status(rc);
        }
        if (all)
            json_array_append_new(all, device_json(&d));
        else
            print_device(&d);
    }
    const char *transport, *matmul;
    int has_transport = gr_device_transport(&transport), has_matmul = gr_device_matmul(&matmul);
    if (o->json)
        return put_json(json_pack("{s:o, s:s?, s:o, s:b, s:s, s:b, s:s, s:s}", "devices", all,
                                  "why_none", why, "cuda", versions_json(), "nccl", has_transport,
                                  "nccl_what", transport, "cublaslt", has_matmul, "cublaslt_what",
                                  matmul, "cpu_level", gr_cpu_instructions(NULL)));
    if (!n)
        printf("no GPU: %s\n", why);
    print_versions();
    printf("CPU: instructions %s", gr_cpu_instructions("ref"));
    for (const char *const *level = (const char *const[]){"avx2", "avx512", "amx", NULL}; *level;
         level++)
        if (gr_cpu_instructions(*level))
            printf(", %s", *level);
    printf(" (--cpu-level)\n");
    printf("GPUs of several processes: %s%s\n",
           has_transport ? "by " : "through the host's memory: ", transport);
    printf("--matmul cublas: %s%s\n", has_matmul ? "by " : "not here: ", matmul);
    gr_out_finish();
    return 0;
}

/* ---- fit ---- */

static uint64_t taken(const struct gr_fit_device *v)
{
    return v->weights + v->cache + v->work;
}

/* Returns the fraction of free memory that is taken, 0 to 1; 0 for a CPU. */
static double share(const struct gr_fit_device *v)
{
    return v->free_bytes ? (double)taken(v) / (double)v->free_bytes : 0;
}

static json_t *fit_json(const struct gr_fit *f, const struct gr_session_params *p)
{
    json_t *list = json_array();
    for (int32_t d = 0; d < f->n_device; d++) {
        const struct gr_fit_device *v = &f->device[d];
        json_array_append_new(
            list, json_pack("{s:i, s:s, s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:f}", "rank",
                            v->rank, "name", v->name, "description", v->description, "layers",
                            v->n_layer, "first_layer", v->n_layer ? v->first : -1, "weights",
                            (json_int_t)v->weights, "cache", (json_int_t)v->cache, "work",
                            (json_int_t)v->work, "free_bytes", (json_int_t)v->free_bytes,
                            "total_bytes", (json_int_t)v->total_bytes, "share", share(v)));
    }
    return json_pack("{s:i, s:i, s:i, s:i, s:o}", "gpu_layers", f->n_gpu_layers, "layers",
                     f->n_layer, "cpu_experts", f->n_cpu_experts, "ctx_size", (int)p->n_ctx,
                     "devices", list);
}

static void print_fit(const struct gr_fit *f)
{
    bool several = f->device[f->n_device - 1].rank > 0;
    printf("%s%-7s %-28s %9s %10s %10s %10s %10s %6s\n", several ? "rank " : "", "device", "",
           "layers", "weights", "cache", "work", "free", "in use");
    for (int32_t d = 0; d < f->n_device; d++) {
        const struct gr_fit_device *v = &f->device[d];
        char w[16], c[16], k[16], left[16] = "", layers[24] = "none", part[8] = "";
        if (v->n_layer)
            snprintf(layers, sizeof layers, "%d-%d", v->first, v->first + v->n_layer - 1);
        if (v->free_bytes) {
            gr_amount(left, (double)v->free_bytes, 1024);
            snprintf(part, sizeof part, "%.1f%%", 100 * share(v));
        }
        if (several)
            printf("%-4d ", v->rank);
        printf("%-7s %-28s %9s %10s %10s %10s %10s %6s\n", v->name, v->description, layers,
               gr_amount(w, (double)v->weights, 1024), gr_amount(c, (double)v->cache, 1024),
               gr_amount(k, (double)v->work, 1024), left, part);
    }
    if (f->n_cpu_experts)
        printf("experts of layers 0-%d on the CPU\n", f->n_cpu_experts - 1);
}

/* Prints a word, quoted for a shell where necessary. */
static void print_word(const char *word)
{
    if (*word && word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                   "_./:=,+-@%")] == 0) {
        printf(" %s", word);
        return;
    }
    printf(" '");
    for (; *word; word++)
        printf(*word == '\'' ? "'\\''" : "%c", *word);
    printf("'");
}

/* Prints the first name of a flag; with `off`, of its names that switch off, if any. */
static void print_name(const struct gr_flag *f, bool off)
{
    const char *bar = strchr(f->names, '|'), *name = off && bar ? bar + 2 : f->names;
    printf(" %.*s", (int)strcspn(name, " "), name);
}

/* Prints a flag that was given, with each of its values. */
static void print_flag(const struct gr_options *o, const struct gr_flag *f)
{
    const struct gr_given *g = (const void *)((const char *)o + f->given);
    const struct gr_str_list *list = (const void *)((const char *)o + f->offset);
    for (int32_t i = 0; f->kind == STRS && i < list->n; i++) {
        print_name(f, false);
        print_word(list->v[i]);
    }
    if (f->kind == SWITCH && strcmp(g->text, f->def) != 0)
        print_name(f, !strcmp(g->text, "off"));
    if (f->kind != SWITCH && f->kind != STRS) {
        print_name(f, false);
        print_word(g->text);
    }
}

/* Returns whether print_command prints this flag by itself, with the computed value. */
static bool is_worked_out(const struct gr_flag *f)
{
    static const size_t fields[] = {
        offsetof(struct gr_options, model),        offsetof(struct gr_options, gpu_layers),
        offsetof(struct gr_options, hf_repo),      offsetof(struct gr_options, hf_file),
        offsetof(struct gr_options, hf_token),     offsetof(struct gr_options, model_url),
        offsetof(struct gr_options, offline),      offsetof(struct gr_options, ctx_size),
        offsetof(struct gr_options, ubatch_size),  offsetof(struct gr_options, cache_type_k),
        offsetof(struct gr_options, cache_type_v), offsetof(struct gr_options, cpu_moe),
        offsetof(struct gr_options, n_cpu_moe)};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (f->offset == fields[i])
            return true;
    return false;
}

/* Prints the command line for the computed placement, with every flag that was given. */
static void print_command(const struct gr_options *o, const struct gr_fit *f,
                          const struct gr_session_params *p)
{
    printf("gpurun run");
    if (o->model) {
        printf(" -m");
        print_word(o->model);
    }
    printf(" -ngl %d -c %u -ub %u -ctk %s -ctv %s", f->n_gpu_layers, p->n_ctx, p->n_ubatch,
           p->type_k, p->type_v);
    if (f->n_cpu_experts)
        printf(" -ncmoe %d", f->n_cpu_experts);
    for (const struct gr_flag *flag = gr_flags; flag->names; flag++) {
        const struct gr_given *g = (const void *)((const char *)o + flag->given);
        bool both = flag->commands & 1u << GR_CMD_fit && flag->commands & 1u << GR_CMD_run;
        if (flag->kind < GR_FLAG_NOOP && both && flag->group != OUTPUT && g->text &&
            !is_worked_out(flag))
            print_flag(o, flag);
    }
    putchar('\n');
}

int gr_tool_fit(const struct gr_options *o)
{
    struct gr_model *model;
    struct gr_model_info info;
    struct gr_fit fit;
    int rc = gr_open_model(o, false, &model);
    if (rc)
        return rc;
    gr_model_info(model, &info);
    struct gr_session_params p = gr_session_options(o);
    int32_t n_ctx = o->ctx_size > 0                                      ? o->ctx_size
                    : o->ctx_size == 0 || info.n_ctx_train < FIT_CONTEXT ? info.n_ctx_train
                                                                         : FIT_CONTEXT;
    p.n_ctx = (uint32_t)gr_length_learned(o, &info, n_ctx);
    struct gr_length length; /* Self-Extend with its window keeps K twice */
    rc = gr_length_self_extend(&length, o, model, (int32_t)p.n_ctx, &p);
    if (rc) {
        gr_model_close(&model);
        return rc;
    }
    int status = gr_model_fit(model, &p, &fit);
    if (fit.n_device && o->json)
        rc = put_json(fit_json(&fit, &p));
    else if (fit.n_device)
        print_fit(&fit);
    if (!status && !o->json)
        print_command(o, &fit, &p);
    gr_out_finish();
    gr_model_close(&model);
    return status ? gr_say_status(status) : rc;
}

/* ---- profile ---- */

static void print_run(const struct gr_options *o, const char *more)
{
    printf("gpurun run");
    for (int i = 0; i < o->n_words; i++) {
        bool off, alone = !strchr(o->words[i], '=');
        const struct gr_flag *f =
            gr_flag_find(GR_CMD_run, o->words[i], strcspn(o->words[i], "="), &off);
        if (f && f->offset == offsetof(struct gr_options, hf_token))
            i += alone; /* a secret: HF_TOKEN gives it */
        else
            print_word(o->words[i]);
    }
    printf("%s\n", more);
}

int gr_tool_profile(const struct gr_options *o)
{
    const char *steps = o->profile_steps ? "" : " --profile-steps 20:24";
    printf(
        "# a time line: copies, graphs and their kernels, steps as ranges; with several ranks what "
        "goes from one to\n# another as transport/send, transport/recv and transport/exchange, "
        "with their bytes\n"
        "nsys profile -t cuda,nvtx,osrt --sample=none --cpuctxsw=none "
        "--capture-range=cudaProfilerApi --capture-range-end=stop --cuda-graph-trace=node "
        "-o gpurun ");
    print_run(o, steps);
    printf("nsys stats --report cuda_gpu_kern_sum,nvtx_sum,cuda_api_sum gpurun.nsys-rep\n"
           "# one kernel in depth; -k regex:gr_attn and so on for others\n"
           "ncu --profile-from-start off --nvtx --nvtx-include \"gpurun@step/decode/\" --set full "
           "-k regex:gr_matmul --launch-count 3 -o gpurun ");
    char more[64];
    snprintf(more, sizeof more, "%s --no-cuda-graph", steps);
    print_run(o, more);
    printf("# without NVIDIA's tools\n");
    print_run(o, " --op-times --trace gpurun.json");
    gr_out_finish();
    return 0;
}

/* ---- the summary ---- */

const char *gr_gpu_summary(const struct gr_session *s, char *buf, size_t n)
{
    struct gr_fit f;
    char used[16], total[16], w[16], c[16], k[16];
    uint64_t sum[3] = {0, 0, 0}, taken = 0, all = 0;
    *buf = 0;
    if (gr_session_fit(s, &f) || !f.n_gpu_layers)
        return buf;
    for (int32_t d = 0; d < f.n_device; d++) {
        const struct gr_fit_device *v = &f.device[d];
        if (!v->total_bytes)
            continue; /* a CPU */
        sum[0] += v->weights, sum[1] += v->cache, sum[2] += v->work;
        taken += v->total_bytes - v->free_bytes, all += v->total_bytes;
    }
    snprintf(buf, n, " | VRAM %s of %s (weights %s, KV %s, work %s) | %d/%d layers on GPU",
             gr_amount(used, (double)taken, 1024), gr_amount(total, (double)all, 1024),
             gr_amount(w, (double)sum[0], 1024), gr_amount(c, (double)sum[1], 1024),
             gr_amount(k, (double)sum[2], 1024), f.n_gpu_layers, f.n_layer);
    return buf;
}
