/* Models with an encoder: the logits of another implementation (tests/golden/encoder-decoder), and
 * that a text stays with its sequence whatever is done to the tokens. */
#include "support/encoder_decoder.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "engine/session.h"
#include "gr/status.h"
#include "registry/registry.h"

enum { N_VOCAB = 96, N_TEXT = 15, N_ROW = 10 };

/* f32 sums of at most 96 terms in another order, squared, over some layers. */
#define SAME 1e-10

static struct gr_session *session_of(struct gr_model *m, bool unified)
{
    struct gr_session_params p = gr_session_params_default();
    p.n_ctx = 512, p.n_seq_max = 2, p.type_k = p.type_v = "f32", p.n_threads = 1;
    p.kv_unified = unified;
    return tiny_session(m, &p);
}

/* n tokens (first + factor * i) mod 96 of one sequence from position pos. */
struct part {
    int32_t seq, pos, n;
};

/* The tokens of parts, one after the other. */
static int run(struct gr_session *s, const struct part *part, int n_part, int first, int factor,
               bool encode)
{
    int32_t id[64], pos[64], seq[64], n = 0;
    int8_t want[64];
    for (int k = 0; k < n_part; k++)
        for (int i = 0; i < part[k].n; i++, n++) {
            id[n] = (first + factor * n) % N_VOCAB, pos[n] = part[k].pos + i;
            seq[n] = part[k].seq, want[n] = 1;
        }
    struct gr_batch b = {.n_tok = n, .token = id, .pos = pos, .seq = seq, .logits = want};
    return encode ? gr_encode(s, &b) : gr_decode(s, &b);
}

static void encode(struct gr_session *s, int32_t seq, int n, int first)
{
    cr_assert_eq(run(s, &(struct part){seq, 0, n}, 1, first, 37, true), 0, "%s", gr_error());
}

/* Logits of n tokens of a sequence. */
static void decode(struct gr_session *s, int32_t seq, int pos, int n, float *out)
{
    cr_assert_eq(run(s, &(struct part){seq, pos, n}, 1, 3 + 29 * pos, 29, false), 0, "%s",
                 gr_error());
    for (int i = 0; i < n; i++)
        memcpy(out + (size_t)i * N_VOCAB, gr_logits(s, i), N_VOCAB * sizeof *out);
}

static float want[64 * N_VOCAB], got[64 * N_VOCAB];

static double differ(int n)
{
    return tiny_nmse(want, got, (size_t)n * N_VOCAB);
}

static struct gr_model *open_model(int i)
{
    struct tiny t = encoder_decoder_model(i);
    return tiny_open(&t);
}

Test(encoder_decoder, logits_are_those_of_another_implementation)
{
    static const struct part texts[] = {{0, 0, 9}, {1, 0, 6}}, begin[] = {{0, 0, 5}, {1, 0, 3}},
                             next[] = {{0, 5, 1}, {1, 3, 1}};
    for (int k = 0; k < ENCODER_DECODER_N; k++) {
        char path[512];
        struct gr_model *m = open_model(k);
        struct gr_session *s = session_of(m, true);
        snprintf(path, sizeof path, GR_SOURCE_DIR "/tests/golden/encoder-decoder/%s.f32",
                 encoder_decoder_name[k]);
        FILE *f = fopen(path, "rb");
        cr_assert(f, "%s", path);
        cr_assert_eq(fread(want, N_VOCAB * sizeof *want, N_ROW, f), N_ROW);
        fclose(f);
        cr_assert_eq(run(s, texts, 2, 5, 37, true), 0, "%s", gr_error());
        cr_expect_null(gr_logits(s, 0));
        cr_assert_eq(run(s, begin, 2, 3, 29, false), 0, "%s", gr_error());
        for (int i = 0; i < 8; i++)
            memcpy(got + i * N_VOCAB, gr_logits(s, i), N_VOCAB * sizeof *got);
        cr_assert_eq(run(s, next, 2, 3 + 29 * 8, 29, false), 0, "%s", gr_error());
        for (int i = 0; i < 2; i++)
            memcpy(got + (8 + i) * N_VOCAB, gr_logits(s, i), N_VOCAB * sizeof *got);
        /* with gates it looks GELU up in a table of binary16 */
        cr_expect_leq(differ(N_ROW), k ? 1e-11 : 1e-6, "%s: %g", path, differ(N_ROW));
        gr_session_close(&s);
        gr_model_close(&m);
    }
}

/* Token by token, in memory that holds NaN, beside another sequence, after another text. */
Test(encoder_decoder, every_way_to_decode_gives_the_same_logits)
{
    struct gr_model *m = open_model(0);
    struct gr_session *s = session_of(m, true);
    encode(s, 0, N_TEXT, 5);
    decode(s, 0, 0, 20, want);
    gr_session_close(&s);
    for (int way = 0; way < 2; way++) {
        s = session_of(m, way == 0);
        memset(s->device[0].cache, 0xff, s->device[0].has.cache);
        encode(s, 1, 8, 50);
        encode(s, 0, 23, 2);
        decode(s, 0, 0, 4, got);
        decode(s, 1, 0, 6, got);
        encode(s, 0, N_TEXT, 5);
        cr_expect_eq(gr_kv_seq_pos_max(s, 0), -1);
        cr_expect_eq(gr_kv_seq_pos_max(s, 1), 5);
        for (int i = 0; i < 20; i++)
            decode(s, 0, i, 1, got + i * N_VOCAB);
        cr_expect_leq(differ(20), SAME, "%d: %g", way, differ(20));
        gr_session_close(&s);
    }
    gr_model_close(&m);
}

/* Removing tokens leaves the text, a copy has it, a state keeps it, and all of it goes with all of
 * the sequence. */
Test(encoder_decoder, a_text_stays_with_its_sequence)
{
    struct gr_model *m = open_model(0);
    for (int unified = 0; unified < 2; unified++) {
        struct gr_session *s = session_of(m, unified), *other = session_of(m, true);
        void *state;
        size_t n;
        encode(s, 0, N_TEXT, 5);
        decode(s, 0, 0, 20, want);
        cr_assert_eq(gr_kv_seq_rm(s, 0, 10, -1), 0, "%s", gr_error());
        decode(s, 0, 10, 10, got + 10 * N_VOCAB);
        memcpy(got, want, 10 * N_VOCAB * sizeof *got);
        cr_expect_leq(differ(20), SAME, "%g", differ(20));
        cr_assert_eq(gr_kv_seq_cp(s, 0, 1, 0, 10), 0, "%s", gr_error());
        decode(s, 1, 10, 10, got + 10 * N_VOCAB);
        cr_expect_leq(differ(20), SAME, "%g", differ(20));
        for (int32_t seq = -1; seq < 1; seq++) {
            cr_assert_eq(gr_kv_seq_rm(s, 0, 10, -1), 0, "%s", gr_error());
            cr_assert_eq(gr_state_save(s, seq, NULL, 0, &state, &n), 0, "%s", gr_error());
            decode(s, 0, 10, 10, want + 10 * N_VOCAB);
            gr_kv_clear(other);
            cr_assert_eq(gr_state_load(other, seq, state, n, NULL, NULL), 0, "%s", gr_error());
            decode(other, 0, 10, 10, got + 10 * N_VOCAB);
            cr_expect_eq(memcmp(want, got, 20 * N_VOCAB * sizeof *want), 0);
            gr_state_free(state);
        }
        cr_assert_eq(gr_kv_seq_rm(s, 0, -1, -1), 0, "%s", gr_error());
        decode(s, 0, 0, 20, got); /* attends to nothing */
        cr_expect(isfinite(differ(20)) && differ(20) > 1e-3, "%g", differ(20));
        gr_session_close(&s);
        gr_session_close(&other);
    }
    gr_model_close(&m);
}

/* A text is not mixed with another one, is no obstacle where tokens are moved, and takes no cell
 * from them. */
Test(encoder_decoder, texts_beside_each_other)
{
    struct gr_model *m = open_model(0);
    struct gr_session *s = session_of(m, true);
    gr_kv_clear(s);
    encode(s, 0, N_TEXT, 5);
    cr_expect_eq(gr_kv_used(s), 0);
    decode(s, 0, 0, 20, want);
    encode(s, 1, 8, 50);
    cr_expect_eq(gr_kv_seq_cp(s, 0, 1, -1, -1), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "remove"), "%s", gr_error());
    cr_expect_eq(gr_kv_seq_pos_max(s, 1), -1, "a refused copy changes nothing");
    cr_assert_eq(gr_kv_seq_rm(s, 1, -1, -1), 0, "%s", gr_error());
    for (int again = 0; again < 2; again++) /* the text that it has already is no other one */
        cr_assert_eq(gr_kv_seq_cp(s, 0, 1, 0, 0), 0, "%s", gr_error());
    cr_expect_eq(gr_kv_seq_pos_max(s, 1), -1);
    decode(s, 1, 0, 20, got);
    cr_expect_leq(differ(20), SAME, "%g", differ(20));
    int32_t n_past;
    cr_assert_eq(gr_context_shift(s, 0, 4, 10, &n_past), 0, "%s", gr_error());
    cr_expect_eq(n_past, 10);
    cr_assert_eq(gr_kv_seq_rm(s, 1, 4, 14), 0, "%s", gr_error());
    cr_assert_eq(gr_kv_seq_add(s, 1, 14, -1, -10), 0, "%s", gr_error());
    decode(s, 0, 10, 5, want);
    decode(s, 1, 10, 5, got);
    cr_expect_leq(differ(5), SAME, "%g", differ(5));
    gr_session_close(&s);
    gr_model_close(&m);
}

static void stop(const char *name, int layer, const float *data, int64_t rows, int64_t cols,
                 void *user)
{
    (void)name, (void)layer, (void)data, (void)rows, (void)cols;
    gr_session_cancel(user);
    cr_expect_eq(run(user, &(struct part){1, 0, 4}, 1, 5, 37, true), GR_E_INVALID, "inside a tap");
}

/* A text that was stopped half way is none; the sequence can have another one, and those of others
 * are what they were. */
Test(encoder_decoder, a_stopped_text)
{
    struct gr_model *m = open_model(0);
    struct gr_session *s = session_of(m, true);
    encode(s, 1, 8, 50);
    decode(s, 1, 0, 20, want);
    cr_assert_eq(gr_kv_seq_rm(s, 1, 0, 20), 0, "%s", gr_error());
    cr_assert_eq(gr_session_tap(s, "layer", stop, s), 0);
    cr_expect_eq(run(s, &(struct part){0, 0, N_TEXT}, 1, 5, 37, true), GR_E_CANCELLED);
    cr_assert_eq(gr_session_tap(s, NULL, NULL, NULL), 0);
    cr_assert_eq(gr_cache_check(&s->cache), 0, "%s", gr_error());
    cr_expect_not(gr_cache_has(&s->cache, 0));
    decode(s, 1, 0, 20, got);
    cr_expect_leq(differ(20), SAME, "%g", differ(20));
    encode(s, 0, 8, 50);
    decode(s, 0, 0, 20, got);
    cr_expect_leq(differ(20), SAME, "%g", differ(20));
    gr_session_close(&s);
    gr_model_close(&m);
}

Test(encoder_decoder, what_cannot_be_encoded_is_refused)
{
    struct gr_model *m = open_model(0);
    struct gr_model_info info;
    struct gr_session_params p = gr_session_params_default();
    gr_model_info(m, &info);
    cr_expect(info.has_encoder);
    cr_expect_eq(info.decoder_start, 7);
    p.n_ctx = 256, p.n_ubatch = 8, p.n_seq_max = 2;
    struct gr_session *s = tiny_session(m, &p);
    decode(s, 0, 0, 3, got);
    cr_expect_eq(run(s, &(struct part){0, 0, 9}, 1, 5, 37, true), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "-ub"), "%s", gr_error());
    cr_expect_eq(run(s, &(struct part){3, 0, 4}, 1, 5, 37, true), GR_E_INVALID);
    cr_expect_eq(gr_kv_seq_pos_max(s, 0), 2, "a refused text changes nothing");
    const int32_t ids[2] = {5, 6}, n_seq[2] = {2, 1}, seqs[3] = {0, 1, 1};
    struct gr_batch shares = {.n_tok = 2, .token = ids, .n_seq = n_seq, .seq = seqs};
    cr_expect_eq(gr_encode(s, &shares), GR_E_INVALID);
    cr_expect(strstr(gr_error(), "its own text"), "%s", gr_error());
    cr_expect_eq(gr_kv_seq_pos_max(s, 0), 2);
    encode(s, 0, 8, 5);
    cr_expect_eq(gr_kv_seq_pos_max(s, 0), -1);
    gr_session_close(&s);
    p.embeddings = true;
    cr_expect_eq(gr_session_open(&s, m, &p), GR_E_UNSUPPORTED);
    cr_expect(strstr(gr_error(), "encoder alone"), "%s", gr_error());
    gr_model_close(&m);
    struct tiny t = tiny_default(gr_arch_at(0));
    m = tiny_open(&t);
    gr_model_info(m, &info);
    cr_expect_not(info.has_encoder);
    s = session_of(m, true);
    cr_expect_eq(run(s, &(struct part){0, 0, 4}, 1, 5, 37, true), GR_E_UNSUPPORTED);
    gr_session_close(&s);
    gr_model_close(&m);
}
