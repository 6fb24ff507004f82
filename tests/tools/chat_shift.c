/* gpurun chat with --context-shift: each answer is that of a text which is decoded here token by
 * token, and shifted when the context is full. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "gpurun.h"
#include "tiny.h"

#define TEMPLATE "{% for m in messages %}{{ m.content }} {% endfor %}"
#define SYSTEM "Tell a story about a cat."
enum { N_CTX = 256, N_PREDICT = 140, MOST = 4096 };

/* A text in a session, of which shifts have dropped n_dropped tokens behind the first `keep`. */
struct stream {
    struct gr_model *model;
    struct gr_session *session;
    int32_t token[MOST]; /* [n] in the order in which they were decoded */
    size_t n;
    int32_t n_past, n_dropped, keep;
    int n_shift;
};

static void open_stream(struct stream *s)
{
    struct gr_model_params m = gr_model_params_default();
    struct gr_session_params p = gr_session_params_default();
    m.cpu_level = "ref";
    p.n_ctx = N_CTX, p.n_threads = 1;
    cr_assert_eq(gr_model_open(&s->model, GR_SOURCE_DIR "/tools/default-model.gguf", &m), 0);
    cr_assert_eq(gr_session_open(&s->session, s->model, &p), 0, "%s", gr_error_message());
}

static void decode(struct stream *s, int32_t id)
{
    struct gr_batch batch = {.n_tok = 1, .token = &id};
    if (s->n_past == N_CTX) {
        int32_t before = s->n_past;
        cr_assert_eq(gr_context_shift(s->session, 0, s->keep, 0, &s->n_past), 0);
        s->n_dropped += before - s->n_past, s->n_shift++;
    }
    cr_assert_eq(gr_decode(s->session, &batch), 0, "%s", gr_error_message());
    cr_assert_lt(s->n, MOST);
    s->token[s->n++] = id, s->n_past++;
}

/* Goes on with a prompt where the text has its beginning: returns how many of its tokens. */
static size_t go_on(struct stream *s, const int32_t *ids, size_t n)
{
    size_t same = 0;
    while (same < s->n && same + 1 < n && s->token[same] == ids[same])
        same++;
    int32_t pos = (int32_t)same - s->n_dropped;
    if (s->n_dropped ? pos >= s->keep : same > 0) {
        cr_assert_eq(gr_kv_seq_rm(s->session, 0, pos, -1), 0);
        s->n = same, s->n_past = pos;
    } else {
        gr_kv_clear(s->session);
        s->n = same = 0, s->n_past = s->n_dropped = 0;
    }
    for (size_t i = same; i < n; i++)
        decode(s, ids[i]);
    return same;
}

static int32_t best(const struct stream *s, int32_t n_vocab)
{
    const float *logits = gr_logits(s->session, -1);
    int32_t id = -1;
    for (int32_t i = 0; i < n_vocab; i++)
        if (!gr_text_is_eog(s->model, i) && (id < 0 || logits[i] > logits[id]))
            id = i;
    return id;
}

/* Generates an answer: its text. */
static void answer(struct stream *s, struct gr_vec *text)
{
    struct gr_text_stream *stream;
    struct gr_model_info info;
    const char *p;
    size_t n;
    int32_t stop;
    gr_model_info(s->model, &info);
    cr_assert_eq(gr_text_stream_new(&stream, s->model, false, NULL, NULL, 0), 0);
    for (int i = 0; i < N_PREDICT; i++) {
        int32_t id = best(s, info.n_vocab);
        cr_assert_eq(gr_text_stream_push(stream, id, &p, &n, &stop), 0);
        cr_assert_eq(gr_vec_append(text, p, n, 1), 0);
        if (i + 1 < N_PREDICT)
            decode(s, id);
    }
    cr_assert_eq(gr_text_stream_flush(stream, &p, &n, &stop), 0);
    cr_assert_eq(gr_vec_append(text, p, n, 1), 0);
    cr_assert_eq(gr_vec_append(text, "", 1, 1), 0);
    gr_text_stream_free(&stream);
}

/* Tokens of the messages (gr_free_ids). */
static int32_t *tokens_of(const struct stream *s, json_t *messages, bool generation, size_t *n)
{
    struct gr_template *t;
    struct gr_prompt prompt;
    int32_t *ids;
    json_t *all =
        json_pack("{s:O, s:b}", "messages", messages, "add_generation_prompt", (int)generation);
    char *json = json_dumps(all, 0);
    cr_assert_eq(gr_template_new(&t, TEMPLATE, strlen(TEMPLATE)), 0);
    cr_assert_eq(gr_template_render(t, json, strlen(json), 0, &prompt), 0);
    cr_assert_eq(gr_prompt_tokenize(s->model, &prompt, &ids, n), 0);
    gr_prompt_free(&prompt);
    gr_template_free(&t);
    free(json);
    json_decref(all);
    return ids;
}

static void add_message(json_t *list, const char *role, const char *text)
{
    json_array_append_new(list, json_pack("{s:s, s:s}", "role", role, "content", text));
}

/* The tokens that the system message and the first prompt begin with. */
static int32_t count_system(const struct stream *s, json_t *messages)
{
    size_t n, n_all, same = 0;
    json_t *system = json_pack("[O]", json_array_get(messages, 0));
    int32_t *ids = tokens_of(s, system, false, &n), *all = tokens_of(s, messages, true, &n_all);
    while (same < n && same < n_all && ids[same] == all[same])
        same++;
    gr_free_ids(ids);
    gr_free_ids(all);
    json_decref(system);
    return (int32_t)same;
}

Test(chat_shift, answers_of_a_shifted_context, .timeout = 120)
{
    static const char *const line[] = {"Once upon a time", "The cat", "What did Max find?", "More"};
    static struct stream s;
    struct outcome o = GPURUN("Once upon a time\nThe cat\nWhat did Max find?\nMore\n", "chat", "-t",
                              "1", "--cpu-level", "ref", "--ignore-eos", "--no-warmup",
                              "--chat-template", TEMPLATE, "--temp", "0", "-c", "256", "-n", "140",
                              "--json", "--context-shift", "-sys", SYSTEM);
    expect_exit(o, 0, "chat: 4 turns");
    json_t *messages = json_array();
    open_stream(&s);
    add_message(messages, "system", SYSTEM);
    char *at = o.out;
    for (size_t i = 0; i < sizeof line / sizeof *line; i++) {
        struct gr_vec text = {0};
        size_t n, n_line = strcspn(at, "\n");
        json_t *turn = json_loadb(at, n_line, 0, NULL);
        at += n_line + 1;
        add_message(messages, "user", line[i]);
        if (!s.keep)
            s.keep = count_system(&s, messages);
        int32_t *ids = tokens_of(&s, messages, true, &n);
        size_t kept = go_on(&s, ids, n);
        answer(&s, &text);
        cr_expect_str_eq(json_string_value(json_object_get(turn, "content")), text.data,
                         "answer %zu", i);
        cr_expect_eq(json_integer_value(json_object_get(turn, "prompt_tokens")), n);
        cr_expect_eq(json_integer_value(json_object_get(turn, "kept_tokens")), kept);
        add_message(messages, "assistant", text.data);
        gr_free_ids(ids);
        gr_vec_fini(&text);
        json_decref(turn);
    }
    cr_expect(s.n_shift > 2 && s.keep > 4, "%d shifts, %d tokens kept", s.n_shift, s.keep);
    json_decref(messages);
    gr_session_close(&s.session);
    gr_model_close(&s.model);
}
