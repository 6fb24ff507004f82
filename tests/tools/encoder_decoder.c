/* A model with an encoder and a decoder as its users meet it: the prompt is encoded, what is
 * written is the decoder's. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "gpurun.h"
#include "tiny.h"

TestSuite(encoder_decoder, .timeout = 120);

enum { N_WRITE = 12 };

#define MODEL "-m", tiny_encoder_decoder(), "-t", "1"
#define WRITE "run", MODEL, "-n", "12", "--temp", "0", "--ignore-eos"

/* The likeliest token behind one, but that which ends a text. */
static int32_t next(struct gr_session *s, int32_t id, int32_t n_vocab)
{
    cr_assert_eq(gr_decode(s, &(struct gr_batch){.n_tok = 1, .token = &id}), 0);
    const float *x = gr_logits(s, -1);
    id = 0;
    for (int32_t i = 0; i < n_vocab; i++)
        id = i != TINY_EOS && x[i] > x[id] ? i : id;
    return id;
}

/* The same by the library: the tokens of the prompt are encoded, the decoder begins with its own.
 */
static void answer(const char *prompt, char *text)
{
    struct gr_detok *detok;
    struct gr_model_params mp = gr_model_params_default();
    struct gr_session_params p = gr_session_params_default();
    struct gr_model_info info;
    struct gr_model *m;
    struct gr_session *s;
    int32_t *ids, id;
    size_t n, at = 0;
    p.n_ctx = 512, p.n_threads = 1;
    cr_assert_eq(gr_model_open(&m, tiny_encoder_decoder(), &mp), 0, "%s", gr_error_message());
    cr_assert_eq(gr_session_open(&s, m, &p), 0, "%s", gr_error_message());
    gr_model_info(m, &info);
    cr_assert(info.has_encoder && info.decoder_start == TINY_START);
    cr_assert_eq(gr_text_tokenize(m, prompt, strlen(prompt), true, true, &ids, &n), 0);
    cr_assert_eq(gr_encode(s, &(struct gr_batch){.n_tok = (int32_t)n, .token = ids}), 0);
    id = info.decoder_start;
    cr_assert_eq(gr_detok_new(&detok, m, false), 0);
    for (int i = 0; i <= N_WRITE; i++) {
        const char *piece;
        size_t n_piece;
        if (i < N_WRITE)
            id = next(s, id, info.n_vocab);
        cr_assert_eq(i < N_WRITE ? gr_detok_push(detok, id, &piece, &n_piece)
                                 : gr_detok_flush(detok, &piece, &n_piece),
                     0);
        memcpy(text + at, piece, n_piece);
        at += n_piece;
    }
    text[at] = 0;
    gr_detok_free(&detok);
    gr_free_ids(ids);
    gr_session_close(&s);
    gr_model_close(&m);
}

Test(encoder_decoder, run_answers_what_it_has_encoded)
{
    static const char *const prompts[] = {"translate this", "zyx"};
    char text[2][512];
    for (int i = 0; i < 2; i++) {
        answer(prompts[i], text[i]);
        struct outcome o = GPURUN(NULL, WRITE, "-p", prompts[i]);
        expect_exit(o, 0, "gen 12 tok");
        cr_expect(!strncmp(o.out, text[i], strlen(text[i])), "%s, not %s", o.out, text[i]);
        o = GPURUN(NULL, WRITE, "-p", prompts[i], "--ranks", "2");
        cr_expect(!strncmp(o.out, text[i], strlen(text[i])), "two ranks: %s, not %s", o.out,
                  text[i]);
    }
    cr_expect_str_neq(text[0], text[1]);
    /* BOS and a letter each; an encoder takes them at once, whatever -ub says */
    struct outcome o = GPURUN(NULL, WRITE, "-p", prompts[1], "--json", "-ub", "2", "-b", "2");
    cr_expect(strstr(o.out, "\"prompt_tokens\": 4"), "%s", o.out);
    cr_expect(strstr(o.out, "\"generated_tokens\": 12"), "%s", o.out);
}

Test(encoder_decoder, what_needs_a_text_that_goes_on_is_refused)
{
    char cache[128], text[4096];
    snprintf(cache, sizeof cache, "%s", tiny_path("encoder.kv"));
    memset(text, 'a', sizeof text), text[sizeof text - 1] = 0;
    expect_exit(GPURUN(NULL, WRITE, "-p", "a", "--prompt-cache", cache), 2, "leave it out");
    expect_exit(GPURUN(text, "perplexity", MODEL), 3, "a model without an encoder is expected");
    expect_exit(GPURUN(text, "imatrix", MODEL, "-o", cache), 3, "without an encoder");
    expect_exit(GPURUN("a", "embed", MODEL), 3, "its encoder alone");
    expect_exit(GPURUN(NULL, WRITE, "-p", text, "-c", "256"), 1, "prompt is too long");
    expect_exit(GPURUN(NULL, WRITE, "-p", text, "-c", "256", "--context-shift"), 1, "too long");
    expect_exit(GPURUN(NULL, WRITE, "-p", "a", "--ranks", "2", "-sm", "tensor"), 3, "-sm layer");
}

Test(encoder_decoder, bench)
{
    struct outcome o = GPURUN(NULL, "bench", MODEL, "-p", "32", "-n", "4", "-r", "1");
    expect_exit(o, 0, "");
    cr_expect(strstr(o.out, "pp32") && strstr(o.out, "tg4"), "%s", o.out);
    expect_exit(GPURUN(NULL, "bench", MODEL, "-p", "64", "-n", "0", "-ub", "32"), 2, "larger -ub");
    o = GPURUN(NULL, "bench", MODEL, "-p", "32", "-n", "4", "-d", "8", "-r", "2");
    expect_exit(o, 0, "");
    cr_expect(strstr(o.out, "tg4 @ d8"), "%s", o.out);
}
