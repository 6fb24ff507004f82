/* Texts longer than the context: Self-Extend and context shift as a user meets them. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tiny.h"

#define TINY tiny_model(false), "-t", "1"

Test(cli, long_prompts)
{
    char prompt[600];
    memset(prompt, '.', sizeof prompt);
    prompt[252] = 0; /* and BOS and the blank before it */
    expect_exit(GPURUN(NULL, TINY, "-p", prompt, "-c", "256"), 1,
                "gpurun: error: prompt is too long (");
    expect_exit(GPURUN(NULL, TINY, "-p", prompt, "-c", "256"), 1, " tokens, max 252)");
    cr_expect_eq(GPURUN(NULL, TINY, "-p", prompt, "-n", "4").exit_code, 0);
    prompt[252] = '.', prompt[599] = 0;
    expect_exit(GPURUN(NULL, TINY, "-p", prompt, "-n", "4"), 1, "max 508)");
    struct outcome o = GPURUN(NULL, TINY, "-p", prompt, "-n", "4", "-gan", "4", "-gaw", "64", "-v");
    expect_exit(o, 0, "shift: [     0,     64] +      0 -> [     0,     64]");
    expect_exit(o, 0, "div:   [     0,     64] /      4 -> [     0,     16]");
    expect_exit(o, 0, "n_past_old = 64, n_past = 16, ga_i = 16");
    expect_exit(o, 0, "\nn_past = 64\nembd_inp.size(): 600, n_consumed: 64\n");
    expect_exit(o, 0, "\nembd_inp.size(): 600, n_consumed: 600\n");
    o = GPURUN(NULL, TINY, "-p", prompt, "-n", "4", "-gan", "4", "-gaw", "64");
    cr_expect_leq(o.err_lines, 7, "%s", o.err);
    expect_exit(GPURUN(NULL, TINY, "-p", "a", "-n", "4", "-c", "2048"), 0,
                "warning: -c 2048 exceeds the 512 tokens");
}

/* Both modes choose factors that hold the context; positions then stay below the 512 trained ones,
 * though the cells are more. */
Test(cli, factors_of_self_extend)
{
    char prompt[1100];
    memset(prompt, '.', sizeof prompt);
    prompt[1099] = 0;
    struct outcome o = GPURUN(NULL, TINY, "-p", prompt, "-n", "4", "-gan", "auto", "--ignore-eos");
    expect_exit(o, 0, "context 1280 (K f16, V f16), Self-Extend 3 / 126 (classic)");
    cr_expect(!strstr(o.err, "warning"), "%s", o.err);
    o = GPURUN(NULL, TINY, "-p", prompt, "-n", "4", "--grp-attn", "auto", "--grp-attn-mode",
               "window", "-c", "1111", "--ignore-eos");
    expect_exit(o, 0, "context 1280 (K f16, V f16), Self-Extend 3 / 126 (window)");
    expect_exit(o, 0, "gen 4 tok");
    o = GPURUN(NULL, TINY, "-p", "a", "-n", "4", "-gan", "auto", "--ignore-eos");
    expect_exit(o, 0, "context 512 (K f16, V f16), batch");
    o = GPURUN(NULL, TINY, "-p", "a", "-n", "4", "-gan", "auto", "-gaw", "40", "-c", "900");
    expect_exit(o, 0, "context 1024 (K f16, V f16), Self-Extend 3 / 39 (classic)");
    expect_exit(GPURUN(NULL, TINY, "-p", "a", "-n", "1", "-gan", "2", "-gaw", "128", "-c", "2048"),
                0, "-gan 2 -gaw 128 is good for 960 tokens of the context of 2048");
}

/* A prompt of any piece size is the same text: pieces end where windows do. */
Test(cli, pieces_of_a_prompt_do_not_matter)
{
    char prompt[500];
    memset(prompt, '.', sizeof prompt);
    for (size_t i = 0; i < sizeof prompt; i++)
        prompt[i] = (char)('a' + i * i % 23);
    prompt[499] = 0;
#define EXTEND TINY, "-p", prompt, "-n", "24", "--temp", "0", "--ignore-eos", "-ctk", "f32", "-q"
    struct outcome a = GPURUN(NULL, EXTEND, "-gan", "4", "-gaw", "64");
    struct outcome b = GPURUN(NULL, EXTEND, "-gan", "4", "-gaw", "64", "-b", "1");
    struct outcome c = GPURUN(NULL, EXTEND, "-gan", "4", "-gaw", "64", "-b", "50");
    struct outcome plain = GPURUN(NULL, EXTEND);
    cr_expect(a.n_out > 0 && strcmp(a.out, plain.out) != 0, "%s", a.err);
    cr_expect_str_eq(a.out, b.out);
    cr_expect_str_eq(a.out, c.out);
    a = GPURUN(NULL, EXTEND, "-gan", "4", "-gaw", "64", "--grp-attn-mode", "window");
    b = GPURUN(NULL, EXTEND, "-gan", "4", "-gaw", "64", "--grp-attn-mode", "window", "-b", "7");
    cr_expect(a.n_out > 0 && strcmp(a.out, plain.out) != 0, "%s", a.err);
    cr_expect_str_eq(a.out, b.out);
}

Test(cli, long_prompts_with_context_shift)
{
    char prompt[600];
    memset(prompt, '.', sizeof prompt);
    prompt[599] = 0;
    struct outcome o = GPURUN(NULL, TINY, "-p", prompt, "-c", "256", "-n", "300", "--ignore-eos",
                              "--context-shift");
    expect_exit(o, 0, "gen 300 tok");
    expect_exit(o, 0, "prompt 60");
    expect_exit(o, 0, "tokens exceeds the context of 256: --context-shift drops its oldest text");
    expect_exit(GPURUN(NULL, TINY, "-p", prompt, "-c", "256", "-n", "9", "--ignore-eos",
                       "--context-shift", "--keep", "-1", "-ctk", "q8_0"),
                2, "q8_0");
    expect_exit(GPURUN(NULL, TINY, "-p", prompt, "-c", "256", "-n", "9", "--ignore-eos",
                       "--context-shift", "--keep", "20", "--grp-attn-mode", "window", "-gan", "2",
                       "-gaw", "32"),
                0, "gen 9 tok");
    o = GPURUN(NULL, TINY, "-p", prompt, "-c", "256");
    expect_exit(o, 1, "gpurun: error: prompt is too long (");
    expect_exit(o, 1, "-gan auto");
    expect_exit(o, 1, "--context-shift");
    expect_exit(GPURUN(NULL, TINY, "-p", prompt, "-c", "256", "-n", "-2", "--context-shift"), 1,
                "prompt is too long (");
}
