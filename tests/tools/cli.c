/* The program as its users meet it: exit codes, messages, what is on stdout and what on stderr. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "gguf/gguf.h"
#include "tiny.h"
#include "tools/cli/flags.h"

TestSuite(cli, .timeout = 120);

#define TINY tiny_model(false), "-t", "1"

/* ---- texts about the program ---- */

Test(cli, version)
{
    char want[64];
    snprintf(want, sizeof want, "gpurun %s\n", gr_version());
    cr_expect_str_eq(GPURUN(NULL, "version").out, want);
    cr_expect_str_eq(GPURUN(NULL, "--version").out, want);
}

static void expect_screen(struct outcome o, int most_lines)
{
    int lines = 0;
    cr_expect_eq(o.exit_code, 0);
    cr_expect_str_eq(o.err, "");
    for (char *line = strtok(o.out, "\n"); line; line = strtok(NULL, "\n"), lines++)
        cr_expect_leq(strlen(line), 100, "%s", line);
    cr_expect(lines > 3 && lines <= most_lines, "%d lines", lines);
}

Test(cli, help_fits_the_screen)
{
    struct outcome o = GPURUN(NULL, "--help");
    int lines = 0;
    for (const char *p = o.out; *p; p++)
        lines += *p == '\n';
    cr_expect_leq(lines, 25);
    expect_screen(o, 25);
    expect_screen(GPURUN(NULL, "-h"), 25);
    expect_screen(GPURUN(NULL, "help"), 25);
    static const char *const topics[] = {"all",    "text",   "sampling", "memory", "rope", "server",
                                         "output", "absent", "run",      "serve",  "bench"};
    for (size_t i = 0; i < sizeof topics / sizeof *topics; i++)
        expect_screen(GPURUN(NULL, "help", topics[i]), 580);
    expect_screen(GPURUN(NULL, "help", "quantize"), 100);
    expect_screen(GPURUN(NULL, "tokenize", "--help"), 60);
    expect_exit(GPURUN(NULL, "help", "samplin"), 2, "no help on 'samplin': did you mean sampling");
}

/* A flag by any of its names, with and without dashes; what is refused; what is nothing. */
Test(cli, help_on_a_flag)
{
    static const char temp[] = "  --temp, --temperature T\n"
                               "  randomness; 0 always takes the likeliest token\n"
                               "  values     -1000 to 1000\n"
                               "  default    0.8\n"
                               "  variables  GPURUN_TEMP, LLAMA_ARG_TEMP\n"
                               "  commands   run, chat, serve, profile\n";
    cr_expect_str_eq(GPURUN(NULL, "help", "--temp").out, temp);
    cr_expect_str_eq(GPURUN(NULL, "help", "temperature").out, temp);
    cr_expect_str_eq(GPURUN(NULL, "help", "--temp=1").out, temp);
    cr_expect_str_eq(GPURUN(NULL, "--temp", "--help").out, temp);
    struct outcome o = GPURUN(NULL, "help", "-p"); /* of one name, and two meanings */
    cr_expect(strstr(o.out, "--prompt TEXT") && strstr(o.out, "--n-prompt N,N,..."), "%s", o.out);
    cr_expect(strstr(GPURUN(NULL, "help", "-ngl").out, "0 or more, auto, all"));
    cr_expect(strstr(GPURUN(NULL, "help", "-ctk").out, "f32|f16|bf16|q8_0|q4_0"));
    cr_expect(strstr(GPURUN(NULL, "help", "--help").out, "commands   all"));
    cr_expect(strstr(GPURUN(NULL, "help", "--display-prompt").out, "on|off|auto"));
    cr_expect(strstr(GPURUN(NULL, "help", "--mmproj").out, "refused"));
    cr_expect(strstr(GPURUN(NULL, "help", "-fa").out, "accepted without effect"));
    expect_exit(GPURUN(NULL, "help", "tmep"), 2, "did you mean --temp");
    expect_exit(GPURUN(NULL, "help", "--tmep"), 2, "did you mean --temp");
    expect_exit(GPURUN(NULL, "help", "--nothing-like-it"), 2, "no help on '--nothing-like-it';");
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(f->names, " "), f->names);
        struct outcome about = GPURUN(NULL, "help", name);
        cr_expect_eq(about.exit_code, 0, "%s: %s", name, about.err);
        for (char *line = strtok(about.out, "\n"); line; line = strtok(NULL, "\n"))
            cr_expect_leq(strlen(line), 100, "%s", line);
    }
}

/* Every type that can be asked for is there, with its bits; and is one. */
Test(cli, help_on_quantize)
{
    struct outcome o = GPURUN(NULL, "help", "quantize");
    char out[256], about[64];
    snprintf(out, sizeof out, "%s", tiny_path("out.gguf"));
    cr_expect(strstr(o.out, "Q4_K_M ") && strstr(o.out, "mostly q4_K, 4.5 bits\n"));
    cr_expect(strstr(o.out, "mostly iq2_xs, 2.312 bits, needs importances\n"));
    cr_expect(strstr(o.out, "the same as Q4_K_M") && strstr(o.out, " nvfp4"));
    int n = 0;
    for (const char *name; (name = gr_supported(GR_SUPPORTED_RECIPE, n, about, sizeof about));
         n++) {
        cr_expect(strstr(o.out, name) && strstr(o.out, about), "%s: %s", name, about);
        expect_exit(GPURUN(NULL, "quantize", GR_SOURCE_DIR "/tools/default-model.gguf", out, name,
                           "--dry-run"),
                    0, "");
    }
    cr_expect_geq(n, 38, "%d", n);
    cr_expect(strstr(GPURUN(NULL, "list", "recipes").out, "Q4_K_M"));
}

Test(cli, help_all_names_every_flag)
{
    struct outcome o = GPURUN(NULL, "help", "all"), absent = GPURUN(NULL, "help", "absent");
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        const char *at = f->names, *name;
        char word[64];
        size_t n;
        bool off = false;
        while (gr_flag_next_name(&at, &name, &n, &off)) {
            snprintf(word, sizeof word, "%.*s", (int)n, name);
            cr_expect(strstr(f->kind == GR_FLAG_ABSENT ? absent.out : o.out, word), "%s", word);
        }
    }
}

/* The tables of tools/FLAGS.md are those of the program: replace what is between the marks by the
 * output. */
Test(cli, flags_md_has_the_flags)
{
    struct outcome o = GPURUN(NULL, "help", "markdown");
    char readme[65536], *begin, *end;
    FILE *f = fopen(GR_SOURCE_DIR "/tools/FLAGS.md", "rb");
    cr_assert(f);
    readme[fread(readme, 1, sizeof readme - 1, f)] = 0;
    fclose(f);
    begin = strstr(readme, "<!-- flags: begin (gpurun help markdown) -->\n");
    cr_assert(begin);
    begin = strchr(begin, '\n') + 1;
    end = strstr(begin, "<!-- flags: end -->");
    cr_assert(end);
    *end = 0;
    cr_expect(!strcmp(begin, o.out),
              "tools/FLAGS.md: put the output of gpurun help markdown there");
}

#define WRITE "run", TINY, "-p", "abc", "-n", "8", "--temp", "0", "--ignore-eos"

Test(cli, adapters)
{
    char both[300], scaled[300], off[300], path[128], model[128], cache[128];
    snprintf(path, sizeof path, "%s", tiny_adapter());
    snprintf(model, sizeof model, "%s", tiny_model(false));
    snprintf(cache, sizeof cache, "%s", tiny_path("adapted.kv"));
    snprintf(both, sizeof both, "%s,%s", path, path);
    snprintf(scaled, sizeof scaled, "%s:0.5,%s:-2", path, path);
    snprintf(off, sizeof off, "%s:0", path);
    struct outcome plain = GPURUN(NULL, WRITE), with = GPURUN(NULL, WRITE, "--lora", path);
    expect_exit(with, 0, "scale 1");
    cr_expect_eq(strspn(with.out, "yz\n"), with.n_out, "%s", with.out);
    cr_expect_neq(strspn(plain.out, "yz\n"), plain.n_out, "%s", plain.out);
    struct outcome none = GPURUN(NULL, WRITE, "--lora-scaled", off);
    cr_expect(!strcmp(none.out, plain.out), "%s, not %s", none.out, plain.out);
    expect_exit(GPURUN(NULL, WRITE, "--lora", both, "--lora-scaled", scaled), 0, "scale -2");
    expect_exit(GPURUN(NULL, "fit", model, "--lora", path), 0, "adapter");
    expect_exit(GPURUN(NULL, WRITE, "--lora", path, "--prompt-cache", cache), 0, "adapter");
    expect_exit(GPURUN(NULL, WRITE, "--prompt-cache", cache), 2, "adapter: ");
    expect_exit(GPURUN(NULL, WRITE, "--lora", model), 3, "name the model itself with -m");
    expect_exit(GPURUN(NULL, WRITE, "--lora", "nothing.gguf"), 3, "nothing.gguf");
    expect_exit(GPURUN(NULL, WRITE, "--lora", ","), 2, "--lora: files expected");
    expect_exit(GPURUN(NULL, WRITE, "--lora-scaled", path), 2, "FILE:SCALE");
    expect_exit(GPURUN(NULL, WRITE, "--lora-scaled", "a:much"), 2, "FILE:SCALE");
}

/* Places of threads change no text; an impossible place is reported, and the run continues. */
Test(cli, threads_are_placed)
{
    char plain[256];
    snprintf(plain, sizeof plain, "%s", GPURUN(NULL, WRITE).out);
    static const char *const flag[][4] = {{"-C", "0x1", "-Cb", "3"},
                                          {"-Cr", "0-", "--cpu-strict", "1"},
                                          {"-Cr", "-3", "-Crb", "0-1"},
                                          {"--numa", "distribute", "--poll", "0"},
                                          {"--numa", "isolate", "-C", "ff"},
                                          {"--prio", "-1", "--prio-batch", "0"},
                                          {"--prio", "3", "--numa", "numactl"},
                                          {"--poll-batch", "1", "--cpu-strict-batch", "1"}};
    for (size_t i = 0; i < sizeof flag / sizeof *flag; i++) {
        struct outcome o =
            GPURUN(NULL, WRITE, "-t", "2", flag[i][0], flag[i][1], flag[i][2], flag[i][3]);
        expect_exit(o, 0, "");
        cr_expect(!strcmp(o.out, plain), "%s %s: %s", flag[i][0], flag[i][1], o.out);
    }
    expect_exit(GPURUN(NULL, WRITE, "-Cr", "1023-1023"), 0, "this process may use");
    expect_exit(GPURUN(NULL, WRITE, "-C", "zz"), 2, "-C is 'zz': a hexadecimal number");
    expect_exit(GPURUN(NULL, WRITE, "-Cr", "3"), 0, "");
    expect_exit(GPURUN(NULL, WRITE, "-Cr", "3-1"), 2, "processors \"3-1\"");
    expect_exit(GPURUN(NULL, WRITE, "--prio", "4"), 2, "--prio");
    expect_exit(GPURUN(NULL, WRITE, "--numa", "spread"), 2, "distribute");
}

/* A level that there is on every processor, and those that may be lacking here. */
Test(cli, cpu_levels)
{
    static const char *const level[] = {"auto", "ref", "avx2", "avx512", "amx"};
    for (size_t i = 0; i < sizeof level / sizeof *level; i++) {
        struct outcome o = GPURUN(NULL, WRITE, "-t", "1", "--cpu-level", level[i]);
        char run[32];
        snprintf(run, sizeof run, "(%s), context", level[i]);
        cr_expect(o.exit_code == 0 || (i > 1 && o.exit_code == 2), "%s: %s", level[i], o.err);
        const char *expected = o.exit_code ? "the best here is" : i ? run : "context";
        cr_expect_not_null(strstr(o.err, expected), "%s: %s", level[i], o.err);
    }
    expect_exit(GPURUN(NULL, WRITE, "--cpu-level", "sse"), 2, "avx512");
}

/* ---- refusals ---- */

Test(cli, usage_errors)
{
    expect_exit(GPURUN(NULL, "--tmep", "1"), 2, "unknown flag '--tmep': did you mean --temp?");
    expect_exit(GPURUN(NULL, "rnu"), 2, "did you mean gpurun run?");
    expect_exit(GPURUN(NULL, "Hello there"), 2, "gpurun -p");
    expect_exit(GPURUN(NULL, "serve", "--reuse-port"), 2, "not in this version");
    expect_exit(GPURUN(NULL, "--temp", "warm"), 2,
                "--temp is 'warm': a number from -1000 to 1000 is expected");
    expect_exit(GPURUN(NULL, "-n"), 2, "-n needs a value");
    expect_exit(GPURUN(NULL, "-hf", "a"), 2, "USER/REPO or USER/REPO:QUANT is expected");
    expect_exit(GPURUN(NULL, "-dr", "a/b"), 2, "-hf USER/REPO:QUANT downloads a model");
    expect_exit(GPURUN(NULL, "--direct-io"), 2, "not in this version");
    expect_exit(GPURUN(NULL, "tokenize", "--temp", "1"), 2, "gpurun tokenize has no flag --temp");
    expect_exit(GPURUN(NULL, "-m", "a", "-p", "b", "c"), 2, "the text is given by -p already");
    expect_exit(GPURUN(NULL, "-m", "a.gguf", "b.gguf"), 2, "two model files");
    expect_exit(GPURUN(NULL, "./Once upon", "b"), 2, "'./Once upon' was taken as the model");
    expect_exit(GPURUN(NULL, "Once.", "b.gguf"), 2, "the model comes first");
    expect_exit(GPURUN(NULL, "a.gguf", "Once", "upon"), 2, "one with blanks needs quotes");
    expect_exit(GPURUN(NULL, TINY, "-p", "a", "-f", "b"), 2, "leave one out");
    expect_exit(GPURUN(NULL, TINY, "-p", "a", "-gan", "3", "-gaw", "2048"), 2, "Self-Extend");
    expect_exit(GPURUN(NULL, TINY, "-p", "a", "-gan", "2", "--context-shift"), 2, "leave one out");
    expect_exit(GPURUN(NULL, TINY, "-p", "a", "-gan", "auto", "--context-shift"), 2,
                "--grp-attn-mode window");
    expect_exit(
        GPURUN(NULL, TINY, "-p", "a", "-gan", "3", "-gaw", "2048", "--grp-attn-mode", "window"), 2,
        "Self-Extend: -gaw: a multiple of -gan 3 expected, 2048 found");
    expect_exit(GPURUN(NULL, TINY, "-p", "a", "-gan", "3", "-gaw", "2048", "--dry-run"), 2,
                "Self-Extend: -gaw: a multiple of -gan 3 expected, 2048 found");
    expect_exit(GPURUN(NULL, TINY, "-p", "a", "-gan", "auto", "-c", "100000"), 2,
                "no group factor makes a context of 100096 tokens out of the 512");
    expect_exit(GPURUN(NULL, TINY, "-p", "a", "-gan", "0"), 2, "or auto");
    expect_exit(GPURUN(NULL, TINY, "-p", "a", "-l", "999999+1"), 2, "token 999999");
    expect_exit(GPURUN(NULL, "inspect"), 2, "usage");
    expect_exit(GPURUN(NULL, "quantize", "a", "b"), 2, "usage");
}

Test(cli, every_usage_error_is_one_line)
{
    static const char *const words[] = {"--tmep", "rnu",  "serve", "-hf",
                                        "--temp", "-c=5", "a",     "--top-k=x"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        struct outcome o = GPURUN(NULL, words[i], "-n", "-7");
        cr_expect_eq(o.exit_code, 2, "%s", words[i]);
        cr_expect_eq(o.err_lines, 1, "%s", o.err);
        cr_expect(!strncmp(o.err, "gpurun: error: ", 15), "%s", o.err);
        cr_expect_eq(o.n_out, 0);
    }
}

Test(cli, model_errors)
{
    const char *path = tiny_path("bad.gguf");
    FILE *f = fopen(path, "w");
    fputs("<html>not a model</html>", f);
    fclose(f);
    expect_exit(GPURUN(NULL, "-m", "/nowhere/x.gguf", "-p", "a"), 3, "/nowhere/x.gguf");
    expect_exit(GPURUN(NULL, path, "-p", "a"), 3, "gpurun: error: ");
    expect_exit(GPURUN(NULL, "inspect", path), 3, "gpurun: error: ");
    expect_exit(GPURUN(NULL, "tokenize", path, "-p", "a"), 3, "gpurun: error: ");
    expect_exit(GPURUN(NULL, TINY, "-f", "/nowhere/prompt"), 6, "/nowhere/prompt");
    expect_exit(GPURUN(NULL, TINY, "-p", "a", "--log-file", "/nowhere/log"), 6, "/nowhere/log");
}

/* Each of its tokens would see none of those before. */
Test(cli, a_model_that_keeps_nothing)
{
    static const char says[] = "a llada model looks at a whole text at once and keeps nothing";
    const char *m = tiny_diffusion_model();
    expect_exit(GPURUN(NULL, "-m", m, "-p", "a", "-n", "3"), 3, says);
    expect_exit(GPURUN(NULL, "-m", m, "-p", "a", "-n", "3", "--dry-run"), 3, says);
    cr_expect_eq(GPURUN(NULL, "-m", m, "-p", "a", "-n", "3").n_out, 0);
}

Test(cli, no_gpu)
{
    struct outcome plain = GPURUN(NULL, TINY, "-p", "a", "-n", "4", "--temp", "0");
    struct outcome o = GPURUN(NULL, TINY, "-p", "a", "-n", "4", "--temp", "0", "-ngl", "99");
    expect_exit(o, 0, "gpurun: warning: no usable GPU");
    cr_expect_eq(o.err_lines, plain.err_lines + 1);
    cr_expect_str_eq(o.out, plain.out);
    expect_exit(GPURUN(NULL, TINY, "-p", "a", "-n", "1", "--require-gpu"), 4, "--require-gpu");
    expect_exit(GPURUN(NULL, TINY, "-p", "a", "-n", "1", "-dev", "cuda"), 4, "device 'cuda'");
    cr_expect_eq(GPURUN(NULL, TINY, "-p", "a", "-n", "1", "-dev", "none").exit_code, 0);
}

/* ---- text ---- */

Test(cli, stdout_has_the_text_alone)
{
    struct outcome o = GPURUN(NULL, TINY, "-p", "once", "-n", "32", "--temp", "0", "--ignore-eos");
    expect_exit(o, 0, "prompt ");
    cr_expect(o.n_out > 0 && !strstr(o.out, "once") && !strstr(o.out, "tok"));
    cr_expect_leq(o.err_lines, 7, "%s", o.err);
    json_t *text = json_stringn(o.out, o.n_out);
    cr_expect(text, "the text is UTF-8");
    json_decref(text);
    struct outcome again =
        GPURUN(NULL, TINY, "-p", "once", "-n", "32", "--temp", "0", "--ignore-eos", "-q");
    cr_expect_str_eq(again.out, o.out);
    cr_expect_str_eq(again.err, "");
    o = GPURUN(NULL, TINY, "-p", "once", "-n", "32", "--temp", "0", "--ignore-eos",
               "--display-prompt");
    cr_expect(!strncmp(o.out, "once", 4) && !strcmp(o.out + 4, again.out));
}

/* Without a model and a prompt the built-in model goes on from one of ours, which is then shown. */
Test(cli, built_in_model)
{
    struct outcome o = GPURUN(NULL, "-n", "24", "--temp", "0");
    expect_exit(o, 0, "so the built-in one");
    cr_expect(!strncmp(o.out, "Once upon a time", 16) && o.n_out > 40, "%s", o.out);
    cr_expect_leq(o.err_lines, 7, "%s", o.err);
    struct outcome given = GPURUN(NULL, "-p", "Once upon a time", "-n", "24", "--temp", "0", "-q");
    cr_expect_str_eq(given.out, o.out + 16);
    expect_exit(GPURUN(NULL, "tokenize", "-p", "Once", "--ids"), 0, "so the built-in one");
}

Test(cli, prompts_from_everywhere_are_the_same)
{
    FILE *f = fopen(tiny_path("prompt"), "w");
    fputs("ab\ncd\n", f);
    fclose(f);
#define HOW TINY, "-n", "16", "--temp", "0"
    struct outcome a = GPURUN(NULL, HOW, "-p", "ab\\ncd"),
                   b = GPURUN(NULL, HOW, "-f", tiny_path("prompt"));
    struct outcome c = GPURUN("ab\ncd\n", HOW), d = GPURUN("ab\ncd\n", HOW, "-f", "-");
    struct outcome e = GPURUN(NULL, HOW, "-p", "ab\ncd", "--no-escape"),
                   other = GPURUN(NULL, HOW, "-p", "ab\\ncd", "--no-escape");
    struct outcome cut = GPURUN(NULL, HOW, "-p", "ab\\x0acd", "-b", "2", "-ub", "1", "--no-warmup");
    cr_expect(a.n_out > 0);
    cr_expect_str_eq(a.out, b.out);
    cr_expect_str_eq(a.out, c.out);
    cr_expect_str_eq(a.out, d.out);
    cr_expect_str_eq(a.out, e.out);
    cr_expect_str_eq(a.out, cut.out);
    cr_expect_str_neq(a.out, other.out);
    cr_expect_eq(GPURUN("", HOW).exit_code, 0, "an empty prompt begins with BOS");
}

Test(cli, closed_standard_input)
{
    char command[400];
    snprintf(command, sizeof command, "%s/gpurun %s -n 1 -q <&- >/dev/null 2>&1", GR_BINARY_DIR,
             tiny_model(false));
    cr_expect_eq(system(command), 0);
}

Test(cli, seeds)
{
#define RANDOM TINY, "-p", "a", "-n", "24", "--temp", "2", "--ignore-eos"
    struct outcome a = GPURUN(NULL, RANDOM, "-s", "1"), b = GPURUN(NULL, RANDOM, "-s", "1");
    struct outcome c = GPURUN(NULL, RANDOM, "-s", "2"), d = GPURUN(NULL, RANDOM);
    char *seed = strstr(d.err, "seed ");
    cr_expect_str_eq(a.out, b.out);
    cr_expect_str_neq(a.out, c.out);
    cr_expect(!strstr(a.err, "seed "));
    cr_assert(seed, "a seed that was drawn is told: %s", d.err);
    struct outcome e = GPURUN(NULL, RANDOM, "-s", strtok(seed + 5, "\n"));
    cr_expect_str_eq(e.out, d.out);
}

Test(cli, ends_of_a_text)
{
    struct outcome o = GPURUN(NULL, TINY, "-p", "a", "-l", "2+inf");
    expect_exit(o, 0, "gen 1 tok");
    cr_expect_eq(o.n_out, 0, "the token that ends the text is no text");
    cr_expect_str_eq(GPURUN(NULL, TINY, "-p", "a", "-l", "2+inf", "-sp").out, "</s>");
    expect_exit(GPURUN(NULL, TINY, "-p", "a", "-l", "2+100", "--ignore-eos", "-n", "5"), 0,
                "gen 5 tok");
    expect_exit(GPURUN(NULL, TINY, "-p", "a", "-n", "0"), 0, "gen 0 tok");
    o = GPURUN(NULL, TINY, "-p", "a", "-c", "256", "--ignore-eos");
    expect_exit(o, 0, "the context of 256 tokens is full: -c N");
    cr_expect_leq(o.err_lines, 7);
    cr_expect(strstr(o.err, "--context-shift goes on"), "%s", o.err);
    o = GPURUN(NULL, TINY, "-p", "a", "-c", "256", "--ignore-eos", "-n", "-2", "--context-shift");
    expect_exit(o, 0, "the context of 256 tokens is full: -c N");
    cr_expect(!strstr(o.err, "--context-shift goes on"), "it is on: %s", o.err);
    expect_exit(GPURUN(NULL, TINY, "-p", "a", "-c", "256", "--ignore-eos", "-n", "700",
                       "--context-shift", "--keep", "-1"),
                0, "gen 700 tok");
}

Test(cli, weights_that_are_no_numbers)
{
    expect_exit(GPURUN(NULL, tiny_model(true), "-p", "a", "-n", "4"), 1, "non-finite logits");
    expect_exit(GPURUN(NULL, tiny_model(true), "-p", "a", "-n", "4", "--temp", "0"), 1,
                "non-finite logits");
}

Test(cli, json)
{
    struct outcome text = GPURUN(NULL, TINY, "-p", "a", "-n", "9", "--temp", "0", "--ignore-eos");
    struct outcome o =
        GPURUN(NULL, TINY, "-p", "a", "-n", "9", "--temp", "0", "--ignore-eos", "--json", "-q");
    json_t *j = json_loads(o.out, JSON_ALLOW_NUL, NULL);
    cr_assert(j, "%s", o.out);
    cr_expect_str_eq(json_string_value(json_object_get(j, "text")), text.out);
    cr_expect_str_eq(json_string_value(json_object_get(j, "stop")), "length");
    cr_expect_eq(json_integer_value(json_object_get(j, "generated_tokens")), 9);
    cr_expect_gt(json_number_value(json_object_get(json_object_get(j, "timings"), "gen_tok_s")), 0);
    json_decref(j);
}

Test(cli, other_words_on_stderr)
{
    struct outcome o = GPURUN(NULL, TINY, "-p", "ab", "-n", "3", "--verbose-prompt", "--log-file",
                              tiny_path("log"), "-q");
    cr_expect_str_eq(o.err, "");
    char line[256], all[8192] = "";
    FILE *f = fopen(tiny_path("log"), "r");
    cr_assert(f);
    while (fgets(line, sizeof line, f) && strlen(all) + strlen(line) < sizeof all)
        strcat(all, line);
    fclose(f);
    cr_expect(strstr(all, "-> 'a'") && strstr(all, "gen 3 tok"), "%s", all);
    o = GPURUN(NULL, TINY, "-p", "ab", "-n", "3", "-dkvc", "-q", "--ignore-eos");
    cr_expect_gt(o.err_lines, 3, "%s", o.err);
    o = GPURUN(NULL, TINY, "-p", "ab", "-n", "3", "--no-perf", "-dt", "0.1");
    cr_expect(!strstr(o.err, "gen 3 tok") && strstr(o.err, "-dt --defrag-thold has no effect"),
              "%s", o.err);
}

/* ---- other commands ---- */

Test(cli, tokenize)
{
    const char *model = tiny_model(false);
    cr_expect_str_eq(GPURUN(NULL, "tokenize", model, "-p", "ab\\n", "--ids").out,
                     "[1, 259, 260, 13]\n");
    cr_expect_str_eq(
        GPURUN(NULL, "tokenize", model, "-p", "ab\\n", "--ids", "--no-bos", "--no-escape").out,
        "[259, 260, 95, 272]\n");
    cr_expect_str_eq(GPURUN("b\n", "tokenize", "-m", model, "--no-bos", "--ids").out,
                     "[260, 13]\n");
    cr_expect_str_eq(GPURUN(NULL, "tokenize", model, "-p", "</s>", "--no-bos", "--ids").out,
                     "[2]\n");
    cr_expect_neq(
        GPURUN(NULL, "tokenize", model, "-p", "</s>", "--no-bos", "--ids", "--no-parse-special")
            .out[1],
        '2');
    cr_expect_str_eq(GPURUN(NULL, "tokenize", model, "-p", "", "--no-bos", "--ids").out, "[]\n");
    cr_expect_str_eq(GPURUN(NULL, "tokenize", model, "-p", "b", "--show-count").out,
                     "     1 -> '<s>'\n   260 -> 'b'\nTotal number of tokens: 2\n");
    cr_expect_str_eq(GPURUN(NULL, "tokenize", model, "-p", "b", "--json").out,
                     "{\"count\": 2, \"ids\": [1, 260]}\n");
    cr_expect_str_eq(GPURUN(NULL, "tokenize", model, "-p", "b").err, "");
}

/* Number of names in a list of `gpurun list --json`, and whether `name` is one of them. */
static size_t listed(const json_t *all, const char *list, const char *name, bool *is_there)
{
    size_t i;
    json_t *item;
    *is_there = false;
    json_array_foreach(json_object_get(all, list), i, item) *is_there |=
        strcmp(json_string_value(json_object_get(item, "name")), name) == 0;
    return json_array_size(json_object_get(all, list));
}

Test(cli, list_says_what_files_may_have)
{
    static const char list[][16] = {"architectures", "types", "tokenizers", "pre-tokenizers"};
    static const char name[][16] = {"qwen2moe", "q4_K", "bert", "llama-bpe"};
    struct outcome o = GPURUN(NULL, "list", "--json");
    json_t *all = json_loads(o.out, 0, NULL);
    cr_assert(all, "%s", o.out);
    for (int i = 0; i < 4; i++) {
        bool is_there;
        size_t n = listed(all, list[i], name[i], &is_there), lines = 0;
        cr_expect(n > 3 && is_there, "%zu %s, %s among them: %d", n, list[i], name[i], is_there);
        o = GPURUN(NULL, "list", list[i]);
        for (const char *p = o.out; (p = strchr(p, '\n')); p++)
            lines++;
        cr_expect_eq(lines, n, "%s: %zu lines, %zu names", list[i], lines, n);
        cr_expect(strstr(o.out, name[i]));
    }
    json_decref(all);
    expect_exit(GPURUN(NULL, "list", "models"), 2, "'models' found");
}

Test(cli, an_unknown_architecture_is_named_with_those_most_like_it)
{
    struct gr_gguf_writer *w;
    char path[512];
    snprintf(path, sizeof path, "%s", tiny_path("unknown.gguf"));
    cr_assert_eq(gr_gguf_writer_new(&w), 0);
    cr_assert_eq(gr_gguf_set_str(w, "general.architecture", "qwen2mo"), 0);
    cr_assert_eq(gr_gguf_begin(w, path), 0);
    cr_assert_eq(gr_gguf_commit(w), 0);
    gr_gguf_writer_free(&w);
    struct outcome o = GPURUN(NULL, path, "-p", "a");
    expect_exit(o, 3, "architecture 'qwen2mo' is not known");
    cr_expect(strstr(o.err, "nearest known ones are qwen2moe, qwen2 and"), "%s", o.err);
}

Test(cli, inspect_quantize)
{
    struct outcome o = GPURUN(NULL, "inspect", tiny_model(false));
    cr_expect(o.exit_code == 0 && strstr(o.out, "blk.1.ffn_down.weight"), "%s", o.out);
    o = GPURUN(NULL, "inspect", tiny_path("tiny.gguf"), "--json");
    json_t *j = json_loads(o.out, 0, NULL);
    cr_expect(j, "%s", o.out);
    json_decref(j);
    cr_expect_eq(
        GPURUN(NULL, "quantize", tiny_path("tiny.gguf"), tiny_path("q.gguf"), "q8_0").exit_code, 0);
    cr_expect_eq(GPURUN(NULL, tiny_path("q.gguf"), "-p", "a", "-n", "4").exit_code, 0);
    expect_exit(GPURUN(NULL, "quantize", tiny_path("tiny.gguf"), tiny_path("r.gguf"), "q9_9"), 2,
                "q9_9");
}

/* A rank times its own operations only: that is said, and no table is shown. */
Test(cli, op_times_of_several_ranks)
{
    struct outcome o = GPURUN(NULL, TINY, "-p", "a", "-n", "2", "--ranks", "2", "--op-times");
    cr_expect(o.exit_code != 0 && strstr(o.err, "--ranks 1, without mpirun"), "%s", o.err);
    cr_expect(!strstr(o.err, "calls") && !*o.out, "%s%s", o.err, o.out);
}

/* 2 layers of 2 x 8 numbers: 64 bytes of K in F16 for each cell, as many of V in F32. */
Test(cli, dry_run)
{
    struct outcome o = GPURUN(NULL, TINY, "-p", "a", "-c", "8000", "-ctv", "f32", "--dry-run");
    expect_exit(o, 0, "");
    cr_expect_str_eq(o.out, "1 sequence, one pool of 8192 cells\n"
                            "K              0.50 MiB  f16\n"
                            "V              1.00 MiB  f32\n"
                            "cache          1.50 MiB\n");
    o = GPURUN(NULL, TINY, "-p", "a", "-c", "256", "--dry-run", "--json");
    cr_expect_str_eq(o.out, "{\"k\":16384,\"v\":16384,\"state\":0,\"total\":32768,\"n_cell\":256,"
                            "\"n_cell_swa\":0,\"n_kv_pool\":1}\n");
    o = GPURUN(NULL, TINY, "-p", "a", "-c", "1024", "--dry-run", "--json", "-gan", "auto",
               "--grp-attn-mode", "window");
    cr_expect(strstr(o.out, "{\"k\":131072,\"v\":65536,"), "K is there twice: %s", o.out);
    expect_exit(GPURUN(NULL, TINY, "-p", "a", "-c", "99999999", "--dry-run"), 2, "-c");
    o = GPURUN(NULL, TINY, "-p", "a", "-c", "2048", "-gan", "8", "-gaw", "128", "--grp-attn-mode",
               "window", "--dry-run");
    cr_expect(strstr(o.out, "K              0.25 MiB") && strstr(o.out, "V              0.12 MiB"),
              "K by two positions: %s", o.out);
    const char *m = tiny_textless_model();
    expect_exit(GPURUN(NULL, "-m", m, "-c", "256", "--dry-run"), 0, "");
    expect_exit(GPURUN(NULL, "-m", m, "--dry-run"), 3, "no tokenizer");
}

/* -v has the sizes of the cache. */
Test(cli, sizes_of_the_cache)
{
    struct outcome o = GPURUN(NULL, TINY, "-p", "a", "-n", "1", "-c", "8192", "-v");
    expect_exit(o, 0,
                "size =    1.00 MiB (  8192 cells,   2 layers,  1/1 seqs), K (f16):    0.50 "
                "MiB, V (f16):    0.50 MiB\n");
    expect_exit(o, 0, "KV self size  =    1.00 MiB, K (f16):    0.50 MiB, V (f16):    0.50 MiB\n");
    expect_exit(o, 0,
                "       CPU KV buffer size =     1.00 MiB (  8192 cells,   2 layers), K (f16):    "
                "0.50 MiB, V (f16):    0.50 MiB\n");
}

/* ---- pipes and signals ---- */

#define ENDLESS                                                                                    \
    {                                                                                              \
        "gpurun", tiny_model(false), "-t", "1", "-p", "a", "--ignore-eos", "--context-shift", NULL \
    }

Test(cli, reader_goes_away)
{
    const char *const argv[] = ENDLESS;
    int out;
    char buf[64];
    int pid = tiny_start_pipe(argv, &out);
    cr_assert_gt(read(out, buf, sizeof buf), 0);
    close(out);
    struct outcome o = tiny_wait(pid);
    cr_expect_eq(o.exit_code, 0, "signal %d", o.signal);
    cr_expect(!strstr(o.err, "error"), "%s", o.err);
}

Test(cli, full_disk)
{
    const char *const run[] = ENDLESS, *const help[] = {"gpurun", "help", "all", NULL};
    int full = open("/dev/full", O_WRONLY);
    cr_assert_geq(full, 0);
    expect_exit(tiny_wait(tiny_start(run, full, false)), 6, "cannot write to standard output");
    expect_exit(tiny_wait(tiny_start(help, full, false)), 6, "cannot write to standard output");
    close(full);
}

Test(cli, one_interrupt_stops_the_text)
{
    const char *const argv[] = ENDLESS;
    int out;
    char buf[4096];
    int pid = tiny_start_pipe(argv, &out);
    cr_assert_gt(read(out, buf, sizeof buf), 0);
    kill(pid, SIGINT);
    while (read(out, buf, sizeof buf) > 0)
        ;
    expect_exit(tiny_wait(pid), 130, "prompt ");
    close(out);
}

/* Weights are used where the file is mapped. */
Test(cli, model_file_cut_off_while_in_use)
{
    const char *const argv[] = ENDLESS;
    int out;
    char buf[4096];
    int pid = tiny_start_pipe(argv, &out);
    cr_assert_gt(read(out, buf, sizeof buf), 0);
    cr_assert_eq(truncate(argv[1], 4096), 0);
    while (read(out, buf, sizeof buf) > 0)
        ;
    expect_exit(tiny_wait(pid), 3, "gpurun: error: the model file was cut off");
    close(out);
}

Test(cli, other_bus_errors_are_not_the_files)
{
    const char *const argv[] = ENDLESS;
    int out;
    char buf[4096];
    int pid = tiny_start_pipe(argv, &out);
    cr_assert_gt(read(out, buf, sizeof buf), 0);
    kill(pid, SIGBUS);
    while (read(out, buf, sizeof buf) > 0)
        ;
    struct outcome o = tiny_wait(pid);
    cr_expect_eq(o.signal, SIGBUS, "%d: %s", o.exit_code, o.err);
    cr_expect_null(strstr(o.err, "cut off"));
    close(out);
}

/* Nobody reads, so the program stands in a write; the second interrupt ends it all the same. */
Test(cli, two_interrupts_end_the_program)
{
    const char *const argv[] = ENDLESS;
    int out;
    char buf[1];
    int pid = tiny_start_pipe(argv, &out);
    cr_assert_gt(read(out, buf, 1), 0);
    for (int i = 0; i < 20 && !kill(pid, SIGINT); i++)
        usleep(10000);
    cr_expect_eq(tiny_wait(pid).exit_code, 130);
    close(out);
}

/* Text on a terminal after `words`; with stderr when `both`. */
static char *on_terminal(const char *const *words, bool both)
{
    static char screen[8192];
    size_t n = 0;
    ssize_t got;
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    cr_assert(master >= 0 && !grantpt(master) && !unlockpt(master));
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    cr_assert_geq(slave, 0);
    int pid = tiny_start(words, slave, both);
    close(slave);
    while (n + 1 < sizeof screen && (got = read(master, screen + n, sizeof screen - 1 - n)) > 0)
        n += (size_t)got;
    screen[n] = 0;
    cr_expect_eq(tiny_wait(pid).exit_code, 0);
    close(master);
    return screen;
}

/* On a terminal the prompt stands before the text, and what is said begins a line. */
Test(cli, terminal)
{
    const char *const words[] = {
        "gpurun", tiny_model(false), "-t",      "1",   "-p", "once", "-n", "3",
        "-l",     "259+99",          "--color", "off", NULL};
    char *screen = on_terminal(words, true);
    cr_expect(strstr(screen, "\nonceaaa\r\nprompt "), "%s", screen);
    screen = on_terminal(words, false);
    cr_expect_str_eq(screen, "onceaaa\r\n");
    setenv("TERM", "xterm", 1);
    const char *const colored[] = {"gpurun", tiny_model(false), "-p", "x", "-n", "0", NULL};
    cr_expect_str_eq(on_terminal(colored, false), "\033[2mx\033[0m\r\n");
    setenv("NO_COLOR", "1", 1);
    cr_expect_str_eq(on_terminal(colored, false), "x\r\n");
}

/* ---- anything ---- */

/* Random command lines end with an exit code of the list and never by a signal. */
Test(cli, random_arguments)
{
    static const char *const words[] = {
        "run", "tokenize", "inspect", "bench", "help",   "completion", "version", "",
        "1",   "0",        "-1",      "16",    "f16",    "on",         "yarn",    "x",
        "nan", "1e300",    "5+1",     "8,8",   "\x80%s", "--",         "-",       "bash"};
    struct gr_rng rng = gr_rng_new(1);
    int n_flags = 0;
    while (gr_flags[n_flags].names)
        n_flags++;
    for (int turn = 0; turn < 250; turn++) {
        char flag[8][64];
        const char *argv[16] = {"gpurun"};
        int n = 1, n_words = 1 + (int)gr_rng_below(&rng, 8);
        for (int i = 0; i < n_words; i++) {
            const struct gr_flag *f = &gr_flags[gr_rng_below(&rng, (uint32_t)n_flags)];
            const char *at = f->names, *name;
            size_t m;
            bool off = false;
            argv[n++] = words[gr_rng_below(&rng, sizeof words / sizeof *words)];
            if (f->kind == GR_FLAG_ABSENT || f->kind == STR || gr_rng_below(&rng, 3) == 0)
                continue;
            for (uint32_t k = gr_rng_below(&rng, 3) + 1;
                 k && gr_flag_next_name(&at, &name, &m, &off); k--)
                snprintf(flag[i], sizeof flag[i], "%.*s", (int)m, name);
            argv[n - 1] = flag[i];
        }
        if (turn % 2) {
            argv[n++] = "-m";
            argv[n++] = tiny_model(false);
        }
        argv[n] = NULL;
        struct outcome o = tiny_run(turn % 3 ? NULL : "text", argv);
        static const int codes[] = {0, 1, 2, 3, 4, 5, 6};
        bool listed = false;
        for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
            listed |= o.exit_code == codes[i];
        if (!listed || (o.exit_code > 0 && !strstr(o.err, "gpurun: error: "))) {
            for (int i = 1; i < n; i++)
                fprintf(stderr, "'%s' ", argv[i]);
            cr_expect(false, "exit %d, signal %d: %s", o.exit_code, o.signal, o.err);
        }
    }
}

/* Bad files of a model, and what goes with one, exit 3; bad files that people write exit 2. */
Test(cli, bad_files)
{
    const char *bad = GR_SOURCE_DIR "/README.md", *out = tiny_path("out.gguf");
    expect_exit(GPURUN(NULL, bad, "-p", "a"), 3, "not a GGUF file");
    expect_exit(GPURUN(NULL, "-p", "a", "--lora", bad), 3, "not a GGUF file");
    expect_exit(GPURUN(NULL, "-p", "a", "--prompt-cache", bad), 3, "not a saved state");
    expect_exit(GPURUN(NULL, "quantize", tiny_model(false), out, "Q8_0", "--imatrix", bad), 3,
                "importance matrix");
    expect_exit(GPURUN(NULL, "perplexity", "--kl-divergence", "--kl-divergence-base", bad), 3,
                "no file of log-probabilities");
    expect_exit(GPURUN(NULL, "replay", bad, "--hash"), 2, "line 1, column 1");
    expect_exit(GPURUN(NULL, "bench", "--compare", bad), 2, "JSON as gpurun bench");
}
