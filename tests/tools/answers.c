/* Messages about a command line that is wrong, or has parts that change nothing: the words, the
 * exit code, and that the advice works. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpurun.h"
#include "tiny.h"

TestSuite(answers, .timeout = 240);

/* Runs the words of a line, which blanks divide; @ is a model file, # a name for a new file. */
static struct outcome answer(const char *input, const char *line)
{
    static char words[1024];
    const char *argv[48] = {"gpurun"};
    int n = 1;
    char *save = NULL;
    snprintf(words, sizeof words, "%s", line);
    for (char *w = strtok_r(words, " ", &save); w && n < 47; w = strtok_r(NULL, " ", &save))
        argv[n++] = !strcmp(w, "@")   ? tiny_path("tiny.gguf")
                    : !strcmp(w, "#") ? tiny_path("new")
                                      : w;
    return tiny_run(input, argv);
}

struct answer {
    const char *line;
    int code;
    const char *says; /* in stderr; NULL: nothing of flags, no warning, no error */
};

static void expect_answers(const struct answer *a, size_t n)
{
    tiny_model(false);
    for (size_t i = 0; i < n; i++) {
        struct outcome o = answer(NULL, a[i].line);
        cr_expect_eq(o.exit_code, a[i].code, "gpurun %s: exit %d: %s", a[i].line, o.exit_code,
                     o.err);
        if (a[i].says)
            cr_expect(strstr(o.err, a[i].says), "gpurun %s: %s", a[i].line, o.err);
        else
            cr_expect(!strstr(o.err, "gpurun: ") && !strstr(o.err, "more than once") &&
                          !strstr(o.err, "no effect"),
                      "gpurun %s: %s", a[i].line, o.err);
    }
}

#define EXPECT(table) expect_answers(table, sizeof(table) / sizeof *(table))
#define RUN "run -m @ -t 1 -p a -n 1 "
#define BENCH "bench -t 1 -r 1 --no-warmup -n 0 -p 8 "
#define FIT "fit -m @ "

/* ---- values ---- */

Test(answers, values)
{
    static const struct answer table[] = {
        {RUN "-ngl foo", 2, "-ngl is 'foo': a whole number from 0 on, all or auto is expected"},
        {RUN "-ngl all", 0, ""},
        {RUN "-ngl AUTO", 0, ""},
        {BENCH "-m @ -ngl foo", 2, "a whole number from 0 on, all or auto"},
        {RUN "--top-k x", 2, "--top-k is 'x': a whole number is expected"},
        {RUN "-s x", 2, "a whole number from -1 on"},
        {"run -t 1 -p a -n 1 -ctk Q8_0 -ctv BF16", 0, NULL},
        {RUN "-ctk q6_K", 2, GR_CACHE_TYPES},
        {BENCH "-ctk F16,Q8_0", 0, NULL},
        {RUN "--rope-scaling YARN", 0, NULL},
        {RUN "--top-p 2", 2, "--top-p is '2': a number from 0 to 1 is expected"},
        {RUN "--typical 1.1", 2, "a number from 0 to 1"},
        {RUN "--min-p 1.5", 2, "a number from 0 to 1"},
        {RUN "--min-p -1", 2, "a number from 0 to 1"},
        {RUN "--top-p 1.0 --min-p 0 --typical 1", 0, NULL},
        {RUN "--top-p 0", 0, NULL},
        {"-m nothing.gguf --mirostat 3", 2, "--mirostat is '3': one of 0|1|2"},
        {"-m nothing.gguf --cpu-strict 2", 2, "one of 0|1"},
        {"-m nothing.gguf -l abc", 2, "ID+X, ID-X, ID-inf or TEXT+X"},
        {"-m nothing.gguf -ts abc", 2, "-ts is 'abc': a list of shares"},
        {"-m nothing.gguf -ts 1,,", 2, "a list of shares"},
        {"-m nothing.gguf -ts 0,0", 2, "one of them above 0"},
        {"-m nothing.gguf -ts 1/2,3", 2, "a list of shares"},
        {RUN "-ts 1", 0, NULL},
        {RUN "-ts AUTO", 0, NULL},
        {"-m nothing.gguf --profile-steps 4:2", 2, "--profile-steps is '4:2': two numbers A:B"},
        {"-m nothing.gguf -C 0xg", 2, "-C is '0xg': a hexadecimal number"},
        {RUN "-l 99999+1", 2, "the vocabulary ends at 284"},
        {"-m nothing.gguf", 3, "nothing.gguf"},
    };
    EXPECT(table);
}

/* Switches as llama-bench has them, with a word behind them; a file of that name is a file. */
Test(answers, words_of_switches)
{
    static const struct answer table[] = {
        {RUN "-nkvo 0", 0, NULL},
        {RUN "-nkvo 1", 0, NULL},
        {RUN "--no-mmap on", 0, NULL},
        {RUN "--no-mmap=off", 0, NULL},
        {RUN "--ignore-eos ON", 0, NULL},
        {RUN "--display-prompt auto -kvu 1 -no-kvu auto", 0, "as on and as auto"},
        {RUN "--ignore-eos maybe", 2, "'maybe' is one word too many"},
        {RUN "-fa on", 0, NULL},
        {RUN "-fa auto", 0, NULL},
        {RUN "-fa", 0, NULL},
        {RUN "-fa off", 0, "-fa off has no effect: there is one attention"},
        {RUN "-fa 0", 0, "-fa 0 has no effect"},
        {RUN "-fa 0,1", 2, "'0,1' is one word too many"},
        {RUN "-fit on", 0, NULL},
        {RUN "-fit off", 0, "-fit off has no effect: -ngl auto"},
        {RUN "--no-ppl", 0, "--no-ppl has no effect"},
        {RUN "-fitt 512", 2, "-ngl N with fewer layers"},
        {RUN "-fitc 512", 2, "-c N"},
        {RUN "-fitp", 2, "gpurun fit prints"},
        {RUN "--no-repack 1", 0, NULL},
    };
    EXPECT(table);
    char here[512];
    cr_assert(getcwd(here, sizeof here));
    cr_assert_eq(chdir(tiny_dir()), 0);
    cr_assert_eq(rename("tiny.gguf", "1"), 0);
    expect_exit(answer(NULL, "run -t 1 -p a -n 1 --ignore-eos 1"), 0, "model: tiny");
    cr_assert_eq(chdir(here), 0);
}

/* ---- several flags ---- */

Test(answers, contradictions)
{
    static const struct answer table[] = {
        {RUN "--rope-scale 2 --rope-freq-scale 0.25", 2, "--rope-scale and --rope-freq-scale"},
        {RUN "--rope-scale 2 --rope-freq-scale 0.5", 0, NULL},
        {RUN "-q -v", 2, "-q and -v both"},
        {RUN "-v -lv 2", 2, "-v and -lv both"},
        {RUN "-q -lv 1", 0, NULL},
        {"diff -m @ -p abc -dev none -q -v", 0, NULL},
        {RUN "-f x", 2, "-p and -f both give the text: leave one out"},
        {"tokenize -m @ -p a --stdin", 2, "-p and --stdin both give the text"},
        {"tokenize -m @ -f x --stdin", 2, "-f and --stdin both give the text"},
        {BENCH "-m @ --json -o csv", 2, "--json and -o both"},
        {BENCH "-m @ --json -o jsonl", 0, NULL},
        {"split @ # --split-max-size 1M --split-max-tensors 3", 2, "both say where a part ends"},
        {"quantize @ # Q8_0 --leave-output-tensor --output-tensor-type f16", 2, "the same matrix"},
        {RUN "-gan 3 -gaw 512", 2, "a multiple of -gan 3 expected, 512 found; -gaw 510 is one"},
        {RUN "-gan 3 -gaw 510", 0, ""},
        {RUN "-gan 3", 0, "Self-Extend 3 / 510"},
        {RUN "-gan 600", 0, "Self-Extend 600 / 600"},
        {RUN "-gan 4", 0, "Self-Extend 4 / 512"},
        {RUN "--ranks 2 --op-times", 2, "--ranks 1"},
        {"diff -m @ -p abc --ranks 2", 2, "--ranks 1"},
        {"imatrix -m @ -f @ --ranks 2 -o # -c 64", 2, "--ranks 1"},
    };
    EXPECT(table);
}

/* Flags that change nothing are reported, and the rest happens. */
Test(answers, nothing_in_silence)
{
    static const struct answer table[] = {
        {RUN "-ngl 0 -ngl 0", 0, NULL},
        {RUN "-c 256 -c 512", 0, "-c is given more than once, as 256 and as 512: the last"},
        {RUN "--mmap --no-mmap", 0, "--mmap is given more than once, as on and as off"},
        {RUN "--no-mmap --no-mmap 1", 0, NULL},
        {"tokenize -m @ -p a -p b", 0, "-p is given more than once: the last one counts"},
        {RUN "-l 5+1 -l 6+1", 0, NULL},
        {RUN "--keep 5", 0, "--keep has no effect without --context-shift"},
        {RUN "-gaw 64", 0, "-gaw has no effect without -gan"},
        {RUN "--mirostat-ent 3", 0, "--mirostat-ent has no effect without --mirostat 1 or 2"},
        {RUN "--mirostat 2 --top-k 5", 0, "has no effect with --mirostat"},
        {RUN "--dry-base 2", 0, "has no effect without --dry-multiplier"},
        {RUN "--dynatemp-exp 2", 0, "has no effect without --dynatemp-range"},
        {RUN "--adaptive-decay 0.5", 0, "has no effect without --adaptive-target"},
        {RUN "--samplers top_k --sampler-seq k", 2, "both give the samplers"},
        {RUN "--samplers top_k;warm", 2, "no sampler has the name 'warm'"},
        {RUN "--sampler-seq kq", 2, "no sampler has the name 'q'"},
        {RUN "-bs --sampler-seq edskypmxta --samplers=", 2, "both give"},
        {RUN "-mg 1", 0, "-mg has no effect without -sm none"},
        {RUN "-ub 64 -b 32", 0, "-ub has no effect beyond -b"},
        {RUN "--no-op-offload --op-offload-min 5", 0, "--op-offload-min has no effect"},
        {BENCH "-m @ --threshold 5", 0, "--threshold has no effect without --compare"},
        {RUN "-ngl 9 --device none", 0, "-ngl has no effect with --device none"},
        {"quantize @ # Q8_0 --overwrite --tensor-type nowhere=q4_0", 2, "'nowhere=q4_0'"},
        {"quantize @ # Q8_0 --overwrite --tensor-type norm=f16", 0, "'norm=f16' changes nothing"},
        {"quantize @ # COPY --overwrite --tensor-type attn=q4_0", 2, "COPY leaves every tensor"},
        {"quantize @ # F16 --overwrite --tensor-type attn=q4_0", 0, "do not count with type f16"},
        {"quantize @ # Q8_0 --overwrite --tensor-type attn_v=f16", 0, NULL},
    };
    EXPECT(table);
}

Test(answers, variables)
{
    static const char *const env[][3] = {
        {"GPURUN_TEMPERATURE", "0", "names no flag and has no effect: did you mean GPURUN_TEMP?"},
        {"GPURUN_TMEP", "0", "did you mean GPURUN_TEMP?"},
        {"GPURUN_OP_TIMES", "1", "--op-times has none, give the flag itself"},
        {"LLAMA_ARG_CTX_SZIE", "256", "did you mean LLAMA_ARG_CTX_SIZE?"},
        {"LLAMA_ARG_TOOLS", "x", "LLAMA_ARG_TOOLS has no effect: not in this version; gpurun help"},
        {"LLAMA_ARG_FLASH_ATTN", "on",
         "LLAMA_ARG_FLASH_ATTN has no effect: there is one attention"},
        {"GPURUN_WHATEVER_IT_IS", "x", "GPURUN_WHATEVER_IT_IS names no flag of gpurun"}};
    static const char *const known[] = {"GPURUN_TEMP",          "LLAMA_ARG_CTX_SIZE",
                                        "LLAMA_ARG_NO_MMAP",    "GPURUN_SHARED",
                                        "GPURUN_CUDA_WATCHDOG", "GPURUN_POOLING"};
    tiny_model(false);
    for (size_t i = 0; i < sizeof env / sizeof *env; i++) {
        setenv(env[i][0], env[i][1], 1);
        expect_exit(answer(NULL, RUN), 0, env[i][2]);
        cr_expect(!strstr(answer(NULL, RUN "-q").err, env[i][0]));
        setenv(env[i][0], "", 1);
        cr_expect(!strstr(answer(NULL, RUN).err, env[i][0]));
        unsetenv(env[i][0]);
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        setenv(known[i], "1", 1);
    struct outcome o = answer(NULL, RUN);
    cr_expect(o.exit_code == 0 && !strstr(o.err, "variable"), "%s", o.err);
}

/* ---- standard input ---- */

Test(answers, standard_input)
{
    tiny_model(false);
    expect_exit(answer("abc", RUN), 0, "standard input has text, which is not read: -p gives");
    cr_expect(!strstr(answer("", RUN).err, "standard input"));
    cr_expect(!strstr(answer(NULL, RUN).err, "standard input"));
    struct outcome dash = answer("abc", "tokenize -m @ -p - --ids");
    struct outcome file = answer("abc", "tokenize -m @ -f - --ids");
    cr_expect(dash.exit_code == 0 && !strcmp(dash.out, file.out), "%s%s", dash.out, dash.err);
    cr_expect(!strstr(dash.err, "standard input has"), "%s", dash.err);
    expect_exit(answer("abc", "tokenize -m @ -p - -f x"), 2, "both give the text");
}

/* A pipe that stays open is not waited for. */
Test(answers, open_pipe)
{
    tiny_model(false);
    cr_assert_eq(mkfifo(tiny_path("in"), 0600), 0);
    int fd = open(tiny_path("in"), O_RDWR | O_CLOEXEC);
    cr_assert_geq(fd, 0);
    struct outcome o = answer("", RUN);
    cr_expect(o.exit_code == 0 && !strstr(o.err, "standard input"), "%s", o.err);
    expect_exit(answer("abc", RUN), 0, "standard input has text");
    close(fd);
}

/* ---- gpurun bench ---- */

static int lines_with(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

/* Flags given again add to what they list; a variable is replaced. */
Test(answers, bench_repeats)
{
    tiny_model(false);
    setenv("GPURUN_UBATCH", "4,2", 1);
    struct outcome o = answer(NULL, BENCH "-m @ -p 16 -t 2 -ctk f16 -ctk bf16 -ub 8");
    cr_assert_eq(o.exit_code, 0, "%s", o.err);
    cr_expect_eq(lines_with(o.out, " pp8 |"), 4, "%s", o.out);
    cr_expect_eq(lines_with(o.out, " pp16 |"), 4, "%s", o.out);
    cr_expect_eq(lines_with(o.out, " bf16 |"), 4, "%s", o.out);
    unsetenv("GPURUN_UBATCH");
    o = answer(NULL, BENCH "-m @ -nkvo 0,1 -mmp 0 -mmp 1 -nopo on,off -fa 0,1 --no-warmup");
    cr_assert_eq(o.exit_code, 0, "%s", o.err);
    cr_expect_eq(lines_with(o.out, " pp8 |"), 8, "%s", o.out);
    cr_expect(strstr(o.out, "| mmap | nkvo | nopo |") && strstr(o.err, "-fa 0,1 has no effect"),
              "%s%s", o.out, o.err);
    o = answer(NULL, BENCH "-m @ --no-mmap -nkvo --json");
    json_t *row = json_loads(o.out, 0, NULL);
    cr_assert(row, "%s%s", o.out, o.err);
    cr_expect(json_is_false(json_object_get(row, "use_mmap")) &&
              json_is_true(json_object_get(row, "no_kv_offload")) &&
              json_is_false(json_object_get(row, "no_op_offload")));
    json_decref(row);
    expect_exit(answer(NULL, BENCH "-p 1-8 -p 11-18"), 2, "-p is '11-18': up to 16 times");
}

Test(answers, bench_models)
{
    char other[128], line[512];
    tiny_model(false);
    snprintf(other, sizeof other, "%s", tiny_path("a,b.gguf"));
    cr_assert_eq(symlink("tiny.gguf", other), 0);
    snprintf(line, sizeof line, BENCH "-m %s,%s -m %s @ --json", tiny_path("tiny.gguf"),
             tiny_path("tiny.gguf"), other);
    struct outcome o = answer(NULL, line);
    cr_assert_eq(o.exit_code, 0, "%s", o.err);
    cr_expect_eq(lines_with(o.out, "tiny.gguf\""), 3, "%s", o.out);
    cr_expect_eq(lines_with(o.out, "a,b.gguf\""), 1, "%s", o.out);
    snprintf(line, sizeof line, BENCH "-m @ -m %s", other);
    o = answer(NULL, line);
    cr_expect(strstr(o.out, "| file ") && strstr(o.out, "/a,b.gguf |"), "%s%s", o.out, o.err);
    setenv("GPURUN_MODEL", "nothing.gguf", 1);
    expect_exit(answer(NULL, BENCH "-m @"), 0, "");
    expect_exit(answer(NULL, BENCH "@"), 0, "");
    expect_exit(answer(NULL, BENCH), 3, "nothing.gguf");
    unsetenv("GPURUN_MODEL");
    o = answer(NULL, BENCH "-m @ nothing.gguf");
    cr_expect(o.exit_code == 3 && !o.n_out && strstr(o.err, "nothing.gguf: No such file"), "%s",
              o.err);
    expect_exit(answer(NULL, BENCH "-m @ -m @ --trace #"), 2, "ask for several");
}

/* Two models of one size are each compared with their own row. */
Test(answers, bench_compares_models_by_name)
{
    char other[128], line[512];
    const char *path = tiny_path("was.json");
    json_t *list, *row;
    size_t i;
    tiny_model(false);
    snprintf(other, sizeof other, "%s", tiny_path("other.gguf"));
    cr_assert_eq(symlink("tiny.gguf", other), 0);
    snprintf(line, sizeof line, BENCH "-m @ -m %s -o json", other);
    struct outcome o = answer(NULL, line);
    cr_assert((list = json_loads(o.out, 0, NULL)), "%s%s", o.out, o.err);
    json_array_foreach(list, i, row) /* the first one was slow, the second one fast */
        json_object_set_new(row, "avg_ts", json_real(i ? 1e12 : 1e-3));
    cr_assert_eq(json_dump_file(list, path, 0), 0);
    json_decref(list);
    snprintf(line, sizeof line, BENCH "-m @ -m %s -o json --compare %s", other, path);
    o = answer(NULL, line);
    cr_expect_eq(o.exit_code, 7, "%s", o.err);
    cr_assert((list = json_loads(o.out, 0, NULL)), "%s%s", o.out, o.err);
    json_array_foreach(list, i, row)
    {
        double ratio = json_number_value(json_object_get(row, "ratio"));
        cr_expect(i ? ratio < 1 : ratio > 1, "row %zu: %g", i, ratio);
    }
    json_decref(list);
}

Test(answers, bench_flags)
{
    static const struct answer table[] = {
        {BENCH "-m @ -sm layer,none", 2, "; run gpurun bench once for each"},
        {BENCH "-m @ --poll 0,50", 2, "; run gpurun bench once for each"},
        {BENCH "-m @ -C 0x1,0x3", 2, "; run gpurun bench once for each"},
        {BENCH "-m @ -embd 1", 2, "leave it out"},
        {BENCH "-m @ --delay 1", 2, "leave it out"},
        {BENCH "-m @ -oe md", 2, "2> FILE"},
        {BENCH "-m @ --no-host 1", 0, NULL},
        {BENCH "-m @ -nkvo 0,2", 3, "0: No such file"},
        {BENCH "-m @ -fa on", 0, NULL},
        {BENCH "--list-devices", 0, NULL},
        {RUN "-mmp 0", 2, "gpurun run has no flag -mmp"},
        {"quantize @ # Q8_0 2 --overwrite", 0, NULL},
        {"quantize @ # Q8_0 2 -t 3 --overwrite", 0, "-t is given more than once"},
        {"quantize @ # Q8_0 513", 2, "-t is '513'"},
        {"quantize @ # Q8_0 many", 2, "unexpected argument 'many'; usage: gpurun quantize IN"},
        {"quantize @ # Q8_0 2 3", 2, "unexpected argument '3'"},
        {"quantize @ #", 2, "usage: gpurun quantize IN.gguf OUT.gguf TYPE [THREADS]"},
        {"perplexity -m @ --hellaswag -f x", 2, "gpurun perplexity -f TEXT"},
        {"perplexity -m @ --winogrande -f x", 2, "gpurun perplexity -f TEXT"},
        {"perplexity -m @ --multiple-choice -f x", 2, "gpurun perplexity -f TEXT"},
    };
    EXPECT(table);
}

/* ---- gpurun fit ---- */

/* The command that it prints has every flag that it was worked out with, and runs. */
Test(answers, fit_prints_all_flags)
{
    static const char *const flags[] = {"--swa-full",
                                        "-no-kvu",
                                        "-nkvo",
                                        "-b 64",
                                        "-t 1",
                                        "--no-mmap",
                                        "--rope-scale 2",
                                        "--rope-scaling linear",
                                        "--rope-freq-base 20000",
                                        "--yarn-ext-factor 0",
                                        "-gan 4",
                                        "-gaw 64",
                                        "--grp-attn-mode window",
                                        "--cpu-level ref",
                                        "--ranks 2",
                                        "-ts 1,2",
                                        "--no-op-offload",
                                        "-dev none"};
    char line[1024] = FIT "-c 1024 -ctk BF16", *command;
    size_t n = strlen(line);
    tiny_model(false);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        n += (size_t)snprintf(line + n, sizeof line - n, " %s", flags[i]);
    struct outcome o = answer(NULL, line);
    cr_assert_eq(o.exit_code, 0, "%s", o.err);
    cr_assert((command = strstr(o.out, "gpurun run -m ")), "%s", o.out);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        cr_expect(strstr(command, flags[i]), "%s is not in %s", flags[i], command);
    cr_expect(strstr(command, " -c 1024 -ub 64 -ctk bf16 -ctv f16"), "%s", command);
    command[strcspn(command, "\n")] = 0;
    snprintf(line, sizeof line, "%s -p a -n 1", command + strlen("gpurun "));
    expect_exit(answer(NULL, line), 0, "");
}

/* Self-Extend's window stores K twice, and fit counts it. */
Test(answers, fit_counts_self_extend)
{
    tiny_model(false);
    double bytes[2];
    for (int i = 0; i < 2; i++) {
        struct outcome o =
            answer(NULL, i ? FIT "-c 2048 --json -gan 8 -gaw 128 --grp-attn-mode window"
                           : FIT "-c 2048 --json");
        json_t *root = json_loads(o.out, 0, NULL), *first;
        cr_assert(root, "%s%s", o.out, o.err);
        first = json_array_get(json_object_get(root, "devices"), 0);
        bytes[i] = json_number_value(json_object_get(first, "cache"));
        json_decref(root);
    }
    cr_expect_gt(bytes[1], 1.4 * bytes[0]);
    expect_exit(answer(NULL, FIT "-c 16000000 -gan auto"), 2, "Self-Extend");
}
