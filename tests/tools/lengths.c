/* Lengths: what is said of contexts that the model is not good for, of prompts that do not fit and
 * of contexts that are full. What is offered is tried, as it stands in the message. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/gguf.h"
#include "tiny.h"

TestSuite(lengths, .timeout = 120);

#define MOST_WORDS 40

/* Arguments in one line, cut at blanks; "@" is the prompt. */
static struct outcome run(const char *model, const char *prompt, const char *line)
{
    const char *argv[MOST_WORDS] = {"gpurun", "-m", model, "-t", "1", "--temp", "0"};
    static char words[1000];
    int n = 7;
    snprintf(words, sizeof words, "%s", line);
    for (char *w = strtok(words, " "); w && n < MOST_WORDS - 1; w = strtok(NULL, " "))
        argv[n++] = strcmp(w, "@") ? w : prompt;
    return tiny_run(NULL, argv);
}

static const char *text_of(int n)
{
    static char text[20001];
    memset(text, 'a', sizeof text);
    text[n - 1] = 0; /* and BOS */
    return text;
}

/* The flags that stand in what was said from `begin` to `end`. */
static const char *between(const struct outcome *o, const char *begin, const char *end)
{
    static char flags[200];
    char *at = strstr(o->err, begin), *stop = at ? strstr(at + strlen(begin), end) : NULL;
    cr_assert(stop && stop - at < 190, "'%s' .. '%s' expected: %s", begin, end, o->err);
    at += strlen(begin);
    snprintf(flags, sizeof flags, "%.*s", (int)(stop - at), at);
    return flags;
}

static void lacks(const struct outcome *o, const char *words)
{
    cr_expect(!strstr(o->err, words), "no '%s' expected: %s", words, o->err);
}

/* ---- learned positions ---- */

/* As many as there are, and no others, at each of the ways to a longer text. */
Test(lengths, learned_positions_end)
{
    const char *m = tiny_learned_model();
    static const char full[] = "the context of 512 tokens is full: the model has learned no more";
    static const char says[] =
        "warning: -c 1024 exceeds the 512 positions that the model has learned, and it has no "
        "others: the context is 512";
    struct outcome o = run(m, "a", "-p @ -n 9 -c 1024 --ignore-eos"), plain;
    expect_exit(o, 0, says);
    expect_exit(o, 0, "context 512 (");
    plain = run(m, "a", "-p @ -n 9 --ignore-eos");
    expect_exit(plain, 0, "context 512 (");
    lacks(&plain, "warning");
    cr_expect_str_eq(o.out, plain.out);
    o = run(m, text_of(500), "-p @ --ignore-eos");
    expect_exit(o, 0, full);
    expect_exit(o, 0, "gen 13 tok"); /* the last one is not looked at */
    lacks(&o, "--context-shift");
    o = run(m, text_of(509), "-p @ -n 4 -c 1024");
    expect_exit(o, 1, "prompt is too long (509 tokens, max 508)");
    expect_exit(o, 1, "the model has learned 512 positions and has no others");
    lacks(&o, "-gan");
    lacks(&o, "-c 513");
    lacks(&o, "rope");
    lacks(&o, "--context-shift");
    cr_expect_eq(run(m, text_of(508), "-p @ -n 4").exit_code, 0);
    o = run(m, text_of(300), "-p @ -n 4 -c 256");
    expect_exit(o, 1, "\n-c 304 takes it whole\n");
    expect_exit(run(m, text_of(300), "-p @ -n 4 -c 304"), 0, "prompt 300 tok");
    expect_exit(run(m, "a", "-c 1024 --dry-run -p @"), 0, says);
    expect_exit(run(m, "a", "-p @ -n 4 -gan 2 -gaw 64"), 3, "part of what it has stored");
    expect_exit(run(m, "a", "-p @ -n 4 -gan 2 -gaw 64 --grp-attn-mode window"), 3, "rotary");
    expect_exit(run(m, "a", "-p @ -n 4 -gan auto -c 1024"), 0, says);
}

/* gpurun fit is about the context that a run would have. */
Test(lengths, fit_ends_with_learned_positions)
{
    const char *m = tiny_learned_model();
    struct outcome o = GPURUN(NULL, "fit", m, "-c", "1024");
    expect_exit(o, 0, "warning: -c 1024 exceeds the 512 positions that the model has learned");
    cr_expect(strstr(o.out, " -c 512 "), "%s", o.out);
    o = GPURUN(NULL, "fit", m, "-c", "512");
    cr_expect(o.exit_code == 0 && !strstr(o.err, "warning"), "%s", o.err);
}

/* ---- what a context is good for ---- */

static void set_yarn(struct gr_gguf_writer *w)
{
    cr_assert_eq(gr_gguf_set_str(w, "llama.rope.scaling.type", "yarn"), 0);
    cr_assert_eq(gr_gguf_set_f32(w, "llama.rope.scaling.factor", 4), 0);
    cr_assert_eq(gr_gguf_set_u32(w, "llama.rope.scaling.original_context_length", TINY_N_CTX), 0);
}

static void set_none(struct gr_gguf_writer *w)
{
    cr_assert_eq(gr_gguf_set_str(w, "llama.rope.scaling.type", "none"), 0);
}

/* A word that stretches nothing leaves the warning, a factor takes it away. */
Test(lengths, the_warning_goes_by_what_is_in_effect)
{
    static const struct {
        int kind; /* plain, YaRN in the file, no scaling in the file */
        char flags[80], says[120];
    } c[] = {
        {0, "-c 2048", "-c 2048 exceeds the 512 tokens the model was trained for"},
        {0, "-c 2048 --rope-scaling none", "-c 2048 exceeds the 512 tokens the model was"},
        {0, "-c 2048 --rope-scaling yarn", "-c 2048 exceeds the 512 tokens the model was"},
        {0, "-c 2048 --rope-scaling longrope", "-c 2048 exceeds the 512 tokens the model was"},
        {0, "-c 2048 --rope-scaling linear --rope-scale 2",
         "exceeds the 1024 tokens that the positions are good for (2 times the 512 trained)"},
        {0, "-c 2048 --rope-scale 4", ""},
        {0, "-c 2048 --rope-freq-scale 0.25", ""},
        {0, "-c 2048 --rope-scaling yarn --rope-scale 4", ""},
        {0, "-c 2049 --rope-scale 4", "exceeds the 2048 tokens"},
        {0, "-c 0 --rope-scale 0.5", "-c 512 exceeds the 256 tokens"},
        {0, "-c 0", ""},
        {0, "", ""},
        {1, "-c 2048", ""},
        {1, "-c 2304", "exceeds the 2048 tokens that the positions are good for (4 times"},
        {1, "-c 2048 --rope-scaling none", "-c 2048 exceeds the 512 tokens the model was"},
        {2, "-c 1024 --rope-scale 4", "-c 1024 exceeds the 512 tokens the model was"},
        {2, "-c 1024 --rope-scaling linear --rope-scale 4", ""},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        const char *m = c[i].kind == 1   ? tiny_edited_model("yarn.gguf", set_yarn)
                        : c[i].kind == 2 ? tiny_edited_model("none.gguf", set_none)
                                         : tiny_model(false);
        char line[600];
        snprintf(line, sizeof line, "-p @ -n 2 %s", c[i].flags);
        struct outcome o = run(m, "a", line);
        expect_exit(o, 0, c[i].says);
        if (!*c[i].says)
            lacks(&o, "warning");
    }
}

/* Each remedy takes the warning away by itself, whatever else was asked for. */
Test(lengths, what_is_said_to_help_does)
{
    static const char *const flags[] = {"-c 2048", "-c 2048 --rope-scaling none",
                                        "-c 2048 --rope-scale 2", "-c 2048 --grp-attn-mode window",
                                        "-c 2048 -gan 2 -gaw 64"};
    const char *m = tiny_model(false);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        char line[300], all[200];
        snprintf(line, sizeof line, "-p @ -n 2 %s", flags[i]);
        struct outcome o = run(m, "a", line);
        snprintf(all, sizeof all, "%s", between(&o, "; what helps: ", "\n"));
        char *second = strstr(all, " or ");
        cr_assert(second, "%s", all);
        *second = 0, second += 4;
        for (int k = 0; k < 2; k++) {
            snprintf(line, sizeof line, "-p @ -n 2 %s %s", flags[i], k ? second : all);
            o = run(m, "a", line);
            expect_exit(o, 0, "gen ");
            lacks(&o, "warning");
        }
    }
    /* Too far for either, or for one of them. */
    struct outcome o = run(m, "a", "-p @ -n 2 -c 40960");
    expect_exit(o, 0, "exceeds the 512 tokens the model was trained for; what helps: -gan auto\n");
    o = run(m, "a", "-p @ -n 2 -c 100000");
    expect_exit(o, 0, "exceeds the 512 tokens the model was trained for\n");
    o = run(m, "a", "-p @ -n 2 -c 4096 -gaw 2");
    expect_exit(o, 0, "trained for; what helps: --rope-scaling yarn --rope-scale 8\n");
}

/* A context that was not asked for grows as far as it is good. */
Test(lengths, stretched_positions_are_used)
{
    const char *m = tiny_model(false);
    expect_exit(run(m, text_of(1500), "-p @ -n 4"), 1, "max 508");
    struct outcome o = run(m, text_of(1500), "-p @ -n 4 --rope-scale 4");
    expect_exit(o, 0, "context 2048 (");
    lacks(&o, "warning");
    o = run(m, text_of(1500), "-p @ -n 4 --rope-scale 4 -gan auto --ignore-eos");
    expect_exit(o, 0, "context 2048 (");
    lacks(&o, "Self-Extend");
    o = run(m, text_of(3000), "-p @ -n 4 --rope-scale 4 -gan auto --ignore-eos");
    expect_exit(o, 0, "Self-Extend 2 / 512 (classic)");
    lacks(&o, "warning");
}

/* ---- prompts that do not fit ---- */

/* The first offer, pasted behind what was there, takes the whole prompt; with the second one the
 * text goes on too. */
static void paste(const char *m, int n, const char *flags, const char *expected)
{
    char line[300], offer[200], whole[64];
    snprintf(line, sizeof line, "-p @ -n 3 --ignore-eos %s", flags);
    struct outcome o = run(m, text_of(n), line);
    expect_exit(o, 1, "prompt is too long (");
    cr_expect_eq(o.n_out, 0);
    cr_expect(strstr(o.err, expected), "'%s' expected: %s", expected, o.err);
    bool shift = strstr(o.err, "--context-shift");
    if (strstr(o.err, " takes it whole")) {
        snprintf(offer, sizeof offer, "%s", between(&o, ")\n", " takes it whole"));
        snprintf(line, sizeof line, "-p @ -n 3 --ignore-eos %s %s", flags, offer);
        snprintf(whole, sizeof whole, "prompt %d tok", n);
        bool beyond = strstr(o.err, "takes it whole, beyond");
        o = run(m, text_of(n), line);
        expect_exit(o, 0, whole);
        expect_exit(o, 0, "gen 3 tok");
        cr_expect_eq(strstr(o.err, "warning") != NULL, beyond, "%s: %s", offer, o.err);
    }
    snprintf(line, sizeof line, "-p @ -n 3 --ignore-eos %s --context-shift", flags);
    if (shift)
        expect_exit(run(m, text_of(n), line), 0, "gen 3 tok");
    else
        cr_expect_neq(run(m, text_of(n), line).exit_code, 0, "%s is not offered but works", line);
}

Test(lengths, offers_for_a_long_prompt_work, .timeout = 300)
{
    const char *m = tiny_model(false);
    paste(m, 300, "-c 256", "\n-c 304 takes it whole; --context-shift its newest part\n");
    paste(m, 600, "-c 256", "\n-c 604 -gan auto takes it whole; --context-shift its newest");
    paste(m, 600, "", "\n-c 604 -gan auto takes it whole; --context-shift its newest part\n");
    paste(m, 600, "--grp-attn-mode window", "\n-c 604 -gan auto takes it whole; --context-shift");
    paste(m, 1500, "-gan 2 -gaw 64", "\n-c 1504 -gan auto takes it whole\n");
    paste(m, 1500, "-gan 2 -gaw 64 --grp-attn-mode window",
          "\n-c 1504 -gan auto takes it whole; --context-shift its newest part\n");
    paste(m, 900, "-c 256 -gan auto", "\n-c 904 takes it whole\n");
    paste(m, 1500, "--rope-scale 2", "\n-c 1504 -gan auto takes it whole;");
    paste(m, 1500, "-c 256 --rope-scale 4", "\n-c 1504 takes it whole;");
    paste(m, 4000, "-gaw 2", "\n-c 4004 --rope-scaling yarn --rope-scale 8 takes it whole;");
    paste(m, 4000, "-gan 2 -gaw 2", "\n-c 4004 -gan 1 --rope-scaling yarn --rope-scale 8 takes it");
    paste(m, 18000, "-gaw 2", "\n-c 18004 takes it whole, beyond the 512 tokens the model was tr");
    m = tiny_learned_model();
    paste(m, 300, "-c 256", "\n-c 304 takes it whole\n");
    paste(m, 600, "-c 256", "the model has learned 512 positions and has no others");
}

/* The prompt of an encoder is no text that continues. */
Test(lengths, a_long_prompt_of_an_encoder)
{
    const char *m = tiny_encoder_decoder();
    struct outcome o = run(m, text_of(300), "-p @ -n 3 -c 256");
    expect_exit(o, 1, " takes it whole\n");
    lacks(&o, "-gan");
    lacks(&o, "--context-shift");
    char line[600];
    snprintf(line, sizeof line, "-p @ -n 3 -c 256 %s", between(&o, ")\n", " takes it whole"));
    expect_exit(run(m, text_of(300), line), 0, "prompt 30");
    o = run(m, text_of(700), "-p @ -n 3 -c 256");
    expect_exit(o, 1, "takes it whole, beyond the 512 tokens the model was trained for\n");
}

/* ---- full contexts ---- */

Test(lengths, a_full_context)
{
    static const struct {
        char flags[80];
        bool shift;
    } c[] = {{"-c 256", true},
             {"-c 256 -n -2", false},
             {"-c 256 -gan 2 -gaw 64", false},
             {"-c 256 -gan auto", false},
             {"-c 256 -gan 2 -gaw 64 --grp-attn-mode window", true}};
    const char *m = tiny_model(false);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char line[600];
        snprintf(line, sizeof line, "-p @ --ignore-eos %s", c[i].flags);
        struct outcome o = run(m, "a", line);
        expect_exit(o, 0, "the context of 256 tokens is full: -c N makes room for more");
        cr_expect_eq(strstr(o.err, "--context-shift goes on") != NULL, c[i].shift, "%s: %s", line,
                     o.err);
        if (!c[i].shift)
            continue;
        snprintf(line, sizeof line, "-p @ --ignore-eos %s --context-shift -n 400", c[i].flags);
        expect_exit(run(m, "a", line), 0, "gen 400 tok");
    }
}
