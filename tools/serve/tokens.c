/* Texts and tokens, and the prompts that the chat template makes. */
#include "messages.h"
#include "server.h"
#include "writer.h"

#define MOST_TOKENS                                                                                \
    (1 << 20)              /* of an answer, which takes some 50 bytes for each while it is made */
#define MOST_PIECES 100000 /* .. 500 bytes */

/* ---- tokens of a text ---- */

/* Makes the text of a token, or a list of its bytes where it is no UTF-8. */
static json_t *piece_json(const struct gr_model *model, int32_t id)
{
    const char *p = "";
    size_t n = 0;
    if (gr_text_piece(model, id, true, &p, &n))
        n = 0;
    json_t *text = json_stringn(p, n);
    if (text)
        return text;
    json_t *bytes = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(bytes, json_integer((unsigned char)p[i]));
    return bytes;
}

static json_t *tokens_json(const struct gr_model *model, const int32_t *ids, size_t n, bool pieces)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *id = json_integer(ids[i]);
        (void)json_array_append_new(
            list,
            pieces ? json_pack("{s:o, s:o}", "id", id, "piece", piece_json(model, ids[i])) : id);
    }
    if (json_array_size(list) == n)
        return json_pack("{s:o}", "tokens", list);
    json_decref(list); /* no memory */
    return NULL;
}

/* Answers as llama.cpp's server, or, with a prompt, as vLLM's. */
static void tokenize(struct gr_exchange *x, const struct gr_server *s, const json_t *body)
{
    struct gr_fields f = {.object = body};
    const char *content = gr_field_text(&f, "content"), *prompt = gr_field_text(&f, "prompt");
    bool vllm = prompt && !content;
    const char *name = vllm ? "prompt" : "content", *text = vllm ? prompt : content;
    bool special = gr_field_bool(&f, "add_special", false);
    bool vllm_special = gr_field_bool(&f, "add_special_tokens", true);
    bool parse = gr_field_bool(&f, "parse_special", true);
    bool pieces = gr_field_bool(&f, "with_pieces", false);
    int32_t *ids = NULL;
    size_t n = json_string_length(gr_field(&f, name));
    if (!text)
        gr_field_wrong(&f, name, "%s: a text is expected", name);
    if (gr_fields_refuse(&f, x))
        return;
    int rc = gr_text_tokenize(s->model, text, n, vllm ? vllm_special : special, parse, &ids, &n);
    if (rc)
        gr_refuse_status(x, rc, name);
    else if (n > (pieces ? MOST_PIECES : MOST_TOKENS))
        gr_refuse(x, 400, name, "%s: %zu tokens; an answer has %d at most", name, n,
                  pieces ? MOST_PIECES : MOST_TOKENS);
    else
        gr_answer_json(x, 200, tokens_json(s->model, ids, n, pieces));
    gr_free_ids(ids);
}

void gr_serve_tokenize(struct gr_exchange *x, void *user)
{
    json_t *body = gr_read_object(x);
    if (body)
        tokenize(x, user, body);
    json_decref(body);
}

/* ---- the text of tokens ---- */

static int detokenize(const struct gr_server *s, const json_t *tokens, struct gr_writer *w)
{
    struct gr_detok *d = NULL;
    const char *p;
    size_t n;
    int rc = gr_detok_new(&d, s->model, true);
    for (size_t i = 0; i < json_array_size(tokens) && !rc; i++) {
        rc = gr_detok_push(d, (int32_t)json_integer_value(json_array_get(tokens, i)), &p, &n);
        if (!rc)
            gr_write(w, p, n);
    }
    if (!rc)
        rc = gr_detok_flush(d, &p, &n);
    if (!rc)
        gr_write(w, p, n);
    gr_detok_free(&d);
    return rc || !w->failed ? rc : GR_E_NOMEM_HOST;
}

/* Returns whether the value is a list of tokens of the model. */
static bool are_tokens(const struct gr_server *s, const json_t *tokens)
{
    size_t i;
    const json_t *token;
    json_array_foreach(tokens, i, token)
    {
        json_int_t id = json_integer_value(token);
        if (!json_is_integer(token) || id < 0 || id >= s->info.n_vocab)
            return false;
    }
    return json_is_array(tokens);
}

void gr_serve_detokenize(struct gr_exchange *x, void *user)
{
    const struct gr_server *s = user;
    json_t *body = gr_read_object(x);
    const json_t *tokens = json_object_get(body, "tokens");
    struct gr_writer w = {0};
    if (!body)
        return;
    if (!are_tokens(s, tokens)) {
        gr_refuse(x, 400, "tokens", "tokens: a list of token ids from 0 to %d is expected",
                  s->info.n_vocab - 1);
    } else {
        int rc = detokenize(s, tokens, &w);
        if (rc)
            gr_refuse_status(x, rc, "tokens");
        else
            gr_answer_json(x, 200,
                           json_pack("{s:o}", "content", gr_json_text(w.n ? w.p : "", w.n)));
    }
    json_decref(body);
    gr_writer_free(&w);
}

/* ---- prompts of chats ---- */

void gr_serve_apply_template(struct gr_exchange *x, void *user)
{
    const struct gr_server *server = user;
    json_t *body = gr_read_object(x);
    struct gr_fields f = {.object = body};
    struct gr_messages c = {0};
    struct gr_prompt prompt;
    if (!body)
        return;
    gr_messages_read(&c, &f);
    gr_messages_render(&c, server, &f, &prompt);
    if (!gr_fields_refuse(&f, x))
        gr_answer_json(x, 200, json_pack("{s:o}", "prompt", gr_json_text(prompt.text, prompt.n)));
    gr_prompt_free(&prompt);
    gr_messages_drop(&c);
    json_decref(body);
}
