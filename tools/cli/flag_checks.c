/* Checks across flags: contradictions, and flags without effect. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "flags.h"
#include "say.h"

extern char **environ;

/* True when a flag was given on the command line. */
#define GIVEN(field) o->given.field.by_flag

/* ---- contradictions ---- */

static int refuse(const char *flag, const char *other, const char *what)
{
    gr_say_error("%s and %s %s: leave one out", flag, other, what);
    return GR_EXIT_USAGE;
}

static bool differ(const struct gr_given *g, const char *text)
{
    return g->by_flag && strcasecmp(g->text, text) != 0;
}

/* Refuses pairs of flags that set the same thing. */
static int check_pairs(const struct gr_options *o)
{
    bool diff = o->command == GR_CMD_diff; /* whose -v is about what it prints */
    const struct {
        bool both;
        const char *flag, *other, *what;
    } pair[] = {
        {o->prompt && o->file, "-p", "-f", "both give the text"},
        {o->prompt && o->from_stdin, "-p", "--stdin", "both give the text"},
        {GIVEN(chat_template) && GIVEN(chat_template_file), "--chat-template",
         "--chat-template-file", "both give the template"},
        {o->system_prompt && o->system_prompt_file, "-sys", "-sysf",
         "both give the system message"},
        {o->file && o->from_stdin, "-f", "--stdin", "both give the text"},
        {fabsf(o->rope_scale * o->rope_freq_scale - 1) > 1e-3f, "--rope-scale", "--rope-freq-scale",
         "are each other's inverse, and these two are not"},
        {GIVEN(quiet) && o->quiet && GIVEN(verbose) && o->verbose && !diff, "-q", "-v",
         "both say how much is told"},
        {GIVEN(quiet) && o->quiet && differ(&o->given.verbosity, "1"), "-q", "-lv",
         "both say how much is told"},
        {GIVEN(verbose) && o->verbose && differ(&o->given.verbosity, "4"), "-v", "-lv",
         "both say how much is told"},
        {o->command == GR_CMD_bench && o->json && differ(&o->given.format, "jsonl"), "--json", "-o",
         "both say how rows are printed"},
        {o->given.split_max_size.text && o->given.split_max_tensors.text, "--split-max-size",
         "--split-max-tensors", "both say where a part ends"},
        {o->grammar && o->grammar_file, "--grammar", "--grammar-file", "both give the grammar"},
        {o->json_schema && o->json_schema_file, "-j", "-jf", "both give the schema"},
        {(o->grammar || o->grammar_file) && (o->json_schema || o->json_schema_file), "--grammar",
         "--json-schema", "both say what may be written"},
        {o->ignore_eos && (o->grammar || o->grammar_file || o->json_schema || o->json_schema_file),
         "--ignore-eos", "a grammar", "both say when the text ends"},
        {o->samplers && o->sampler_seq, "--samplers", "--sampler-seq", "both give the samplers"},
        {o->leave_output_tensor && o->output_tensor_type, "--leave-output-tensor",
         "--output-tensor-type", "are about the same matrix"},
    };
    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++)
        if (pair[i].both)
            return refuse(pair[i].flag, pair[i].other, pair[i].what);
    return 0;
}

/* Checks Self-Extend's flags; the default window is the largest multiple of the factor up to the
 * usual default. */
static int check_group(struct gr_options *o)
{
    int32_t n = o->grp_attn_n, w = o->grp_attn_w, near = n > w ? n : n > 1 ? w / n * n : w;
    if (n <= 1 || near == w)
        return 0;
    if (!o->given.grp_attn_w.text) {
        o->grp_attn_w = near;
        return 0;
    }
    gr_say_error("Self-Extend: -gaw: a multiple of -gan %d expected, %d found; -gaw %d is one", n,
                 w, near);
    return GR_EXIT_USAGE;
}

/* Checks --samplers and --sampler-seq by a sampler of one token. */
static int check_order(const struct gr_options *o)
{
    struct gr_sampler_params p = gr_sampler_params_default();
    struct gr_sampler *s = NULL;
    int status = o->samplers ? gr_sampler_letters(o->samplers, p.samplers) : 0;
    if (o->sampler_seq)
        snprintf(p.samplers, sizeof p.samplers, "%s", o->sampler_seq);
    if (o->sampler_seq && strlen(o->sampler_seq) >= sizeof p.samplers)
        memset(p.samplers, 't', sizeof p.samplers); /* too many */
    p.n_vocab = 1;
    if (!status)
        status = gr_sampler_new(&s, &p);
    gr_sampler_free(&s);
    return status ? gr_say_status(status) : 0;
}

int gr_options_check(struct gr_options *o)
{
    int rc = check_pairs(o);
    if (!rc && (o->samplers || o->sampler_seq))
        rc = check_order(o);
    if (o->prompt && !strcmp(o->prompt, "-"))
        o->prompt = NULL, o->file = "-";
    return rc ? rc : check_group(o);
}

/* ---- flags without effect ---- */

static void tell_repeated(const struct gr_options *o)
{
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        const struct gr_given *g = (const void *)((const char *)o + f->given);
        int n = (int)strcspn(f->names, " ");
        bool all_count = o->command == GR_CMD_run && g == &o->given.prompt;
        if (f->kind >= LIST || !g->was || all_count)
            continue;
        if (f->kind == STR)
            gr_say("%.*s is given more than once: the last one counts", n, f->names);
        else
            gr_say("%.*s is given more than once, as %s and as %s: the last one counts", n,
                   f->names, g->was, g->text);
    }
}

/* Warns of flags that need another one, or are overridden by it. */
static void tell_idle(const struct gr_options *o)
{
    bool filters = GIVEN(top_k) || GIVEN(typical) || GIVEN(top_p) || GIVEN(min_p);
    bool dry = GIVEN(dry_base) || GIVEN(dry_allowed_length) || GIVEN(dry_penalty_last_n) ||
               GIVEN(dry_breaker);
    bool cpu = o->device && (!strcasecmp(o->device, "cpu") || !strcasecmp(o->device, "none"));
    const struct {
        bool idle;
        const char *what, *when;
    } flag[] = {
        {GIVEN(keep) && !o->context_shift, "--keep", "without --context-shift"},
        {GIVEN(grp_attn_w) && o->grp_attn_n == 1, "-gaw", "without -gan"},
        {GIVEN(grp_attn_mode) && o->grp_attn_n == 1, "--grp-attn-mode", "without -gan"},
        {GIVEN(mirostat_ent) && !o->mirostat, "--mirostat-ent", "without --mirostat 1 or 2"},
        {GIVEN(mirostat_lr) && !o->mirostat, "--mirostat-lr", "without --mirostat 1 or 2"},
        {filters && o->mirostat, "--top-k, --typical, --top-p or --min-p", "with --mirostat"},
        {dry && o->dry_multiplier <= 0, "--dry-base or another flag of DRY",
         "without --dry-multiplier"},
        {GIVEN(dynatemp_exp) && o->dynatemp_range <= 0, "--dynatemp-exp",
         "without --dynatemp-range"},
        {GIVEN(adaptive_decay) && o->adaptive_target < 0, "--adaptive-decay",
         "without --adaptive-target"},
        {GIVEN(main_gpu) && strcmp(o->split_mode, "none") != 0, "-mg", "without -sm none"},
        {GIVEN(op_offload_min) && !o->op_offload, "--op-offload-min", "with --no-op-offload"},
        {GIVEN(threshold) && !o->compare, "--threshold", "without --compare"},
        {GIVEN(ubatch_size) && o->ubatch_size > o->batch_size, "-ub",
         "beyond -b, which is smaller"},
        {GIVEN(gpu_layers) && o->gpu_layers > 0 && cpu, "-ngl", "with --device none or cpu"},
        {GIVEN(n_cpu_moe) && o->cpu_moe, "-ncmoe", "with --cpu-moe"},
        {GIVEN(control_vector_layer_range) && !o->control_vector.n && !o->control_vector_scaled.n,
         "--control-vector-layer-range", "without --control-vector"},
        {(GIVEN(models_max) || GIVEN(models_wait)) && !o->models_dir,
         "--models-max or --models-wait", "without --models-dir"},
        {GIVEN(prompt_cache_all) && o->prompt_cache_ro > 0, "--prompt-cache-all",
         "with --prompt-cache-ro"},
    };
    for (size_t i = 0; i < sizeof flag / sizeof *flag; i++)
        if (flag[i].idle)
            gr_say("%s has no effect %s", flag[i].what, flag[i].when);
}

/* ---- variables ---- */

static const char *const prefixes[] = {"GPURUN_", "LLAMA_ARG_"};

/* Variables of the build, of scripts and of tests. */
static const char *const others[] = {
    "BUILD", "CUDA", "CUDA_ARCHS", "CUDA_PTX", "CUDA_WATCHDOG", "FUZZ",      "FUZZ_SECONDS",
    "MPI",   "NCCL", "NVCC",       "SANITIZE", "SHARED",        "TEST_NCCL", "TESTS"};

static bool is(const char *name, size_t n, const char *other)
{
    return strlen(other) == n && !memcmp(name, other, n);
}

/* Returns whether a variable, without its prefix, is read somewhere. */
static bool is_known(const char *name, size_t n, bool own)
{
    bool no = n > 3 && !memcmp(name, "NO_", 3);
    for (size_t i = 0; own && i < sizeof others / sizeof *others; i++)
        if (is(name, n, others[i]))
            return true;
    for (const struct gr_flag *f = gr_flags; f->names; f++)
        if (*f->variable && (is(name, n, f->variable) ||
                             (no && gr_flag_has_no(f) && is(name + 3, n - 3, f->variable))))
            return true;
    return false;
}

/* Returns whether a variable is named like the flag: "OP_TIMES" for "--op-times". */
static bool is_flag(const struct gr_flag *f, const char *name, size_t n)
{
    const char *at = f->names, *p;
    size_t m;
    bool off = false;
    while (gr_flag_next_name(&at, &p, &m, &off)) {
        size_t dashes = strspn(p, "-"), i = 0;
        while (i < n && m - dashes == n &&
               (p[dashes + i] == '-' ? '_' : toupper((unsigned char)p[dashes + i])) == name[i])
            i++;
        if (i == n)
            return true;
    }
    return false;
}

/* Returns the flag that a misspelt variable probably means; NULL: none is near. */
static const struct gr_flag *nearest(const char *name, size_t n)
{
    const struct gr_flag *best = NULL;
    size_t least = n / 3 + 1;
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        if (is_flag(f, name, n))
            return f;
        size_t d = gr_edit_distance(name, n, f->variable, strlen(f->variable));
        if (*f->variable && d < least)
            best = f, least = d;
    }
    return best;
}

static void warn_of_variable(const char *prefix, const char *entry)
{
    const char *name = entry + strlen(prefix);
    size_t n = strcspn(name, "=");
    if (!name[n] || !name[n + 1] || is_known(name, n, prefix == prefixes[0]))
        return;
    const struct gr_flag *f = nearest(name, n);
    int all = (int)(strlen(prefix) + n);
    if (f && f->kind >= GR_FLAG_NOOP)
        gr_say_warning("variable %.*s has no effect: %s", all, entry, f->help);
    else if (f && *f->variable)
        gr_say_warning("variable %.*s names no flag and has no effect: did you mean %s%s?", all,
                       entry, prefix, f->variable);
    else if (f)
        gr_say_warning("variable %.*s has no effect: %.*s has none, give the flag itself", all,
                       entry, (int)strcspn(f->names, " "), f->names);
    else
        gr_say_warning("variable %.*s names no flag of gpurun and has no effect", all, entry);
}

static void warn_of_variables(void)
{
    for (char **entry = environ; entry && *entry; entry++)
        for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
            if (!strncmp(*entry, prefixes[i], strlen(prefixes[i])))
                warn_of_variable(prefixes[i], *entry);
}

void gr_options_warn(const struct gr_options *o)
{
    for (int i = 0; i < o->n_notice; i++) {
        const char *names = o->notice[i].flag->names, *text = o->notice[i].text;
        gr_say("%.*s%s%s has no effect: %s", (int)strcspn(names, text ? " " : ""), names,
               text ? " " : "", text ? text : "", o->notice[i].flag->help);
    }
    tell_repeated(o);
    tell_idle(o);
    warn_of_variables();
}
