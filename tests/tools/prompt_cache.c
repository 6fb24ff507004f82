/* --prompt-cache: the text is the one without it, and less of the prompt is run. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpurun.h"
#include "tiny.h"
#include "tools/commands/prompt_cache.h"

TestSuite(prompt_cache, .timeout = 120);

#define RUN(...) GPURUN(NULL, "run", "-m", model, "-t", "1", "--temp", "0", "-n", "12", __VA_ARGS__)

static const char *model;
static char file[256];

static void start(void)
{
    static char copy[256];
    snprintf(copy, sizeof copy, "%s", tiny_model(false));
    snprintf(file, sizeof file, "%s", tiny_path("prompt.cache"));
    model = copy;
}

static void expect(struct outcome o, int code, const char *words)
{
    cr_expect_eq(o.exit_code, code, "exit %d, %d expected: %s", o.exit_code, code, o.err);
    cr_expect(strstr(o.err, words), "'%s' expected, found: %s", words, o.err);
}

/* "prompt cache: N of M tokens"; -1 when that is not said. */
static int kept(struct outcome o)
{
    const char *at = strstr(o.err, "prompt cache: ");
    int n = -1;
    return at && sscanf(at, "prompt cache: %d of", &n) == 1 ? n : -1;
}

Test(prompt_cache, goes_on_from_the_common_beginning, .init = start)
{
    struct outcome a = RUN("-p", "abcdefghij"), b = RUN("-p", "abcdefghij", "--prompt-cache", file);
    expect(a, 0, "gen 12");
    cr_expect_eq(kept(b), -1, "%s", b.err);
    cr_expect_str_eq(a.out, b.out);
    b = RUN("-p", "abcdefghij", "--prompt-cache", file);
    int all = kept(b);
    cr_expect(all > 5, "%s", b.err);
    cr_expect_str_eq(a.out, b.out);

    a = RUN("-p", "abcdefxyz"), b = RUN("-p", "abcdefxyz", "--prompt-cache", file);
    cr_expect(kept(b) > 3 && kept(b) < all, "%s", b.err);
    cr_expect_str_eq(a.out, b.out);
    b = RUN("-p", "abcdefxyz", "--prompt-cache", file);
    cr_expect(kept(b) > 5, "the file has the new one: %s", b.err);
    cr_expect_str_eq(a.out, b.out);

    a = RUN("-p", "abc"), b = RUN("-p", "abc", "--prompt-cache", file);
    cr_expect_str_eq(a.out, b.out);
    b = RUN("-p", "abcdefxyz", "--prompt-cache", file);
    cr_expect(kept(b) > 5, "the longer one stays: %s", b.err);
}

Test(prompt_cache, keeps_the_text_too, .init = start)
{
    char longer[256];
    struct outcome a = RUN("-p", "abcdef", "--prompt-cache", file, "--prompt-cache-all");
    expect(a, 0, "gen 12");
    snprintf(longer, sizeof longer, "abcdef%.6s", a.out);
    struct outcome b = RUN("-p", longer, "--prompt-cache", file, "--prompt-cache-ro");
    cr_expect(kept(b) > 6, "%s", b.err);
    cr_expect_str_eq(b.out, RUN("-p", longer).out);
}

Test(prompt_cache, read_only, .init = start)
{
    struct stat before, after;
    expect(RUN("-p", "abcdef", "--prompt-cache", file, "--prompt-cache-ro"), 0, "gen 12");
    cr_expect_eq(access(file, F_OK), -1);
    expect(RUN("-p", "abcdef", "--prompt-cache", file), 0, "gen 12");
    cr_assert_eq(stat(file, &before), 0);
    cr_expect_eq(before.st_mode & 0777, 0600);
    struct outcome o = RUN("-p", "abcxyz", "--prompt-cache", file, "--prompt-cache-ro");
    cr_expect(kept(o) > 0, "%s", o.err);
    cr_assert_eq(stat(file, &after), 0);
    cr_expect_eq(before.st_ino, after.st_ino);
}

/* Merged positions stay merged; a text that parts where they are begins anew. */
Test(prompt_cache, self_extend, .init = start)
{
    static const char *const modes[] = {"classic", "window"};
    char prompt[300];
    for (int i = 0; i < 299; i++)
        prompt[i] = (char)('a' + i * i % 23);
    for (int m = 0; m < 2; m++) {
        unlink(file);
        prompt[260] = 0;
#define EXTENDED "-gan", "4", "-gaw", "64", "--grp-attn-mode", modes[m]
        expect(RUN("-p", prompt, EXTENDED, "--prompt-cache", file), 0, "gen 12");
        struct outcome b = RUN("-p", prompt, EXTENDED, "--prompt-cache", file);
        cr_expect(kept(b) > 250, "%s", b.err);
        cr_expect_str_eq(b.out, RUN("-p", prompt, EXTENDED).out);
        prompt[3] = '.';
        b = RUN("-p", prompt, EXTENDED, "--prompt-cache", file, "--prompt-cache-ro");
        cr_expect(m ? kept(b) > 0 : kept(b) == 0, "%s: %s", modes[m], b.err);
        cr_expect_str_eq(b.out, RUN("-p", prompt, EXTENDED).out);
        prompt[3] = 'j';
    }
    expect(RUN("-p", prompt, "--prompt-cache", file), 2, "group factor: '1' expected, '4' found");
}

/* Positions merge while a text is read: what was read without merging, or with other windows, is
 * good for the first window. */
Test(prompt_cache, other_factors_of_self_extend, .init = start)
{
    char prompt[300];
    for (int i = 0; i < 300; i++)
        prompt[i] = (char)('a' + i * i % 23);
    prompt[250] = 0;
    expect(RUN("-p", prompt, "--prompt-cache", file), 0, "gen 12");
#define MERGED(w) "-p", prompt, "-gan", "4", "-gaw", w
    struct outcome b = RUN(MERGED("64"), "--prompt-cache", file, "--prompt-cache-ro");
    cr_expect_eq(kept(b), 64, "%s", b.err);
    cr_expect_str_eq(b.out, RUN(MERGED("64")).out);
    cr_expect_str_neq(b.out, RUN("-p", prompt).out);
    b = RUN(MERGED("64"), "--prompt-cache", file);
    b = RUN(MERGED("64"), "--prompt-cache", file);
    cr_expect(kept(b) > 240, "the file has the merged one: %s", b.err);
    cr_expect_str_eq(b.out, RUN(MERGED("64")).out);
    b = RUN(MERGED("32"), "--prompt-cache", file, "--prompt-cache-ro");
    cr_expect_eq(kept(b), 0, "%s", b.err);
    b = RUN("-p", prompt, "--prompt-cache", file, "--prompt-cache-ro");
    cr_expect_eq(kept(b), 0, "%s", b.err);
    cr_expect_str_eq(b.out, RUN("-p", prompt).out);
}

/* Cells that a window has given up are not there for positions that move back into its sight. */
Test(prompt_cache, what_a_window_has_given_up, .init = start)
{
    char path[256], prompt[450];
    snprintf(path, sizeof path, "%s", tiny_path("window.gguf"));
    tiny_write_arch("gemma3", path);
    for (int i = 0; i < 450; i++)
        prompt[i] = (char)('a' + i * i % 23);
    prompt[449] = 0, model = path;
#define MOVED "-p", prompt, "-c", "512", "--swa-full", "-gan", "8", "-gaw", "400"
    struct outcome a = RUN(MOVED), b;
    prompt[390] = 0;
    expect(RUN("-p", prompt, "-c", "512", "-ub", "16", "--prompt-cache", file), 0, "gen 12");
    prompt[390] = (char)('a' + 390 * 390 % 23);
    b = RUN(MOVED, "--prompt-cache", file);
    expect(b, 0, "prompt cache: 0 of 450 tokens");
    cr_expect_str_eq(a.out, b.out);
}

Test(prompt_cache, more_than_the_context_holds, .init = start)
{
    char prompt[301];
    memset(prompt, 'q', 300);
    prompt[300] = 0;
    expect(RUN("-p", prompt, "--prompt-cache", file), 0, "gen 12");
    struct outcome b = RUN("-p", prompt + 200, "-c", "256", "--prompt-cache", file);
    expect(b, 0, "prompt cache: 0 of 101 tokens");
    cr_expect_str_eq(b.out, RUN("-p", prompt + 200, "-c", "256").out);
    cr_expect_eq(kept(RUN("-p", prompt + 200, "-c", "256", "--prompt-cache", file)), 100);
}

Test(prompt_cache, shifted_context, .init = start)
{
    struct outcome o = RUN("-p", "abc", "-c", "256", "-n", "400", "--ignore-eos", "--context-shift",
                           "--prompt-cache", file, "--prompt-cache-all");
    expect(o, 0, "is left as it is: the session no longer has the whole text");
    cr_expect_eq(access(file, F_OK), -1);
}

Test(prompt_cache, what_cannot_be_used, .init = start)
{
    expect(RUN("-p", "a", "--prompt-cache-all"), 2, "need the name of a file");
    expect(RUN("-p", "abcdef", "--prompt-cache", file), 0, "gen 12");
    expect(RUN("-p", "abcdef", "--prompt-cache", file, "-ctk", "f32"), 2,
           "type of K: 'f32' expected, 'f16' found");
    expect(GPURUN(NULL, "-p", "abcdef", "-n", "4", "--prompt-cache", file), 2, "another model");
    char adapter[256];
    snprintf(adapter, sizeof adapter, "%s", tiny_adapter());
    struct stat st;
    cr_assert_eq(stat(file, &st), 0);
    cr_assert_eq(truncate(file, st.st_size - 100), 0);
    expect(RUN("-p", "abcdef", "--prompt-cache", file), 3, "cut off");
    expect(RUN("-p", "abcdef", "--prompt-cache", model), 2, "a file of this command");
    expect(RUN("-p", "abcdef", "--prompt-cache", adapter), 3, "not a saved state");
    struct outcome o = RUN("-p", "abcdef", "--prompt-cache", "/nowhere/file");
    expect(o, 6, "/nowhere/file: there is no folder /nowhere; make it");
    cr_expect_str_eq(o.out, "");
}

/* A file whose tokens are not those of its cells: version, number of tokens, Self-Extend, tokens.
 */
static void write_claim(const char *text, int n_less, struct gr_self_extend se)
{
    int32_t note[64] = {1, 0, se.n, se.w, se.i}, *id;
    size_t n_id;
    struct gr_model *m;
    struct gr_session *s;
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = TINY_N_CTX, p.n_threads = 1;
    cr_assert_eq(gr_model_open(&m, model, NULL), 0, "%s", gr_error_message());
    cr_assert_eq(gr_session_open(&s, m, &p), 0, "%s", gr_error_message());
    cr_assert_eq(gr_text_tokenize(m, text, strlen(text), true, true, &id, &n_id), 0);
    cr_assert(n_id > 5 && n_id < 50);
    note[1] = (int32_t)n_id;
    memcpy(note + 5, id, n_id * sizeof *id);
    struct gr_batch b = {.n_tok = (int32_t)n_id - n_less, .token = id};
    cr_assert_eq(gr_decode(s, &b), 0, "%s", gr_error_message());
    cr_assert_eq(gr_state_save_file(s, 0, note, (5 + n_id) * sizeof *note, file), 0);
    gr_free_ids(id);
    gr_session_close(&s);
    gr_model_close(&m);
}

Test(prompt_cache, fewer_cells_than_tokens, .init = start)
{
    struct outcome a = RUN("-p", "abcdefghij"), b;
    for (int less = 0; less < 5; less += 4) {
        write_claim("abcdefghij", less, (struct gr_self_extend){1, 512, 0});
        b = RUN("-p", "abcdefghij", "--prompt-cache", file);
        cr_expect(less ? kept(b) == 0 : kept(b) > 5, "%s", b.err);
        cr_expect_str_eq(a.out, b.out);
    }
}

/* Restores the file into a session with these factors, then lets Self-Extend go on from there. */
static int go_on(struct gr_self_extend se, bool *restored)
{
    struct gr_prompt_cache c = {.record = true, .shift_keep = -1};
    struct gr_session_params p = gr_session_params_default();
    struct gr_model *m;
    struct gr_session *s;
    int32_t n_past = 0;
    p.n_ctx = TINY_N_CTX, p.n_threads = 1;
    cr_assert_eq(gr_model_open(&m, model, NULL), 0, "%s", gr_error_message());
    cr_assert_eq(gr_session_open(&s, m, &p), 0, "%s", gr_error_message());
    *restored = gr_prompt_cache_restore(&c, s, file, &se, &n_past);
    int status = gr_self_extend(s, &se, &n_past);
    gr_prompt_cache_fini(&c);
    gr_session_close(&s);
    gr_model_close(&m);
    return status;
}

/* A state of Self-Extend that cannot be is not taken from a file. */
Test(prompt_cache, impossible_windows, .init = start)
{
    static const int32_t i[] = {0, -1, -8, 1, 3, 1 << 30, INT32_MIN};
    struct gr_self_extend se = {4, 16, 0};
    for (size_t k = 0; k < sizeof i / sizeof *i; k++) {
        bool restored;
        write_claim("abcdefghij", 0, (struct gr_self_extend){4, 16, i[k]});
        cr_expect_eq(go_on(se, &restored), 0, "%d: %s", i[k], gr_error_message());
        cr_expect_eq(restored, !i[k], "%d", i[k]);
        struct outcome o =
            RUN("-p", "abcdefghij", "--prompt-cache", file, "-gan", "4", "-gaw", "16");
        expect(o, i[k] ? 2 : 0, i[k] ? "a state without the tokens of a text" : "gen 12");
    }
}
