/* The tables of commands and flags, and what parsing makes of them. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/flags.h"

#define N_WORDS(array) ((int)(sizeof(array) / sizeof *(array)))
/* Parses the words; the options are freed when the test ends. */
#define PARSE(o, command, ...)                                                                     \
    parse(o, command, (const char *const[]){__VA_ARGS__},                                          \
          N_WORDS(((const char *const[]){__VA_ARGS__})))

static int parse(struct gr_options *o, enum gr_command command, const char *const *words, int n)
{
    return gr_options_parse(o, command, n, (char **)words);
}

static void no_variables(void)
{
    extern char **environ;
    environ = NULL;
    cr_assert(freopen("/dev/null", "w", stderr));
}

TestSuite(flags, .init = no_variables);

/* In no command do two flags have the same name, and every name is spelt as a flag. */
Test(flags, names_are_unique)
{
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        const char *at = f->names, *name;
        size_t n;
        bool off = false;
        while (gr_flag_next_name(&at, &name, &n, &off)) {
            int found = 0;
            cr_expect(n > 1 && name[0] == '-' && name[n - 1] != '-', "%.*s", (int)n, name);
            for (const struct gr_flag *g = gr_flags; g->names; g++) {
                const char *at_g = g->names, *other;
                size_t m;
                bool off_g = false;
                /* A command can have what is absent from the others; its flag comes first. */
                if ((g->kind == GR_FLAG_ABSENT) != (f->kind == GR_FLAG_ABSENT) &&
                    (g > f) == (g->kind == GR_FLAG_ABSENT))
                    continue;
                while (g->commands & f->commands & ~GR_BRIEF &&
                       gr_flag_next_name(&at_g, &other, &m, &off_g))
                    found += m == n && !memcmp(name, other, n);
            }
            cr_expect_eq(found, 1, "%.*s: %d times", (int)n, name, found);
        }
    }
}

/* A value that the flag takes. */
static const char *sample(const struct gr_flag *f)
{
    static char text[32];
    switch (f->kind) {
    case CHOICE:
    case CHOICES:
    case WHEN:
        snprintf(text, sizeof text, "%.*s", (int)strcspn(f->value, "|"), f->value);
        return text;
    case BIAS:
        return "5-1.5";
    case STR:
        return strstr(f->names, "--samplers") ? "top_k;temp" : "x";
    case STEPS:
        return "1:2";
    case SHARES:
        return "1";
    default:
        if (*f->value == '0') /* one of a few numbers */
            return "0";
        snprintf(text, sizeof text, "%.0f", f->lo > 1 ? f->lo : f->hi < 1 ? 0 : 1);
        return text;
    }
}

/* Every name of every flag parses in every command that has it; what is absent is refused, with the
 * flag's name. */
Test(flags, every_name_parses)
{
    int n_parsed = 0;
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        for (int c = 0; c < GR_N_COMMANDS; c++) {
            const char *at = f->names, *name;
            size_t n;
            bool off = false;
            while (f->commands & 1u << c && gr_flag_next_name(&at, &name, &n, &off)) {
                char word[64];
                bool other;
                if (gr_flag_find((enum gr_command)c, name, n, &other) != f)
                    continue; /* refused by all commands but this one */
                const char *const words[] = {word, sample(f), "a", "b", "c"};
                struct gr_options o;
                snprintf(word, sizeof word, "%.*s", (int)n, name);
                bool value = *f->value && !(f->kind == GR_FLAG_NOOP && strchr(f->value, '|'));

                const char *all[5] = {word, words[1]};
                int n_all = value ? 2 : 1;
                for (int i = 0; i < gr_commands[c].least; i++)
                    all[n_all++] = words[2 + i];
                int rc = parse(&o, (enum gr_command)c, all, n_all);
                bool asked = c == GR_CMD_help && n_all == 1; /* gpurun help --temp */
                bool refused = f->kind == GR_FLAG_ABSENT && !asked;
                cr_expect_eq(rc, refused ? GR_EXIT_USAGE : 0, "gpurun %s %s", gr_commands[c].name,
                             word);
                gr_options_fini(&o);
                n_parsed++;
            }
        }
    }
    cr_assert_gt(n_parsed, 500);
}

/* Each of llama.cpp's flags is known: accepted by some command, or answered. */
Test(flags, llama_names_are_known)
{
    FILE *f = fopen(GR_SOURCE_DIR "/tests/golden/tools/llama-flags.txt", "r");
    char word[80];
    int n = 0;
    cr_assert(f);
    for (; fscanf(f, "%79s", word) == 1; n++) {
        bool known = false;
        for (const struct gr_flag *g = gr_flags; g->names; g++) {
            const char *at = g->names, *name;
            size_t m;
            bool off = false;
            while (gr_flag_next_name(&at, &name, &m, &off))
                known |= m == strlen(word) && !memcmp(name, word, m);
            cr_expect(*g->help, "%s says nothing", g->names);
        }
        cr_expect(known, "%s", word);
    }
    fclose(f);
    cr_assert_gt(n, 500);
}

Test(flags, defaults)
{
    struct gr_options o;
    struct gr_sampler_params p = gr_sampler_params_default();
    cr_assert_eq(gr_options_parse(&o, GR_CMD_run, 0, NULL), 0);
    cr_expect(o.temp == p.temp && o.top_k == p.top_k && o.top_p == p.top_p && o.min_p == p.min_p);
    cr_expect(o.typical == p.typical_p && o.repeat_last_n == p.penalty_last_n);
    cr_expect(o.repeat_penalty == p.penalty_repeat && o.presence_penalty == p.penalty_present);
    cr_expect(o.frequency_penalty == p.penalty_freq && o.mirostat == p.mirostat);
    cr_expect(o.top_n_sigma == p.top_n_sigma && o.xtc_probability == p.xtc_probability &&
              o.xtc_threshold == p.xtc_threshold && o.dynatemp_range == p.dynatemp_range &&
              o.dynatemp_exp == p.dynatemp_exponent && o.adaptive_target == p.adaptive_target &&
              o.adaptive_decay == p.adaptive_decay);
    cr_expect(o.dry_multiplier == p.dry_multiplier && o.dry_base == p.dry_base &&
              o.dry_allowed_length == p.dry_allowed_length &&
              o.dry_penalty_last_n == p.dry_penalty_last_n);
    cr_expect(o.mirostat_ent == p.mirostat_tau && o.mirostat_lr == p.mirostat_eta);
    cr_expect(o.grp_attn_n == 1 && o.grp_attn_w == 512 && o.batch_size == 2048 &&
              o.ubatch_size == 512);
    cr_expect(o.ctx_size == -1 && o.gpu_layers == -1 && o.threads == -1 && o.seed == -1 &&
              o.n_predict == -1);
    cr_expect(o.mmap == 1 && o.warmup == 1 && o.escape == 1 && o.display_prompt == -1 &&
              o.context_shift == 0);
    cr_expect(isnan(o.rope_freq_base) && isnan(o.yarn_ext_factor) && !o.model && !o.prompt &&
              !o.log_file);
    cr_expect_str_eq(o.cache_type_k, "f16");
}

Test(flags, values)
{
    struct gr_options o;
    cr_assert_eq(PARSE(&o, GR_CMD_run, "-c", "100", "-n", "-2", "--temp", "0", "-p", "-x",
                       "--no-mmap", "-s", "7", "--top-p=0.5", "-ngl", "all", "-l", "5+1.5", "-l",
                       "6-inf", "-l", "x-1+2e-1", "-ctk", "q8_0", "-fa", "--rope-scaling", "yarn",
                       "-gan", "4", "--yarn-ext-factor", "-1", "m.gguf"),
                 0);
    cr_expect(o.ctx_size == 100 && o.n_predict == -2 && o.temp == 0 && !o.mmap && o.seed == 7 &&
              o.top_p == 0.5f);
    cr_expect(o.gpu_layers == INT32_MAX && o.grp_attn_n == 4 && o.yarn_ext_factor == -1);
    cr_assert_eq(o.logit_bias.n, 3);
    cr_expect(o.logit_bias.v[0].id == 5 && o.logit_bias.v[0].bias == 1.5f);
    cr_expect(o.logit_bias.v[1].id == 6 && o.logit_bias.v[1].bias == -INFINITY);
    cr_expect(o.logit_bias.v[2].n_text == 3 && !memcmp(o.logit_bias.v[2].text, "x-1", 3));
    cr_expect(o.logit_bias.v[2].bias == 0.2f && !o.logit_bias.v[0].text);
    cr_expect_str_eq(o.prompt, "-x");
    cr_expect_str_eq(o.model, "m.gguf");
    cr_expect_str_eq(o.cache_type_k, "q8_0");
    cr_expect_str_eq(o.rope_scaling, "yarn");
    gr_options_fini(&o);
    cr_assert_eq(PARSE(&o, GR_CMD_bench, "-p", "16,512", "-n", "0", "-ngl", "auto", "-fa", "off",
                       "-fa", "1"),
                 0);
    cr_expect(o.n_prompt.n == 2 && o.n_prompt.v[1] == 512 && o.n_gen.n == 1 && o.n_gen.v[0] == 0);
    cr_expect(o.gpu_layer_counts.n == 1 && o.gpu_layer_counts.v[0] == -1);
    cr_assert_eq(PARSE(&o, GR_CMD_bench, "-p", "7,1-8*2", "-d", "0-4096+2048", "-n", "3-5", "-ngl",
                       "0,all", "-ctk", "f16,q8_0", "-t", "auto,4"),
                 0);
    cr_expect(o.n_prompt.n == 5 && o.n_prompt.v[0] == 7 && o.n_prompt.v[4] == 8);
    cr_expect(o.depths.n == 3 && o.depths.v[2] == 4096 && o.n_gen.n == 3 && o.n_gen.v[2] == 5);
    cr_expect(o.gpu_layer_counts.v[1] == INT32_MAX && o.thread_counts.v[0] == -1);
    cr_expect(o.cache_types_k.n == 2 && o.cache_types_v.n == 1);
    cr_expect_str_eq(o.cache_types_k.v[1], "q8_0");
    cr_assert_eq(PARSE(&o, GR_CMD_run, "-co", "off", "-co", "-fa", "m.gguf"), 0);
    cr_expect_str_eq(o.color, "on");
    cr_expect_str_eq(o.model, "m.gguf");
    cr_assert_eq(PARSE(&o, GR_CMD_run, "--", "-odd.gguf"), 0);
    cr_expect_str_eq(o.model, "-odd.gguf");
}

/* The model, then the text; with -m the text alone. */
Test(flags, words)
{
    struct gr_options o;
    cr_assert_eq(PARSE(&o, GR_CMD_run, "m.gguf", "Once upon", "-n", "5"), 0);
    cr_expect_str_eq(o.model, "m.gguf");
    cr_expect_str_eq(o.prompt, "Once upon");
    cr_assert_eq(PARSE(&o, GR_CMD_run, "-n", "5", "Once", "-m", "m.gguf"), 0);
    cr_expect_str_eq(o.model, "m.gguf");
    cr_expect_str_eq(o.prompt, "Once");
    cr_assert_eq(PARSE(&o, GR_CMD_run, "-hf", "user/repo", "Once"), 0);
    cr_expect(!o.model && !strcmp(o.prompt, "Once"));
    cr_assert_eq(PARSE(&o, GR_CMD_run, "m.gguf", "-"), 0);
    cr_expect(!o.prompt && !strcmp(o.file, "-"));
    cr_assert_eq(PARSE(&o, GR_CMD_profile, "m.gguf", "--", "-n"), 0);
    cr_expect_str_eq(o.prompt, "-n");
    cr_assert_eq(PARSE(&o, GR_CMD_run, "m.gguf", "-r", "a", "--stop", "b"), 0);
    cr_assert_eq(o.stop.n, 2);
    cr_expect_str_eq(o.stop.v[1], "b");
    gr_options_fini(&o);
}

Test(flags, bad_values)
{
    static const char *const bad[][2] = {{"-c", "x"},         {"-c", ""},
                                         {"-c", "5x"},        {"-c", "0x10"},
                                         {"-c", " 5"},        {"-c", "1e3"},
                                         {"-c", "-2"},        {"-c", "99999999999999999999"},
                                         {"-n", "-3"},        {"-n", "5.5"},
                                         {"-n", "all"},       {"--temp", "nan"},
                                         {"--temp", "inf"},   {"--temp", "1,5"},
                                         {"--temp", ""},      {"--temp", "0x1p3"},
                                         {"--temp", "1e9"},   {"--min-p", "2"},
                                         {"-ctk", "q6_k"},    {"-ctk", "f16|bf16"},
                                         {"-ctk", ""},        {"-l", "5"},
                                         {"-l", "+1"},        {"-l", "5+nan"},
                                         {"-l", "Hello-"},    {"-l", "99999999999999+1"},
                                         {"--nvtx", "on"},    {"-t", "513"},
                                         {"-gan", "0"},       {"--mirostat", "3"},
                                         {"--top-p", "-1"},   {"--ids", "1"},
                                         {"--port", "80"},    {"--mmap=perhaps", ""},
                                         {"-q=1", ""},        {"--nonsense", ""},
                                         {"--no-mmap=2", ""}, {"-s", "-2"},
                                         {"--color=blue", ""}};
    for (int i = 0; i < N_WORDS(bad); i++) {
        struct gr_options o;
        cr_expect_eq(PARSE(&o, GR_CMD_run, bad[i][0], bad[i][1]), GR_EXIT_USAGE, "%s '%s'",
                     bad[i][0], bad[i][1]);
        gr_options_fini(&o);
    }
    struct gr_options o;
    cr_expect_eq(PARSE(&o, GR_CMD_run, "-n"), GR_EXIT_USAGE);
    cr_expect_eq(PARSE(&o, GR_CMD_run, "a", "b", "c"), GR_EXIT_USAGE);
    cr_expect_eq(PARSE(&o, GR_CMD_run, "-m", "a", "b.gguf"), GR_EXIT_USAGE);
    cr_expect_eq(PARSE(&o, GR_CMD_run, "-m", "a", "-p", "b", "c"), GR_EXIT_USAGE);
    cr_expect_eq(PARSE(&o, GR_CMD_embed, "a", "b"), GR_EXIT_USAGE);
    cr_expect_eq(PARSE(&o, GR_CMD_quantize, "a", "b"), GR_EXIT_USAGE);
    cr_expect_eq(PARSE(&o, GR_CMD_bench, "-p", "1,,2"), GR_EXIT_USAGE);
    gr_options_fini(&o);
    cr_expect_eq(PARSE(&o, GR_CMD_bench, "-p", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"),
                 GR_EXIT_USAGE);
}

Test(flags, variables)
{
    struct gr_options o;
    setenv("LLAMA_ARG_CTX_SIZE", "100", 1);
    setenv("LLAMA_ARG_BATCH", "64", 1);
    setenv("GPURUN_BATCH", "32", 1);
    setenv("GPURUN_MMAP", "off", 1);
    setenv("GPURUN_MODEL", "e.gguf", 1);
    setenv("GPURUN_THREADS", "", 1);
    cr_assert_eq(PARSE(&o, GR_CMD_run, "-b", "16"), 0);
    cr_expect(o.ctx_size == 100 && o.batch_size == 16 && !o.mmap && o.threads == -1);
    cr_expect_str_eq(o.model, "e.gguf");
    cr_assert_eq(PARSE(&o, GR_CMD_run, "a.gguf"), 0);
    cr_expect(o.batch_size == 32);
    cr_expect_str_eq(o.model, "a.gguf");
    setenv("GPURUN_BATCH", "many", 1);
    cr_expect_eq(PARSE(&o, GR_CMD_run, "a.gguf"), GR_EXIT_USAGE);
    cr_expect_eq(PARSE(&o, GR_CMD_tokenize, "a.gguf"), 0,
                 "a variable of a flag that the command lacks is nothing to it");
}

Test(flags, nearest_names)
{
    static const char *const cases[][2] = {{"--tmep", "--temp"},
                                           {"-tmep", "--temp"},
                                           {"--ctx", "--ctx-size"},
                                           {"--batch_size", "--batch-size"},
                                           {"--top_k", "--top-k"},
                                           {"--mirostat-e", "--mirostat-ent"},
                                           {"-M", "-m"},
                                           {"--gan", "-gan"},
                                           {"--no_mmap=1", "--no-mmap"},
                                           {"--sead", "--seed"},
                                           {"tokenise", "tokenize"},
                                           {"rnu", "run"},
                                           {"--n-predict ", "--n-predict"}};
    for (int i = 0; i < N_WORDS(cases); i++) {
        const char *near = gr_nearest_name(GR_CMD_run, cases[i][0]);
        cr_expect(near && !strcmp(near, cases[i][1]), "%s: %s", cases[i][0], near ? near : "none");
    }
    cr_expect_null(gr_nearest_name(GR_CMD_run, "-x"));
    cr_expect_null(gr_nearest_name(GR_CMD_run, "--something-else"));
    cr_expect_null(gr_nearest_name(GR_CMD_run, "hello"));
}
